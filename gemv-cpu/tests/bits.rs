//! Every kernel, instruction set, type and layout against the reference, bit for bit.

use gemv_core::half::{bf16, f16};
use gemv_core::ndarray::{
    Array1, Array2, ArrayView1, ArrayView2, ArrayViewMut1, Axis, ShapeBuilder, s,
};
use gemv_core::num_complex::Complex;
use gemv_core::{Accumulator, Desc, Device, Element, Params};
use gemv_testkit::{MODES, Numbers, with_mode};

/// y between canaries, checked bit for bit.
#[track_caller]
fn check<T: Element>(
    device: &Device,
    a: ArrayView2<'_, T>,
    conj: bool,
    rng: &mut Numbers,
    (alpha, beta): (f64, f64),
    what: &str,
) {
    let (m, n) = a.dim();
    let x = Array1::from_vec(rng.elements::<T>(n));
    let (alpha, beta) = (T::Acc::from_parts(alpha, 0.25), T::Acc::from_parts(beta, 0.0));
    let old = Array1::from_vec(rng.elements::<T>(m));
    let mut want = old.clone();
    gemv_testkit::gemv(alpha, a, conj, x.view(), beta, want.view_mut());
    for stride in [1isize, 2, -1] {
        let gap = stride.unsigned_abs();
        let mut memory = Array1::from_elem(m * gap + 16, T::narrow(T::Acc::from_parts(77.0, 7.0)));
        let canary = memory[0];
        let params = device.backend().candidates(&Desc::new(
            T::DTYPE,
            m,
            n,
            (a.strides()[0], a.strides()[1]),
            a.as_ptr() as usize,
        ));
        // Small products on several threads, too.
        let few =
            |p: &Params| Some(p.with("grain_kib", 1)).filter(|_| p.get("grain_kib").is_some());
        for p in params.iter().filter_map(few).chain(params.iter().copied()) {
            let mut y: ArrayViewMut1<'_, T> = memory.slice_mut(s![8..8 + m * gap;stride]);
            y.assign(&old);
            if beta == T::Acc::ZERO {
                // Must not be read.
                y.fill(T::narrow(T::Acc::from_parts(f64::NAN, f64::NAN)));
            }
            device.product(&a, &x).conj_if(conj).with(&p).scaled(alpha, beta).to(y).unwrap();
            let y = memory.slice(s![8..8 + m * gap;stride]);
            for i in 0..m {
                assert_eq!(
                    y[i].bits(),
                    want[i].bits(),
                    "{what} {m}x{n} strides {:?} {p} row {i}: {:?}, not {:?}",
                    a.strides(),
                    y[i],
                    want[i]
                );
            }
            let outside = memory
                .iter()
                .enumerate()
                .filter(|(i, _)| !(8..8 + m * gap).contains(i) || (gap == 2 && (i - 8) % 2 == 1));
            assert!(outside.into_iter().all(|(_, v)| *v == canary), "{what}: a canary is gone");
        }
    }
}

fn all_views<T: Element>(device: &Device, m: usize, n: usize, seed: u64) {
    let mut rng = Numbers::new(seed);
    let what = format!("{} {}", device.info().arch, T::DTYPE);
    let factors = [(1.0, 0.0), (1.0, 1.0), (-0.5, 2.0), (2.0, 0.0)];
    let mut view_number = seed as usize;
    let mut next = |a: ArrayView2<'_, T>, rng: &mut Numbers| {
        view_number += 1;
        let f = factors[view_number % factors.len()];
        // Here alpha has an imaginary part; gemv_core's tests of dot cover alpha = 1.
        check(device, a, view_number.is_multiple_of(3), rng, f, &what);
    };
    let big: Array2<T> = Array2::from_shape_fn((3 * m + 3, 3 * n + 3), |_| rng.element());
    let (one_row, one_column) = (big.slice(s![1, 1..n + 1]), big.slice(s![1..m + 1, 1..2]));
    let views: [ArrayView2<'_, T>; 12] = [
        big.slice(s![1..m + 1, 1..n + 1]),
        big.slice(s![1..m + 1, 1..2 * n + 1;2]),
        big.slice(s![1..m + 1, 1..n + 1;-1]),
        big.slice(s![1..m + 1;-1, 1..n + 1]),
        big.slice(s![1..3 * m + 1;3, 1..3 * n + 1;3]),
        big.slice(s![1..3 * m + 1;-3, 1..2 * n + 1;-2]),
        big.slice(s![..n.min(3 * m + 3), ..m.min(3 * n + 3)]).reversed_axes(),
        big.slice(s![..n.min(3 * m + 3), ..m.min(3 * n + 3);-1]).reversed_axes(),
        big.slice(s![..n.min(3 * m + 3), ..(2 * m).min(3 * n + 3);2]).reversed_axes(),
        big.slice(s![..n.min(3 * m + 3), ..(2 * m).min(3 * n + 3);-3]).reversed_axes(),
        one_row.broadcast((m, n)).unwrap(),
        one_column.broadcast((m, n)).unwrap(),
    ];
    for view in views {
        next(view, &mut rng);
    }
    // Dense columns, at some offset from a vector boundary.
    let flat = rng.elements::<T>(m * n + 32);
    let at = rng.below(32);
    use gemv_core::ndarray::ShapeBuilder;
    let flat = &flat[at..at + m * n];
    next(ArrayView2::from_shape((m, n).f(), flat).unwrap(), &mut rng);
    next(ArrayView2::from_shape((m, n), flat).unwrap(), &mut rng);
}

