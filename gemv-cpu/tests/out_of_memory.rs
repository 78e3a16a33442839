//! Every allocation that grows with the operands fails, alone and with all after it: the product is computed in another
//! way, or the error says so and y is as it was, and the next call works. An allocation that may not fail would end the
//! process, and so the test.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gemv_core::half::{bf16, f16};
use gemv_core::ndarray::{
    Array, Array1, Array2, Array3, ArrayView2, ArrayView3, Axis, Dimension, ShapeBuilder, array, s,
};
use gemv_core::num_complex::Complex;
use gemv_core::reference::{self, Reference};
use gemv_core::{
    Accumulator, Desc, Device, DeviceIntegers, DeviceVector, Element, Error, GpuDot, MatrixRef,
    Params, Result, Times, ToDevice,
};
use gemv_testkit::{FailingAllocator, Numbers, each_failure, largest_allocation};

#[global_allocator]
static ALLOCATOR: FailingAllocator = FailingAllocator;

/// One test at a time lets allocations fail.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cpu() -> Device {
    Device::new(gemv_cpu::open(None).unwrap())
}

/// The CPU with each of its instruction sets; without the slowest, if there are others.
fn cpus() -> Vec<Device> {
    let isas = gemv_cpu::isas();
    let fast = isas.iter().filter(|isa| isas.len() == 1 || **isa != "plain");
    fast.map(|isa| Device::new(gemv_cpu::open(Some(isa)).unwrap())).collect()
}

fn bits<'a, V: Element>(of: impl IntoIterator<Item = &'a V>) -> Vec<u128> {
    of.into_iter().map(|v| v.bits()).collect()
}

/// Runs it on threads that have no scratch yet.
fn afresh<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
}

/// Each kernel with the first of its candidates, on one thread and on all.
fn kernels(cpu: &Device, desc: &Desc) -> Vec<Params> {
    let mut all: Vec<Params> = Vec::new();
    for params in cpu.backend().candidates(desc) {
        if all.iter().all(|other| other.kernel() != params.kernel()) {
            all.push(params);
        }
    }
    assert!(!all.is_empty());
    let grain = |params: Params, kib| match params.get("grain_kib") {
        Some(_) => params.with("grain_kib", kib).with("grain_cold", kib),
        None => params,
    };
    all.iter().flat_map(|of| [1, 1 << 20].map(|kib| grain(*of, kib))).collect()
}

/// Runs a product while allocations fail: it has the right bits all the same.
fn computes<V: Element, D: Dimension>(
    what: &dyn Fn() -> String,
    before: &Array<V, D>,
    want: &[u128],
    product: &(dyn Fn(&mut Array<V, D>) -> Result<()> + Sync),
) -> usize {
    each_failure(|failure| {
        let mut y = before.clone();
        let done = afresh(3, || failure.during(|| product(&mut y)));
        done.unwrap_or_else(|e| panic!("{}: {e}", what()));
        assert!(bits(&y) == want, "{}", what());
    })
}

/// The same matrix' elements in several layouts.
fn matrices<T>(all: &[T], m: usize, n: usize) -> Vec<ArrayView2<'_, T>> {
    let rows = |n: usize| ArrayView2::from_shape((m, n), &all[..m * n]).unwrap();
    let columns = |m: usize| ArrayView2::from_shape((m, n).f(), &all[..m * n]).unwrap();
    let repeated = |shape: (usize, usize), strides: (usize, usize)| {
        ArrayView2::from_shape(shape.strides(strides), &all[..m.max(n)]).unwrap()
    };
    vec![
        rows(n),
        rows(n).slice_move(s![.., ..;-1]),
        rows(2 * n).slice_move(s![.., ..;2]),
        rows(3 * n).slice_move(s![.., ..;-3]),
        columns(m),
        columns(m).slice_move(s![..;-1, ..]),
        columns(2 * m).slice_move(s![..;2, ..]),
        columns(3 * m).slice_move(s![..;3, ..]),
        repeated((m, n), (0, 1)),
        repeated((m, n), (1, 0)),
        repeated((m, n), (0, 0)),
    ]
}

