//! Many right-hand sides and batches on every instruction set: each column has the bits of its own product.

use gemv_baselines as _; // linked for the rival
use gemv_core::half::{bf16, f16};
use gemv_core::ndarray::{Array3, Dimension, IntoDimension, Ix3};
use gemv_core::num_complex::Complex;
use gemv_core::{
    Accumulator, Backend, Desc, Dtype, Element, Job, Layout, Number, Params, Times, Window,
};
use gemv_testkit::Numbers;

/// Where the elements of an operand of these dimensions lie, and the length of the memory: axes in this order
/// from the closest neighbours on, with `gap` elements for each of the closest, and `back` for those that run
/// backwards.
fn place(
    dim: [usize; 3],
    order: [usize; 3],
    gap: usize,
    pad: usize,
    back: u64,
) -> (Window<(), Ix3>, usize) {
    let (mut strides, mut first, mut next) = ([0; 3], pad, gap);
    for axis in order {
        strides[axis] = next;
        next = next * dim[axis].max(1) + pad;
        if back >> axis & 1 == 1 && dim[axis] > 0 {
            first += strides[axis] * (dim[axis] - 1);
            strides[axis] = strides[axis].wrapping_neg();
        }
    }
    let (dim, strides) = (dim.into_dimension(), strides.into_dimension());
    (Window { memory: (), first, dim, strides }, next + 2 * pad + 1)
}

const ORDERS: [[usize; 3]; 4] = [[2, 1, 0], [1, 2, 0], [0, 2, 1], [1, 0, 2]];

/// Parameters that `rng` chooses: of the kernels for many, or of one for a single vector where those refuse.
fn params(cpu: &dyn Backend, rng: &mut Numbers, desc: &Desc) -> Params {
    let rows = [1, 16, 64, 300][rng.below(4)];
    let columns = [1, 4, 5, 16][rng.below(4)];
    let prefetch = [0, 512][rng.below(2)];
    // Few products are worth a second thread, unless the parameters say so.
    let grain = [1, 1 << 20][rng.below(2)];
    let shared = |p: Params| p.with("grain_kib", grain).with("grain_cold", grain);
    let narrow = shared(Params::new("gemm-narrow"));
    if rng.below(2) == 0 && cpu.fits(desc, &narrow).is_ok() {
        return narrow;
    }
    let tile = |p: Params| shared(p.with("rows", rows).with("tile_rhs", columns));
    let many = match desc.layout {
        Layout::Row => {
            let next = rng.below(2) as u32;
            tile(Params::new("gemm-row")).with("prefetch", prefetch).with("prefetch_next", next)
        }
        Layout::Col => tile(Params::new("gemm-col")).with("prefetch", prefetch),
        Layout::Strided => tile(Params::new("gemm-strided")),
    };
    match cpu.fits(desc, &many) {
        Ok(()) => many,
        Err(why) => {
            assert!(why.to_string().contains("is for several right-hand sides"), "{why}");
            let one = cpu.candidates(desc);
            one[rng.below(one.len())]
        }
    }
}

/// One product with operands at places that `rng` chooses, against the reference column by column.
fn check<T: Element + Times<V>, V: Element>(
    cpu: &dyn Backend,
    rng: &mut Numbers,
    (batch, m, n, columns): (usize, usize, usize, usize),
) {
    fn place<T: Element>(rng: &mut Numbers, dim: [usize; 3], shares: bool) -> Operand<T> {
        // Most often dense.
        let order = ORDERS[[0, 1, 0, 1, 0, 1, 2, 3][rng.below(8)]];
        let gap = [1, 1, 1, 1, 2, 3][rng.below(6)];
        let back = [0, 0, 0, 1, 2, 4, 7][rng.below(7)];
        let (mut place, len) = self::place(dim, order, gap, rng.below(4), back);
        if shares && rng.below(4) == 0 {
            if place.stride(0) < 0 {
                place.first -= place.stride(0).unsigned_abs() * (dim[0] - 1);
            }
            place.strides[0] = 0;
        }
        (place, rng.elements::<T>(len))
    }
    let a = place::<T>(rng, [batch, m, n], true);
    let x = place::<V>(rng, [batch, n, columns], true);
    let y = place::<V>(rng, [batch, m, columns], false);
    let factors =
        [(1.0, 0.0), (1.0, 1.0), (-0.5, 2.0), (2.0, 0.0), (0.0, 0.0), (0.0, 0.5), (1.0, 0.0)]
            [rng.below(7)];
    compare::<T, V>(cpu, rng, factors, a, x, y);
}