fn all_shapes<T: Element>(isa: &str) {
    let device = Device::new(gemv_cpu::open(Some(isa)).unwrap());
    let mut seed = 1;
    for m in [1, 2, 3, 4, 5, 7, 16, 17, 33, 65, 130] {
        for n in [1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 255, 256, 257, 513, 700] {
            if m * n < 20_000 || (m + n) % 5 == 0 {
                seed += 1;
                all_views::<T>(&device, m, n, seed);
            }
        }
    }
    // Several segments of rows of one offset, at any place of a vector, and rows beyond a multiple of four.
    for (m, n) in [(11, 776), (14, 768), (29, 520)] {
        for _ in 0..3 {
            seed += 1;
            all_views::<T>(&device, m, n, seed);
        }
    }
    for (m, n) in [(3, 16_500), (5, 65_537), (1300, 5), (1100, 300), (2, 70_000)] {
        seed += 1;
        let mut rng = Numbers::new(seed);
        let flat = rng.elements::<T>(m * n);
        use gemv_core::ndarray::ShapeBuilder;
        let row = ArrayView2::from_shape((m, n), &flat).unwrap();
        let col = ArrayView2::from_shape((m, n).f(), &flat).unwrap();
        check(&device, row, false, &mut rng, (1.0, 0.0), isa);
        check(&device, col, false, &mut rng, (1.0, 0.0), isa);
        // Elements that are copied together, of more segments than are copied at a time.
        let apart = Array2::from_shape_fn((m, 3 * n), |(i, j)| flat[(i * n + j) % flat.len()]);
        check(&device, apart.slice(s![.., ..;3]), false, &mut rng, (1.0, 0.0), isa);
    }
}

macro_rules! types {
    ($($name:ident: $t:ty;)*) => { $(
        #[test]
        fn $name() {
            for isa in gemv_cpu::isas() {
                all_shapes::<$t>(isa);
            }
        }
    )* };
}
types! {
    f32_: f32;
    f64_: f64;
    f16_: f16;
    bf16_: bf16;
    c32_: Complex<f32>;
    c64_: Complex<f64>;
}

/// Small products of each instruction set by the function that a known choice has, for every kind of layout, in each
/// floating-point mode: the first call makes the choice, the others know it.
fn known<T: Element>() {
    let mut rng = Numbers::new(3);
    for isa in gemv_cpu::isas() {
        let device = Device::new(gemv_cpu::open(Some(isa)).unwrap());
        for (m, n) in [
            (1, 1),
            (3, 16),
            (16, 3),
            (33, 65),
            (2, 255),
            (4, 256),
            (3, 257),
            (16, 2048),
            (17, 300),
        ] {
            let data = rng.elements::<T>(4 * (m + 3) * (n + 3));
            let xs = rng.elements::<T>(3 * n);
            let (rows, columns) = (n as isize, m as isize);
            let lies = [(rows, 1), (1, columns), (rows + 3, 1), (1, columns + 2), (2 * rows, 2)];
            for (rs, cs) in lies.into_iter().chain([(0, 1), (-rows, 1), (1, -columns), (rows, -1)])
            {
                let shape = (m, n).strides((rs.unsigned_abs(), cs.unsigned_abs()));
                let mut a = ArrayView2::from_shape(shape, &data[1..]).unwrap();
                [rs, cs].into_iter().enumerate().filter(|(_, stride)| *stride < 0).for_each(
                    |(axis, _)| {
                        a.invert_axis(Axis(axis));
                    },
                );
                for (step, conj) in [(1, false), (1, true), (2, false), (-1, true)] {
                    let x = ArrayView1::from(&xs).slice_move(s![..;step]).slice_move(s![..n]);
                    let mut want = Array1::from_elem(m, T::default());
                    let (one, zero) = (T::Acc::ONE, T::Acc::ZERO);
                    gemv_testkit::gemv(one, a, conj, x, zero, want.view_mut());
                    let call = || {
                        let mut y = Array1::from_elem(m, T::default());
                        device.product(a, x).conj_if(conj).to(&mut y).unwrap();
                        assert!(
                            y.iter().zip(&want).all(|(y, want)| y.bits() == want.bits()),
                            "{} {isa} {m}x{n} by {rs}, {cs}, x by {step}, {conj}",
                            T::DTYPE
                        );
                    };
                    call();
                    call();
                    MODES.into_iter().for_each(|(_, mode)| with_mode(mode, call));
                }
            }
        }
    }
}

#[test]
fn known_small_products_are_right_in_every_mode() {
    known::<f32>();
    known::<f64>();
    known::<f16>();
    known::<bf16>();
    known::<Complex<f32>>();
    known::<Complex<f64>>();
}
