//! What a user may do to the backend: pools, callers, allocators, sizes.

use std::sync::atomic::{AtomicUsize, Ordering};

use gemv_core::half::{bf16, f16};
use gemv_core::ndarray::{Array1, Array2, Array3, ArrayView1, ArrayView2, ShapeBuilder, s};
use gemv_core::num_complex::Complex;
use gemv_core::{
    Accumulator, Desc, Device, DeviceVector, Element, Engine, Error, Factor, Params, Times,
};
use gemv_testkit::{MODES, Mode, Numbers, with_mode};
use proptest::prelude::*;

fn device() -> Device {
    Device::new(gemv_cpu::open(None).unwrap())
}

fn numbers(len: usize, seed: u32) -> Vec<f32> {
    Numbers::new(seed.into()).elements(len)
}

fn bits(y: &Array1<f32>) -> Vec<u32> {
    y.iter().map(|v| v.to_bits()).collect()
}

fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let device = device();
    // Split by rows, by segments, and not at all.
    // The last two have fewer rows, and fewer segments, than the most threads.
    let shapes = [(3000, 700), (5, 300_001), (1, 1_000_000), (70_000, 9), (40, 40)];
    for (m, n) in shapes.into_iter().chain([(100, 1000), (9, 5000)]) {
        let a = Array2::from_shape_vec((m, n), numbers(m * n, 7)).unwrap();
        let f = Array2::from_shape_vec((m, n).f(), numbers(m * n, 7)).unwrap();
        let x = Array1::from(numbers(n, 9));
        for a in [a.view(), f.view(), a.slice(s![.., ..;-1]), a.slice(s![.., ..;3])] {
            let x = x.slice(s![..a.ncols()]);
            let mut want = Array1::zeros(m);
            gemv_testkit::gemv(1.0, a, false, x, 0.0, want.view_mut());
            for threads in [1, 2, 3, 7, 61] {
                for p in device.backend().candidates(&gemv_core::Desc::new(
                    gemv_core::Dtype::F32,
                    m,
                    a.ncols(),
                    (a.strides()[0], a.strides()[1]),
                    0,
                )) {
                    // On all threads, however small it is.
                    let p = if p.get("grain_kib").is_some() { p.with("grain_kib", 1) } else { p };
                    let mut y = Array1::from_elem(m, f32::NAN);
                    pool(threads).install(|| device.product(&a, &x).with(&p).to(&mut y)).unwrap();
                    assert_eq!(bits(&y), bits(&want), "{m}x{n} {p} on {threads} threads");
                }
            }
        }
    }
}

#[test]
fn concurrent_callers_do_not_disturb_one_another() {
    let device = device();
    let a = Array2::from_shape_vec((600, 900), numbers(540_000, 3)).unwrap();
    let x = Array1::from(numbers(900, 4));
    let want = device.try_gpu_dot(&a, &x).unwrap();
    let p = "row rows=4 grain_kib=1".parse().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let mut y = Array1::zeros(600);
                    device.product(&a, &x).with(&p).to(&mut y).unwrap();
                    assert_eq!(bits(&y), bits(&want));
                }
            });
        }
    });
    // Inside of other parallel work, on the same pool.
    use rayon::prelude::*;
    (0..200).into_par_iter().for_each(|_| {
        let mut y = Array1::zeros(600);
        device.product(&a, &x).with(&p).to(&mut y).unwrap();
        assert_eq!(bits(&y), bits(&want));
    });
}

#[test]
fn an_instruction_set_that_is_not_there_is_an_error() {
    let error = gemv_cpu::open(Some("avx1024")).unwrap_err();
    assert!(matches!(&error, Error::NoDevice { .. }));
    assert!(error.to_string().contains("avx1024"), "{error}");
    assert_eq!(gemv_cpu::isas().last(), Some(&"plain"));
    for isa in gemv_cpu::isas() {
        assert_eq!(gemv_cpu::open(Some(isa)).unwrap().device().arch, isa);
    }
}

#[test]
fn it_is_linked_and_named() {
    let device = Engine::new(Some("cpu".into())).default_device().unwrap().clone();
    assert_eq!(device.info().id, "cpu");
    assert!(device.info().host);
}