/// An operand: its place in a memory.
type Operand<T> = (Window<(), Ix3>, Vec<T>);

/// One product, against the reference column by column.
fn compare<T: Element + Times<V>, V: Element>(
    cpu: &dyn Backend,
    rng: &mut Numbers,
    (re, beta): (f64, f64),
    (pa, mut a): Operand<T>,
    (px, mut x): Operand<V>,
    (py, mut y): Operand<V>,
) {
    let ((batch, m, n), columns) = (pa.dim.into_pattern(), px.dim[2]);
    if rng.below(8) == 0 && !a.is_empty() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][rng.below(3)];
        let (i, j) = (rng.below(a.len()), rng.below(x.len()));
        a[i] = T::narrow(T::Acc::from_parts(odd, 1.0));
        x[j] = V::narrow(V::Acc::from_parts(1.0, odd));
    }
    if rng.below(6) == 0 {
        // Sums of -0, which become +0 where lanes are absent.
        a.fill(T::narrow(T::Acc::from_parts(-0.0, -0.0)));
    }
    let im = if rng.below(2) == 0 { 0.0 } else { 0.25 * re };
    let (alpha, beta) = (V::Acc::from_parts(re, im), V::Acc::from_parts(beta, 0.0));
    let conj = rng.below(2) == 0;
    let (a, x) = (pa.view(&a), px.view(&x));
    let mut want = py.view(&y).to_owned();
    gemv_testkit::gemm(alpha, a, conj, x, beta, want.view_mut());
    if beta == V::Acc::ZERO {
        // Must not be read.
        py.view_mut(&mut y).fill(V::narrow(V::Acc::from_parts(f64::NAN, f64::NAN)));
    }
    let before = y.clone();
    let mut to = py.view_mut(&mut y);
    let (factor_a, factor_y) = (Number::new(alpha), Number::new(beta));
    let (a_in, x_in, y_in) = (a.into(), x.into(), to.view_mut().into());
    let job = Job { alpha: factor_a, a: a_in, conj, x: x_in, beta: factor_y, y: y_in };
    let desc = job.desc();
    let params = params(cpu, rng, &desc);
    let prepared = cpu.prepare(&desc, &params).unwrap();
    cpu.product(&mut job.check().unwrap(), &prepared).unwrap();
    let got = py.view(&y);
    let what = format!(
        "{} {}*{} {batch} x {m} x {n} x {columns}, A {:?}, X {:?}, Y {:?}, {params}",
        cpu.device().arch,
        T::DTYPE,
        V::DTYPE,
        a.strides(),
        x.strides(),
        got.strides()
    );
    for ((at, got), want) in got.indexed_iter().zip(&want) {
        assert!(same(*got, *want), "{what}: {got:?}, not {want:?} at {at:?}");
    }
    let mut outside = vec![true; y.len()];
    py.view_mut(&mut outside).fill(false);
    for (k, outside) in outside.into_iter().enumerate() {
        assert!(!outside || y[k].bits() == before[k].bits(), "{what}: element {k} is not Y's");
    }
}

/// Equal bits; NaNs are equal.
fn same<T: Element>(a: T, b: T) -> bool {
    let ((ar, ai), (br, bi)) = (a.widen().parts(), b.widen().parts());
    let one = |a: f64, b: f64| a.is_nan() && b.is_nan() || a.to_bits() == b.to_bits();
    one(ar, br) && one(ai, bi)
}

/// The device with each instruction set of this machine.
fn cpus() -> impl Iterator<Item = std::sync::Arc<dyn Backend>> {
    gemv_cpu::isas().into_iter().map(|isa| gemv_cpu::open(Some(isa)).unwrap())
}

fn all<T: Element + Times<V>, V: Element>(seed: u64) {
    let rng = &mut Numbers::new(seed);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for cpu in cpus() {
        for columns in (1..=17).chain([31, 32, 33, 64]) {
            for _ in 0..12 {
                let batch = [1, 1, 1, 2, 3, 5][rng.below(6)];
                let m = [1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 33, 64, 65, 100][rng.below(14)];
                let n = [1, 2, 3, 5, 15, 16, 17, 33, 63, 64, 65, 127, 128, 200, 255, 256, 257, 600]
                    [rng.below(18)];
                if batch * m * n * columns > 400_000 {
                    continue;
                }
                pool.install(|| check::<T, V>(&*cpu, rng, (batch, m, n, columns)));
            }
        }
        // Empty operands. No product at all is no job.
        for dim in [(2, 0, 4, 5), (2, 3, 0, 5)] {
            check::<T, V>(&*cpu, rng, dim);
        }
    }
}

