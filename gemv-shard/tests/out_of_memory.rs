//! Each allocation that grows with the operands fails in turn: partial sums and streamed products have the right bits or
//! say so, y is as it was, and the next call works. An allocation that may not fail would end the process, and so the
//! test.

use gemv::ndarray::{Array1, Array2, Axis, ShapeBuilder, s};
use gemv::num_complex::Complex;
use gemv::unstable::{Element, Error as CoreError, reference::Reference};
use gemv::{Device, Engine};
use gemv_shard::{Error, Partial, Result, Streamed, SumElement};
use gemv_testkit::{FailingAllocator, Numbers, each_failure};

#[global_allocator]
static ALLOCATOR: FailingAllocator = FailingAllocator;

fn bits<'a, V: Element>(of: impl IntoIterator<Item = &'a V>) -> Vec<u128> {
    of.into_iter().map(|v| v.bits()).collect()
}

/// Lets each allocation of `call`, which writes to y, fail; it runs on threads that have no scratch yet.
fn fails<V: Element>(
    what: &str,
    before: &Array1<V>,
    call: impl Fn(&mut Array1<V>) -> Result<()> + Sync,
) {
    let mut want = before.clone();
    call(&mut want).unwrap();
    let want = bits(&want);
    let failed = each_failure(|failure| {
        let mut y = before.clone();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        match pool.install(|| failure.during(|| call(&mut y))) {
            Ok(()) => assert_eq!(bits(&y), want, "{what}"),
            Err(Error::Product(CoreError::OutOfMemory { .. })) => {
                assert_eq!(bits(&y), bits(before), "{what}");
            }
            Err(e) => panic!("{what}: {e}"),
        }
        let mut again = before.clone();
        call(&mut again).unwrap();
        assert_eq!(bits(&again), want, "{what}, afterwards");
    });
    assert!(failed > 0, "{what}: no allocation failed");
}

fn partial<T, V, S>(device: &Device)
where
    T: Element + gemv::Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let (m, n) = (600, 1100);
    let mut numbers = Numbers::new(3);
    let a = Array2::from_shape_vec((m, n), numbers.elements::<T>(m * n)).unwrap();
    let x = Array1::from_vec(numbers.elements::<V>(n));
    let y = Array1::from_vec(numbers.elements::<V>(m));
    let factor = |re, im| S::from_parts(re, im);
    let (alpha, beta) = (factor(-1.5, 0.25), factor(0.75, 1.0));
    let what = format!("{} sums in {} on {}", V::DTYPE, S::DTYPE, device.info().id);
    fails(&what, &y, |y| {
        let part = |from: usize, end: usize| {
            let (a, x) = (a.slice(s![.., from..end]), x.slice(s![from..end]));
            let sums = Partial::new(device, &a, &x, from, n)?;
            Partial::from_bytes(&sums.to_bytes()?)
        };
        let all = Partial::merge([part(512, n)?, part(0, 512)?])?;
        let upper = all.slice_rows(0..m)?;
        upper.finish(device, alpha, beta, y)
    });
    let parts = [0, 1].map(|process| {
        let mine: Vec<usize> = (0..n).filter(|j| j / 256 % 2 == process).collect();
        (a.select(Axis(1), &mine), x.select(Axis(0), &mine))
    });
    fails(&format!("cyclic {what}"), &y, |y| {
        let part = |process: usize| {
            let (a, x) = &parts[process];
            Partial::cyclic(device, a, x, process, 2, n)?.reduce(2)
        };
        Partial::merge([part(0)?, part(1)?])?.finish(device, alpha, beta, y)
    });
    let there = device.vector(&y).unwrap();
    fails(&format!("resident {what}"), &y, |y| {
        let mut there = there.clone();
        Partial::new(device, &a, &x, 0, n)?.finish(device, alpha, beta, &mut there)?;
        y.assign(&there.download()?);
        Ok(())
    });
}

fn streamed(device: &Device) {
    let (m, n) = (900, 700);
    let mut numbers = Numbers::new(4);
    let rows = Array2::from_shape_vec((m, n), numbers.elements::<f64>(m * n)).unwrap();
    let columns = Array2::from_shape_vec((m, n).f(), numbers.elements::<f64>(m * n)).unwrap();
    let x = Array1::from_vec(numbers.elements::<f64>(n));
    let y = Array1::from_vec(numbers.elements::<f64>(m));
    for a in [rows, columns] {
        let what = format!("a stream on {}", device.info().id);
        fails(&what, &y, |y| {
            let a = Streamed::of(&a).window(512 << 10);
            a.gemv::<f64, f64, f64>(device, 2.0, &x, -1.0, y, |_, _| ())
        });
    }
}

/// A stack of packed matrices, and one in parts and over devices.
#[cfg(feature = "packed")]
fn packed(device: &Device) {
    use gemv::{Format, Packed};
    use gemv_shard::{Sharded, StreamedPacked};

    let (b, m, n, k) = (3, 300, 512, 2);
    let mut numbers = Numbers::new(5);
    let a = Array2::from_shape_fn((b * m, n), |(i, j)| ((i * n + j) as f32).sin());
    let a = Packed::quantize(Format::Q8_0, &a).unwrap();
    let stack = Packed::new(Format::Q8_0, (b, m, n), a.bytes().to_vec()).unwrap();
    let x = Array1::from_vec(numbers.elements::<f32>(b * n * k)).mapv(|v| v.clamp(-9.0, 9.0));
    let y = Array1::from_vec(numbers.elements::<f32>(b * m * k));
    let of = device.info().id.clone();
    fails(&format!("a stack on {of}"), &y, |y| {
        let x = x.view().into_shape_with_order((b, n, k)).unwrap();
        let y = y.view_mut().into_shape_with_order((b, m, k)).unwrap();
        Ok(device.product(&stack, x).scaled(2.0, -1.0).to(y)?)
    });
    fails(&format!("packed in parts on {of}"), &y, |y| {
        let x = x.slice(s![..n * k]).into_shape_with_order((n, k)).unwrap();
        let y = y.view_mut().into_shape_with_order((b * m, k)).unwrap();
        StreamedPacked::of(&a).window(1 << 16).gemm(device, 2.0, x, -1.0, y, |_, _| ())
    });
    fails(&format!("packed over devices of {of}"), &y, |y| {
        let x = x.slice(s![..n * k]).into_shape_with_order((n, k)).unwrap();
        let y = y.view_mut().into_shape_with_order((b * m, k)).unwrap();
        let shared = Sharded::<f32>::packed(&a, &[device.clone(), device.clone()])?;
        shared.gemm_mixed(2.0, x, -1.0, y)
    });
}

/// One test: allocations of others would be counted.
#[test]
fn parts_without_memory_are_errors() {
    let cpu = Engine::new(None).device("cpu").unwrap().clone();
    for device in [cpu, Device::new(Reference::open())] {
        partial::<f32, f32, f32>(&device);
        partial::<gemv::half::f16, gemv::half::f16, f32>(&device);
        partial::<Complex<f64>, Complex<f64>, Complex<f64>>(&device);
        streamed(&device);
        #[cfg(feature = "packed")]
        packed(&device);
    }
}