#[test]
fn bad_parameters_are_refused() {
    let device = device();
    let a = Array2::<f32>::zeros((9, 9));
    let x = Array1::zeros(9);
    for (text, part) in [
        ("col tile_m=0", "for col"),
        ("row rows=0", "from 1"),
        ("row lines=2", "no lines"),
        ("magic", "no kernel"),
    ] {
        let mut y = Array1::from_elem(9, 5.0f32);
        let error = device.product(&a, &x).with(&text.parse().unwrap()).to(&mut y).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert!(y.iter().all(|v| *v == 5.0));
    }
}

/// Rows of ones between gaps of NaN, at every offset in a cache line. An infinite entry of x meets its own column only,
/// not the zeros of masked lanes.
#[test]
fn vectors_that_are_not_whole_meet_nothing_else() {
    fn check<T: Element<Acc = T> + From<f32>>(device: &Device) {
        let one = T::from(1.0);
        for params in [
            "row rows=64 prefetch=0",
            "row rows=128 prefetch=0",
            "row rows=16 prefetch_next=1",
            "row-small",
        ] {
            let params: Params = params.parse().unwrap();
            for (first, n) in (0..17).flat_map(|first| [(first, 256), (first, 512)]) {
                let mut all = Array2::from_elem((11, n + 64), T::from(f32::NAN));
                let mut a = all.slice_mut(s![.., first..first + n]);
                a.fill(one);
                for j in [None, Some(0), Some(first), Some(100), Some(255), Some(n - 1)] {
                    let mut x = Array1::from_elem(n, one);
                    let want = T::from(if j.is_some() { f32::INFINITY } else { n as f32 });
                    if let Some(j) = j {
                        x[j] = want;
                    }
                    let mut y = Array1::from_elem(11, one);
                    device
                        .product(&a, &x)
                        .with(&params)
                        .scaled(one, T::default())
                        .to(&mut y)
                        .unwrap();
                    assert!(y.iter().all(|v| *v == want), "{params} at {first}, n {n}, {j:?}");
                }
            }
        }
    }
    for isa in gemv_cpu::isas() {
        let device = Device::new(gemv_cpu::open(Some(isa)).unwrap());
        check::<f32>(&device);
        check::<f64>(&device);
    }
}

/// Blocks of more short rows than are computed at a time.
#[test]
fn many_rows_come_from_several_places() {
    for isa in gemv_cpu::isas() {
        let device = Device::new(gemv_cpu::open(Some(isa)).unwrap());
        let a = Array2::from_shape_vec((1000, 100), numbers(100_000, 3)).unwrap();
        let x = Array1::from_vec(numbers(100, 4));
        let want = device.try_gpu_dot(&a, &x).unwrap();
        for params in ["row rows=128 streams=2 prefetch=0", "row rows=128 streams=16 prefetch=64"] {
            let mut y = Array1::from_elem(1000, 5.0f32);
            device.product(&a, &x).with(&params.parse().unwrap()).to(&mut y).unwrap();
            assert_eq!(y, want, "{params}");
        }
    }
}