fn factors<V: Element>(plain: bool) -> (V::Acc, V::Acc) {
    let acc = |(re, im)| V::Acc::from_parts(re, im);
    match plain {
        true => (V::Acc::ONE, V::Acc::ZERO),
        false => (acc((-1.5, 0.25)), acc((0.75, -2.0))),
    }
}

fn one_vector<T: Element>() {
    let cpus = cpus();
    let mut failed = 0;
    for (m, n) in [(3, 9000), (40, 1000), (300, 200)] {
        let mut numbers = Numbers::new((m * n) as u64);
        let all: Vec<T> = numbers.elements(3 * m * n);
        let xs: Array1<T> = numbers.elements(3 * n).into();
        let one = xs.slice(s![..1]);
        let vectors =
            [xs.slice(s![..n]), xs.slice(s![..;-3]), one.broadcast(n).expect("one entry")];
        let y: Array1<T> = numbers.elements(m).into();
        for (k, a) in matrices(&all, m, n).into_iter().enumerate() {
            let cpu = &cpus[k % cpus.len()];
            for l in [k % 3, (k + 1) % 3] {
                let x = &vectors[l];
                let (alpha, beta) = factors::<T>((k + l) % 2 == 0);
                let mut want = y.clone();
                reference::gemv(alpha, a, k % 3 == 0, *x, beta, want.view_mut());
                let want = bits(&want);
                for params in kernels(cpu, &MatrixRef::from(&a).desc()) {
                    let what = || format!("{} {m} x {n} {params}, matrix {k}, x {l}", T::DTYPE);
                    failed += computes(&what, &y, &want, &|y| match k % 3 {
                        0 => cpu.product(&a, x).conj().with(&params).scaled(alpha, beta).to(y),
                        _ => cpu.product(&a, x).with(&params).scaled(alpha, beta).to(y),
                    });
                }
            }
        }
    }
    assert!(failed > 100, "{failed} allocations failed");
}

/// Elements apart in rows of a few segments, of which a copy takes less memory than the sums of as many rows as are
/// interleaved.
fn few_apart<T: Element>() {
    let mut numbers = Numbers::new(5);
    let (all, x) = (numbers.elements::<T>(3 * 300), Array1::from_vec(numbers.elements::<T>(300)));
    let a = ArrayView2::from_shape((1, 900), &all).unwrap().slice_move(s![.., ..;3]);
    let y = Array1::from_elem(1, T::default());
    let mut want = y.clone();
    reference::gemv(T::Acc::ONE, a, false, x.view(), T::Acc::ZERO, want.view_mut());
    let params: Params = "strided rows=64".parse().unwrap();
    for cpu in cpus() {
        let product = |y: &mut Array1<T>| cpu.product(&a, &x).with(&params).to(y);
        computes(&|| format!("{} {cpu}", T::DTYPE), &y, &bits(&want), &product);
    }
}

#[test]
fn products_without_scratch_have_the_right_bits() {
    let _alone = alone();
    one_vector::<f32>();
    one_vector::<f64>();
    one_vector::<f16>();
    one_vector::<bf16>();
    one_vector::<Complex<f32>>();
    one_vector::<Complex<f64>>();
    few_apart::<f64>();
    few_apart::<Complex<f32>>();
}