macro_rules! each_column_has_its_own_bits {
    ($($name:ident: $t:ty, $v:ty, $seed:literal;)*) => { $(
        #[test]
        fn $name() {
            all::<$t, $v>($seed);
        }
    )* };
}
each_column_has_its_own_bits! {
    f32_has_the_bits_of_its_columns: f32, f32, 1;
    f64_has_the_bits_of_its_columns: f64, f64, 2;
    f16_has_the_bits_of_its_columns: f16, f16, 3;
    bf16_has_the_bits_of_its_columns: bf16, bf16, 4;
    c32_has_the_bits_of_its_columns: Complex<f32>, Complex<f32>, 5;
    c64_has_the_bits_of_its_columns: Complex<f64>, Complex<f64>, 6;
    f16_with_vectors_of_f32_has_the_bits_of_its_columns: f16, f32, 7;
    bf16_with_vectors_of_f32_has_the_bits_of_its_columns: bf16, f32, 8;
    f32_with_vectors_of_f64_has_the_bits_of_its_columns: f32, f64, 9;
}

#[test]
fn small_products_of_a_batch_have_the_bits_of_their_columns() {
    let rng = &mut Numbers::new(77);
    for cpu in cpus() {
        for _ in 0..1500 {
            let (most_n, most_columns) = ([8, 20, 70][rng.below(3)], [4, 18][rng.below(2)]);
            let (m, n) = (1 + rng.below(20), 1 + rng.below(most_n));
            let dim = (1 + rng.below(4), m, n, 1 + rng.below(most_columns));
            check::<f32, f32>(&*cpu, rng, dim);
            check::<f64, f64>(&*cpu, rng, dim);
            check::<f16, f32>(&*cpu, rng, dim);
            check::<f32, f64>(&*cpu, rng, dim);
        }
        // Large enough that the next entry is fetched meanwhile.
        for (m, n, columns) in [(64, 64, 8), (200, 40, 17), (33, 64, 3), (17, 256, 9)] {
            for _ in 0..12 {
                check::<f32, f32>(&*cpu, rng, (3, m, n, columns));
            }
        }
    }
}

#[test]
fn narrow_matrices_have_the_bits_of_their_columns() {
    let rng = &mut Numbers::new(55);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for cpu in cpus() {
        for n in 1..=9 {
            for _ in 0..40 {
                // Blocks of 128 rows, whole ones and others.
                let m = [1, 7, 127, 128, 129, 256, 300, 1000][rng.below(8)];
                let dim = ([1, 1, 2][rng.below(3)], m, n, 2 + rng.below(16));
                pool.install(|| {
                    check::<f32, f32>(&*cpu, rng, dim);
                    check::<f64, f64>(&*cpu, rng, dim);
                });
            }
            check::<f16, f32>(&*cpu, rng, (1, 300, n, 3));
            check::<f32, f64>(&*cpu, rng, (1, 300, n, 3));
        }
    }
}

#[test]
fn long_rows_have_the_bits_of_their_columns() {
    let rng = &mut Numbers::new(99);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for cpu in cpus() {
        for n in [65_535, 65_536, 65_537, 70_000] {
            pool.install(|| {
                check::<f32, f32>(&*cpu, rng, (1, 3, n, 2));
                check::<f64, f64>(&*cpu, rng, (1, 1, n, 3));
                check::<f16, f16>(&*cpu, rng, (1, 2, n, 2));
                check::<bf16, f32>(&*cpu, rng, (1, 2, n, 1));
                check::<f32, f64>(&*cpu, rng, (1, 2, n, 2));
                check::<Complex<f32>, Complex<f32>>(&*cpu, rng, (1, 2, n, 2));
            });
        }
    }
}

/// Each thread packs X in several parts: of some segments each, for several blocks of rows. One thread does so too, and
/// several do where there are rows enough for each, since X is larger than the caches.
#[test]
fn rows_that_are_cut_into_segments_have_the_bits_of_their_columns() {
    let rng = &mut Numbers::new(100);
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let (one, four) = (pool(1), pool(4));
    for cpu in cpus() {
        for (pool, m, n, columns) in [
            (&four, 1, 70_000, 9),
            (&four, 7, 40_000, 16),
            (&one, 7, 40_000, 16),
            (&four, 17, 20_000, 17),
            (&four, 65, 10_000, 33),
        ] {
            pool.install(|| {
                check::<f32, f32>(&*cpu, rng, (1, m, n, columns));
                check::<f64, f64>(&*cpu, rng, (1, m, n, columns));
                check::<f16, f16>(&*cpu, rng, (1, m, n, columns));
                check::<f16, f32>(&*cpu, rng, (1, m, n, columns));
                check::<Complex<f64>, Complex<f64>>(&*cpu, rng, (1, m, n, columns));
            });
        }
    }
}