/// 2^31 + 256 elements of f16; only the last row is not the shared zero page.
#[cfg(target_os = "linux")]
#[test]
fn indices_beyond_31_bits() {
    let (m, n) = ((1usize << 31) / 65_536 + 1, 65_536usize);
    let bytes = m * n * 2;
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    // SAFETY: a new mapping of zeros, good for `bytes`, unmapped below.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
    assert_ne!(p, libc::MAP_FAILED);
    // SAFETY: zero bits are elements; the mapping lives until the end of the test.
    let flat = unsafe { std::slice::from_raw_parts_mut(p.cast::<f16>(), m * n) };
    flat[m * n - 1] = f16::from_f32(3.0);
    let device = device();
    let x = Array1::from_elem(n, f16::from_f32(0.5));
    let row = ArrayView2::from_shape((m, n), &*flat).unwrap();
    // Rows far apart, so that the zeros between are not read.
    let y = device.try_gpu_dot(&row.slice(s![..;1 << 14, ..]), &x).unwrap();
    assert_eq!(y.len(), 3);
    assert_eq!([y[0], y[1], y[2]].map(f16::to_f32), [0.0, 0.0, 1.5]);
    let col = ArrayView2::from_shape((n, m).f(), &*flat).unwrap();
    let x = Array1::from_elem(3, f16::from_f32(0.5));
    let y = device.try_gpu_dot(&col.slice(s![.., ..;1 << 14]), &x).unwrap();
    assert_eq!(y[n - 1].to_f32(), 1.5);
    // SAFETY: mapped above; no view of it is used from here on.
    unsafe { libc::munmap(p, bytes) };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_strides_offsets_and_lengths(
        m in 0usize..70,
        n in 0usize..600,
        at in 0usize..32,
        strides in (-3isize..4, -3isize..4),
        columns_first: bool,
        gap in 0isize..3,
        factors in (prop::sample::select(vec![0.0f32, 1.0, -2.5]), prop::sample::select(vec![0.0f32, 1.0, 0.5])),
        (xs, ys) in (prop::sample::select(vec![-2isize, -1, 1, 3]), prop::sample::select(vec![-2isize, -1, 1, 3])),
        isa in prop::sample::select(gemv_cpu::isas()),
        seed: u32,
    ) {
        let device = Device::new(gemv_cpu::open(Some(isa)).unwrap());
        // One stride is small, the other is beyond the line that it makes.
        let (mut rs, mut cs) = strides;
        if columns_first {
            cs *= rs.abs().max(1) * m as isize + gap;
        } else {
            rs *= cs.abs().max(1) * n as isize + gap;
        }
        let span = |len: usize, s: isize| s.unsigned_abs() * len.saturating_sub(1);
        let data = numbers(at + span(m, rs) + span(n, cs) + 1, seed);
        let shape = (m, n).strides((rs.unsigned_abs(), cs.unsigned_abs()));
        let mut a = ArrayView2::from_shape(shape, &data[at..]).unwrap();
        for (axis, s) in [rs, cs].into_iter().enumerate() {
            if s < 0 {
                a.invert_axis(gemv_core::ndarray::Axis(axis));
            }
        }
        let x = numbers(at + n * 3 + 1, seed ^ 5);
        let x = ArrayView1::from(&x[at..]).slice_move(s![..(n * xs.unsigned_abs());xs]);
        let mut memory = Array1::from(numbers(m * 3 + 8, seed ^ 9));
        let before = memory.clone();
        let (alpha, beta) = factors;
        let mut want = before.slice(s![4..4 + m * ys.unsigned_abs();ys]).to_owned();
        gemv_testkit::gemv(alpha, a, false, x, beta, want.view_mut());
        device
            .gemv(alpha, &a, &x, beta, memory.slice_mut(s![4..4 + m * ys.unsigned_abs();ys]))
            .unwrap();
        let got = memory.slice(s![4..4 + m * ys.unsigned_abs();ys]).to_owned();
        prop_assert_eq!(bits(&got), bits(&want));
        // Nothing else was written.
        let mut rest = memory.clone();
        rest.slice_mut(s![4..4 + m * ys.unsigned_abs();ys])
            .assign(&before.slice(s![4..4 + m * ys.unsigned_abs();ys]));
        prop_assert_eq!(bits(&rest), bits(&before));
    }
}

/// Numbers of all magnitudes; every other row is subnormal, or has subnormal products.
fn rows<T: Element>(count: usize, len: usize, numbers: &mut Numbers) -> Vec<T> {
    let tiny = if T::DTYPE.needs_f64() { 1e-305 } else { 3e-36 };
    let tiny = T::Acc::from_parts(tiny, 0.0);
    let mut row = |i: usize| {
        let row = numbers.elements::<T>(len);
        row.into_iter().map(move |v| match i % 2 {
            0 => T::narrow(v.widen().mul(tiny)),
            _ => v,
        })
    };
    (0..count).flat_map(&mut row).collect()
}

/// A product on several threads, and what it is computed from. Nothing is computed while another mode is set.
struct Many<T, V: Element> {
    a: Array3<T>,
    x: Array3<V>,
    y: Array3<V>,
    factors: (V::Acc, V::Acc),
}