fn several_vectors<T: Element + Times<V>, V: Element>() {
    let cpus = cpus();
    let mut failed = 0;
    for (batch, m, n, k) in [(1, 40, 1000, 5), (1, 7, 9000, 20), (3, 20, 300, 1), (5, 9, 30, 40)] {
        let mut numbers = Numbers::new((m * n * k) as u64);
        let all: Vec<T> = numbers.elements(batch * 3 * m * n);
        let xs =
            Array3::from_shape_vec((batch, 2 * n, k), numbers.elements::<V>(batch * 2 * n * k));
        let xs = xs.unwrap();
        let columns = Array3::from_shape_vec((batch, k, n), numbers.elements::<V>(batch * k * n));
        let columns = columns.unwrap();
        let xs = [
            xs.slice(s![.., ..n, ..]),
            xs.slice(s![.., ..;-2, ..]),
            columns.view().permuted_axes([0, 2, 1]),
        ];
        let y =
            Array3::from_shape_vec((batch, m, k), numbers.elements::<V>(batch * m * k)).unwrap();
        let y = [y.clone(), {
            // By columns.
            let mut f = Array3::default((batch, m, k).f());
            f.assign(&y);
            f
        }];
        let a = |order: [usize; 3], step: usize| {
            let dim = [batch, m, n];
            let mut shape = order.map(|axis| dim[axis]);
            shape[2] *= step;
            let a = ArrayView3::from_shape(shape, &all[..shape.iter().product()]).unwrap();
            let a = a.slice_move(s![.., .., ..;step]);
            let mut back = [0; 3];
            order.iter().enumerate().for_each(|(at, &axis)| back[axis] = at);
            a.permuted_axes(back)
        };
        let matrices =
            [a([0, 1, 2], 1), a([0, 2, 1], 1), a([0, 1, 2], 3), a([0, 2, 1], 2), a([1, 0, 2], 1)];
        for (p, a) in matrices.iter().enumerate() {
            let cpu = &cpus[p % cpus.len()];
            for (q, x) in xs.iter().enumerate() {
                let (alpha, beta) = factors::<V>((p + q) % 2 == 0);
                let y = &y[(p + q) / 2 % 2];
                let mut want = y.clone();
                gemv_testkit::gemm(alpha, a.view(), false, x.view(), beta, want.view_mut());
                let want = bits(&want);
                let one = MatrixRef::from(&a.index_axis(Axis(0), 0)).desc();
                let desc = Desc { vectors: V::DTYPE, batch, rhs: k, ..one };
                for params in kernels(cpu, &desc) {
                    let what = || format!("{desc} {params}, matrix {p}, x {q}");
                    failed += computes(&what, y, &want, &|y| {
                        cpu.product(a, x).with(&params).scaled(alpha, beta).to(y)
                    });
                }
            }
        }
    }
    assert!(failed > 100, "{failed} allocations failed");
}

#[test]
fn products_of_several_vectors_without_scratch_have_the_right_bits() {
    let _alone = alone();
    several_vectors::<f32, f32>();
    several_vectors::<f64, f64>();
    several_vectors::<f16, f16>();
    several_vectors::<Complex<f64>, Complex<f64>>();
}

#[test]
fn mixed_products_without_scratch_have_the_right_bits() {
    let _alone = alone();
    several_vectors::<f16, f32>();
    several_vectors::<bf16, f32>();
    several_vectors::<f32, f64>();
}

/// Lets each allocation of `call` fail, on a thread of its own: it is an error then, and otherwise the right value.
fn refuses<R: PartialEq + std::fmt::Debug + Send>(what: &str, call: impl Fn() -> Result<R> + Sync) {
    let want = call().unwrap();
    let failed = each_failure(|failure| {
        let got = afresh(1, || failure.during(&call));
        match got {
            Ok(got) => assert_eq!(got, want, "{what}"),
            Err(Error::OutOfMemory { asked, .. }) if failure.happened() => {
                assert!(asked >= 4096, "{what}: {asked} bytes");
            }
            Err(e) => panic!("{what}: {e}"),
        }
        assert_eq!(call().unwrap(), want, "{what}, afterwards");
    });
    assert!(failed > 0, "{what}: no allocation failed");
}

#[test]
fn uploads_downloads_and_new_results_without_memory_are_errors() {
    let _alone = alone();
    let mut numbers = Numbers::new(5);
    let a = Array2::from_shape_vec((600, 100), numbers.elements::<f64>(60_000)).unwrap();
    let (column, part) = (a.column(1), a.slice(s![..;2, ..;3]));
    let x: Array1<f64> = numbers.elements(100).into();
    let integers: Vec<i32> = (0..2000).collect();
    for device in [cpu(), Device::new(Reference::open())] {
        refuses("a matrix", || device.matrix(&a)?.download());
        refuses("a view with gaps", || part.to_device(&device)?.download());
        refuses("a column", || device.vector(&column)?.download());
        let there = device.matrix(&a).unwrap();
        refuses("every second column", || there.step_columns(.., 2).download());
        refuses("zeros", || Ok(device.zeros::<f32, _>(2000)?.len()));
        refuses("integers", || DeviceIntegers::upload(&device, &integers)?.download());
        refuses("a new result", || device.try_gpu_dot(&a, &x));
        refuses("a new resident result", || there.try_gpu_dot(&x)?.download());
    }
}