/// Matrices of few rows by rows whose X is larger than the caches: nothing is left to chance, neither the layout nor the kernel.
fn wide<T: Element + Times<T>>(cpu: &dyn Backend, rng: &mut Numbers, batch: usize) {
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let pools = [pool(1), pool(2), pool(4)];
    for (m, n, columns) in [
        (3, 200, 1400),
        (4, 255, 1100),
        (4, 256, 1100),
        (4, 257, 1100),
        (20, 8, 40_000),
        (17, 9000, 32),
        (19, 20_000, 16),
    ] {
        let dense = |rng: &mut Numbers, dim, order| {
            let (place, len) = place(dim, order, 1, 0, 0);
            (place, rng.elements::<T>(len))
        };
        let (a_at, a) = dense(rng, [batch, m, n], ORDERS[0]);
        let (mut x_at, x) = dense(rng, [batch, n, columns], ORDERS[batch % 2]);
        if batch > 2 {
            x_at.strides[0] = 0;
        }
        let (y_at, mut y) = dense(rng, [batch, m, columns], ORDERS[0]);
        let (a, x) = (a_at.view(&a), x_at.view(&x));
        let (alpha, beta) = (T::Acc::ONE, T::Acc::ZERO);
        let mut want = y_at.view(&y).to_owned();
        gemv_testkit::gemm(alpha, a, false, x, beta, want.view_mut());
        for kernel in ["gemm-row rows=48 tile_rhs=16 grain_kib=1", "gemm-narrow grain_kib=1"] {
            let params: Params = kernel.parse().unwrap();
            for pool in &pools {
                y.fill(T::narrow(T::Acc::from_parts(f64::NAN, f64::NAN)));
                let mut to = y_at.view_mut(&mut y);
                let (a, x, y) = (a.into(), x.into(), to.view_mut().into());
                let (alpha, beta) = (Number::new(alpha), Number::new(beta));
                let job = Job { alpha, a, conj: false, x, beta, y };
                let desc = job.desc();
                if cpu.fits(&desc, &params).is_err() {
                    continue;
                }
                let prepared = cpu.prepare(&desc, &params).unwrap();
                let mut job = job.check().unwrap();
                pool.install(|| cpu.product(&mut job, &prepared)).unwrap();
                let same = to.iter().zip(&want).all(|(got, want)| same(*got, *want));
                let threads = pool.current_num_threads();
                assert!(same, "{batch} x {m} x {n} x {columns}, {kernel}, {threads} threads");
            }
        }
    }
}

#[test]
fn wide_matrices_have_the_bits_of_their_columns() {
    let rng = &mut Numbers::new(101);
    for cpu in cpus() {
        wide::<f32>(&*cpu, rng, 1);
    }
    let cpu = cpus().next().unwrap();
    wide::<f64>(&*cpu, rng, 1);
    wide::<f16>(&*cpu, rng, 1);
    wide::<f32>(&*cpu, rng, 2);
    wide::<f32>(&*cpu, rng, 3);
}