impl<T: Element + Times<V>, V: Element> Many<T, V> {
    fn new(batch: usize, (m, n): (usize, usize), by_columns: bool, rhs: usize) -> Many<T, V> {
        let mut numbers = Numbers::new(17 + n as u64);
        let shape = (batch, m, n);
        let a = Array3::from_shape_vec(shape, rows(batch * m, n, &mut numbers)).unwrap();
        let a = match by_columns {
            true => {
                a.permuted_axes([0, 2, 1]).as_standard_layout().to_owned().permuted_axes([0, 2, 1])
            }
            false => a,
        };
        let of = |shape, numbers: &mut Numbers| {
            let (b, m, n) = shape;
            Array3::from_shape_vec(shape, numbers.elements(b * m * n)).unwrap()
        };
        let (x, y) = (of((batch, n, rhs), &mut numbers), of((batch, m, rhs), &mut numbers));
        let factors = (V::Acc::from_parts(1.0 / 3.0, 0.1), V::Acc::from_parts(-0.7, 0.3));
        Many { a, x, y, factors }
    }

    /// Some of the parameters that are legal, on all threads however small the product is.
    fn params(&self, device: &Device) -> Vec<Params> {
        let ((batch, m, n), rhs) = (self.a.dim(), self.x.dim().2);
        let strides = (self.a.strides()[1], self.a.strides()[2]);
        let desc = Desc::new(T::DTYPE, m, n, strides, 0);
        let all = device.backend().candidates(&Desc { vectors: V::DTYPE, rhs, batch, ..desc });
        let all = all.iter().step_by(all.len().div_ceil(4));
        let everywhere = |p: &Params| match p.get("grain_kib") {
            Some(_) => p.with("grain_kib", 1),
            None => *p,
        };
        all.map(everywhere).collect()
    }

    fn run(&self, device: &Device, params: &Params) -> Array3<V> {
        let (mut y, (alpha, beta)) = (self.y.clone(), self.factors);
        device.product(&self.a, &self.x).with(params).scaled(alpha, beta).to(&mut y).unwrap();
        y
    }
}

/// The modes with a pool each, whose threads inherit theirs.
fn pools() -> Vec<(&'static str, Mode, rayon::ThreadPool)> {
    let made = |(name, mode)| (name, mode, with_mode(mode, || pool(3)));
    MODES.into_iter().map(made).collect()
}

#[test]
fn no_mode_of_a_thread_changes_a_bit() {
    fn check<T: Element + Times<V>, V: Element>(pools: &[(&str, Mode, rayon::ThreadPool)]) {
        let same = |got: &Array3<V>, want: &Array3<V>, what: &dyn std::fmt::Display| {
            let differ = got.iter().zip(want).filter(|(got, want)| got.bits() != want.bits());
            assert_eq!(differ.count(), 0, "{what}");
        };
        for isa in gemv_cpu::isas() {
            let device = Device::new(gemv_cpu::open(Some(isa)).unwrap());
            // Cut by rows, and by segments; several columns, and batches.
            for (batch, dim, rhs) in
                [(1, (70, 300), 1), (1, (4, 3001), 1), (1, (70, 300), 3), (3, (40, 90), 2)]
            {
                for by_columns in [false, true] {
                    let given = Many::<T, V>::new(batch, dim, by_columns, rhs);
                    for params in given.params(&device) {
                        let want = given.run(&device, &params);
                        for (name, mode, pool) in pools {
                            let what = format!(
                                "{isa} {}*{} {batch} of {dim:?} and {rhs}, {params}: {name}",
                                T::DTYPE,
                                V::DTYPE
                            );
                            // Called from elsewhere, and in a pool whose threads have the mode.
                            let got = with_mode(*mode, || given.run(&device, &params));
                            same(&got, &want, &what);
                            let got = pool.install(|| given.run(&device, &params));
                            same(&got, &want, &what);
                        }
                    }
                }
            }
        }
    }
    let pools = pools();
    check::<f32, f32>(&pools);
    check::<f64, f64>(&pools);
    check::<f16, f16>(&pools);
    check::<bf16, bf16>(&pools);
    check::<Complex<f32>, Complex<f32>>(&pools);
    check::<Complex<f64>, Complex<f64>>(&pools);
    check::<f16, f32>(&pools);
    check::<bf16, f32>(&pools);
    check::<f32, f64>(&pools);
    // Every thread of them has its own mode.
    for (name, mode, pool) in &pools {
        let own = with_mode(*mode, Mode::of_this_thread);
        assert_eq!(pool.broadcast(|_| Mode::of_this_thread()), [own; 3], "{name}");
    }
}