/// Lets each allocation of `change` fail: what it changes is as it was then, as is a clone of it.
fn leaves(
    device: &Device,
    what: &str,
    change: impl Fn(&mut DeviceVector<f64>) -> Result<()> + Sync,
) {
    let before: Array1<f64> = Numbers::new(9).elements(600).into();
    let changed = |mut y: DeviceVector<f64>| change(&mut y).map(|()| bits(&y.download().unwrap()));
    let want = changed(device.vector(&before).unwrap()).unwrap();
    let failed = each_failure(|failure| {
        let mut y = device.vector(&before).unwrap();
        let clone = y.clone();
        let done = afresh(1, || failure.during(|| change(&mut y)));
        assert_eq!(bits(&clone.download().unwrap()), bits(&before), "{what}");
        let now = bits(&y.download().unwrap());
        match done {
            Ok(()) => assert_eq!(now, want, "{what}"),
            Err(Error::OutOfMemory { .. }) => assert_eq!(now, bits(&before), "{what}"),
            Err(e) => panic!("{what}: {e}"),
        }
        assert!(changed(y.clone()).is_ok(), "{what}, afterwards");
    });
    assert!(failed > 0, "{what}: no allocation failed");
}

#[test]
fn what_is_resident_is_as_it_was_without_memory() {
    let _alone = alone();
    let mut numbers = Numbers::new(6);
    let a = Array2::from_shape_vec((600, 300), numbers.elements::<f64>(180_000)).unwrap();
    let gaps = Array1::from_vec(numbers.elements::<f64>(1200));
    let gaps = gaps.slice(s![..;2]);
    let x = Array1::from_vec(numbers.elements::<f64>(900));
    let x = x.slice(s![..;-3]);
    for device in [cpu(), Device::new(Reference::open())] {
        let there = device.matrix(&a).unwrap();
        // A clone shares y's memory: it is given its own.
        leaves(&device, "a product", |y| device.gemv(2.0, &a, x, -1.0, y));
        leaves(&device, "a resident product", |y| device.gemv(2.0, &there, x, -1.0, y));
        leaves(&device, "a step", |y| y.axpy(2.0, gaps));
        leaves(&device, "an assignment", |y| y.assign(gaps));
        leaves(&device, "a part", |y| y.step_mut(.., 2)?.fill(1.0));
        let long = device.vector(&gaps).unwrap();
        refuses("a norm", || {
            // Of a clone that has been written.
            let mut own = long.clone();
            own.scal(0.5)?;
            Ok(own.nrm2()?.to_bits())
        });
        refuses("a plan", || {
            let state = (device.vector(&gaps)?, device.scalar(0.0)?);
            let mut plan = device.plan(state, |(x, s)| {
                x.scal(0.5)?;
                x.dot_into(&*x, s)
            });
            plan.run()?;
            plan.run()?;
            Ok(plan.state().1.value()?.to_bits())
        });
    }
}

#[test]
fn a_repeated_number_needs_no_memory_of_its_length() {
    let _alone = alone();
    let cpu = cpu();
    // 8 GiB of accumulators, if x were copied.
    let n = (1 << 30) + 5;
    let (a, x) = (array![[1.0]], array![0.5]);
    let product = || cpu.try_gpu_dot(&a.broadcast((1, n)).unwrap(), &x.broadcast(n).unwrap());
    let (y, largest) = largest_allocation(product);
    assert_eq!(y.unwrap(), array![n as f64 / 2.0]);
    assert!(largest <= 256 << 20, "{largest} bytes");
    // 2 GiB, if the columns of X were copied.
    let (rows, columns) = (1 << 17, 1 << 12);
    let (a, x) = (Array2::<f32>::ones((2, rows)), Array1::<f32>::ones(rows));
    let x = x.insert_axis(Axis(1));
    let mut y = Array2::zeros((2, columns));
    let product = || cpu.product(&a, x.broadcast((rows, columns)).unwrap()).to(&mut y);
    let (done, largest) = largest_allocation(product);
    assert!(done.is_ok() && y.iter().all(|&sum| sum == rows as f32));
    assert!(largest <= 256 << 20, "{largest} bytes");
}