/// A batch that is one matrix by rows, cut at every 256 columns: what the parts of a product over several devices are.
fn cut<T: Element + Times<V>, V: Element>(cpu: &dyn Backend, rng: &mut Numbers) {
    for (batch, m) in [(2, 1), (7, 3), (3, 15), (2, 16), (3, 33), (4, 50), (5, 100), (9, 300)] {
        let (pad, gap, n) = (rng.below(3), rng.below(3), 256);
        let place = |first, dim: [usize; 3], strides: [usize; 3]| Window {
            memory: (),
            first,
            dim: dim.into_dimension(),
            strides: strides.into_dimension(),
        };
        let row = batch * n + pad;
        let a = (place(pad, [batch, m, n], [n, row, 1]), rng.elements(pad + m * row));
        let x = (place(gap, [batch, n, 1], [n, 1, 1]), rng.elements(gap + batch * n));
        let ld = m + gap;
        let y = (place(pad, [batch, m, 1], [ld, 1, 1]), rng.elements(pad + batch * ld));
        let factors = [(1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (2.0, 0.0), (1.0, 1.0)][rng.below(5)];
        compare::<T, V>(cpu, rng, factors, a, x, y);
    }
}

#[test]
fn segments_of_one_matrix_have_the_bits_of_their_products() {
    let rng = &mut Numbers::new(33);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for cpu in cpus() {
        for _ in 0..4 {
            pool.install(|| {
                cut::<f32, f32>(&*cpu, rng);
                cut::<f64, f64>(&*cpu, rng);
                cut::<f16, f16>(&*cpu, rng);
                cut::<bf16, f32>(&*cpu, rng);
                cut::<f32, f64>(&*cpu, rng);
                cut::<Complex<f32>, Complex<f32>>(&*cpu, rng);
                cut::<Complex<f64>, Complex<f64>>(&*cpu, rng);
            });
        }
    }
}

/// The rival. Small whole numbers: every order of additions gives the same.
#[test]
fn matrixmultiply_multiplies_whole_numbers_exactly() {
    let fill = |dim, by: usize| {
        let mut at = by;
        Array3::from_shape_simple_fn(dim, || {
            at = (at * 31 + 7) % 1009;
            (at % 17) as f64 - 8.0
        })
    };
    let cpu = gemv_cpu::open(None).unwrap();
    for (batch, m, n, columns) in [(1, 37, 70, 5), (5, 8, 9, 1), (3, 1, 300, 4), (2, 3, 0, 2)] {
        let (a, x) = (fill((batch, m, n), 3), fill((batch, n, columns), 5));
        for (alpha, beta) in [(1.0, 0.0), (2.0, -1.0), (0.0, 0.5), (0.0, 0.0)] {
            let mut want = fill((batch, m, columns), 11);
            let mut got = want.clone();
            gemv_testkit::gemm(alpha, a.view(), false, x.view(), beta, want.view_mut());
            if beta == 0.0 {
                // Must not be read.
                got.fill(f64::NAN);
            }
            let (a, x, y) = (a.view().into(), x.view().into(), got.view_mut().into());
            let (factor, beta_in) = (Number::new(alpha), Number::new(beta));
            let job = Job { alpha: factor, a, conj: false, x, beta: beta_in, y };
            let desc = job.desc();
            let params = cpu.vendor(&desc).expect("it computes such a problem");
            assert!(!params.keeps_order());
            let prepared = cpu.prepare(&desc, &params).unwrap();
            cpu.product(&mut job.check().unwrap(), &prepared).unwrap();
            assert_eq!(got, want, "{batch} x {m} x {n} x {columns}, {alpha}, {beta}");
        }
    }
}

#[test]
fn matrixmultiply_is_for_real_numbers_and_several_columns_or_products() {
    let cpu = gemv_cpu::open(None).unwrap();
    let one = Desc::of(Dtype::F32, Layout::Row, (9, 9), 6);
    let many = Desc { rhs: 2, ..one };
    assert!(cpu.vendor(&many).is_some() && cpu.vendor(&Desc { batch: 2, ..one }).is_some());
    assert!(cpu.vendor(&one).is_none() && cpu.vendor(&many.of_type(Dtype::Bf16)).is_none());
}

#[test]
fn several_right_hand_sides_and_batches_have_kernels_of_their_own() {
    let cpu = gemv_cpu::open(None).unwrap();
    for layout in Layout::ALL {
        let one = Desc::of(Dtype::F32, layout, (100, 100), 6);
        for many in [Desc { rhs: 2, ..one }, Desc { batch: 2, ..one }] {
            for p in cpu.candidates(&many) {
                assert!(p.kernel().as_str().starts_with("gemm-"), "{p}");
                assert!(cpu.fits(&many, &p).is_ok() && cpu.fits(&one, &p).is_err(), "{p}");
            }
            // A loop over products is legal as well.
            assert!(cpu.candidates(&one).iter().all(|p| cpu.fits(&many, p).is_ok()));
        }
    }
}

#[test]
fn every_kernel_is_described_and_has_a_fingerprint_of_its_own() {
    let kernels = gemv_cpu::open(None).unwrap().kernels();
    assert!(kernels.len() > 5);
    for (i, kernel) in kernels.iter().enumerate() {
        assert!(kernel.about.ends_with('.'), "{}", kernel.name);
        for arg in kernel.args {
            assert!(arg.about.ends_with('.'), "{} {}", kernel.name, arg.name);
            assert_eq!(arg.check(arg.default), Ok(()), "{} {}", kernel.name, arg.name);
        }
        let others = &kernels[i + 1..];
        assert!(others.iter().all(|o| o.fingerprint != kernel.fingerprint), "{}", kernel.name);
    }
}