/// Steps of vectors that are long enough for several threads.
#[test]
fn no_mode_of_a_thread_changes_a_step() {
    fn check<T: Element>(pools: &[(&str, Mode, rayon::ThreadPool)]) {
        let device = device();
        let mut numbers = Numbers::new(3);
        // Without zeros, which are no divisors.
        let mut vector = || {
            let mut all = rows::<T>(200, 1000, &mut numbers);
            all.iter_mut()
                .filter(|v| v.widen().is_zero())
                .for_each(|v| *v = T::narrow(T::Acc::ONE));
            device.vector(&all).unwrap()
        };
        let [x, y, z] = [(); 3].map(|()| vector());
        let alpha = T::Acc::from_parts(1.0 / 3.0, 0.1);
        let all = || {
            let step = |step: &dyn Fn(&mut DeviceVector<T>) -> Result<(), Error>| {
                let mut y = y.clone();
                step(&mut y).unwrap();
                y.download().unwrap()
            };
            [
                step(&|y| y.axpy(Factor::number(alpha), &x)),
                step(&|y| y.assign_quotient(&x, &z)),
                step(&|y| y.assign_sqrt(&x)),
            ]
        };
        let want = all();
        for (name, mode, pool) in pools {
            for got in [with_mode(*mode, all), pool.install(all)] {
                for (k, (got, want)) in got.iter().zip(&want).enumerate() {
                    let differ =
                        got.iter().zip(want).filter(|(got, want)| got.bits() != want.bits());
                    assert_eq!(differ.count(), 0, "{}, step {k}: {name}", T::DTYPE);
                }
            }
        }
    }
    let pools = pools();
    check::<f32>(&pools);
    check::<f64>(&pools);
    check::<bf16>(&pools);
    check::<Complex<f32>>(&pools);
}

/// A thread that waits in a product takes up other work of its pool. That has the pool's mode; and if it leaves another
/// one, the product goes on in its own.
#[test]
fn other_work_of_the_pool_has_a_mode_of_its_own() {
    let device = device();
    let tiny = 3e-39f32;
    // By rows, and by segments, whose sums are added up at the end.
    for ((m, n), (name, mode)) in
        [(300, 300), (4, 20_000)].into_iter().flat_map(|dim| MODES.map(|mode| (dim, mode)))
    {
        let a = Array2::from_shape_fn((m, n), |(i, j)| tiny / (i + j + 1) as f32 + tiny);
        let x = Array1::from(numbers(n, 9));
        let params: Params = "row rows=4 grain_kib=1".parse().unwrap();
        let run = || {
            let mut y = Array1::zeros(m);
            device.product(&a, &x).with(&params).to(&mut y).unwrap();
            bits(&y)
        };
        let want = run();
        let (wrong, strangers) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let products = |pool: &rayon::ThreadPool, other: &(dyn Fn() + Sync)| {
            pool.scope(|scope| {
                for _ in 0..10 {
                    scope.spawn(|scope| {
                        (0..20).for_each(|_| scope.spawn(|_| other()));
                        wrong.fetch_add(usize::from(run() != want), Ordering::Relaxed);
                    });
                }
            });
        };
        let its = with_mode(mode, || pool(2));
        let own = with_mode(mode, Mode::of_this_thread);
        products(&its, &|| {
            let strange = Mode::of_this_thread() != own;
            strangers.fetch_add(usize::from(strange), Ordering::Relaxed);
        });
        assert_eq!(strangers.load(Ordering::Relaxed), 0, "{name}");
        assert_eq!(its.broadcast(|_| Mode::of_this_thread()), [own; 2], "{name}");
        products(&pool(2), &|| mode.set());
        assert_eq!(wrong.load(Ordering::Relaxed), 0, "{name}");
    }
}
