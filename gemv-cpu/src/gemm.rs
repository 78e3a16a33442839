//! Products with several right-hand sides, and batches, shared by the threads of rayon's pool.

use gemv_core::Accumulator;
use gemv_core::ndarray::{ArrayView3, ArrayViewMut3, Axis};
use gemv_core::order::SEGMENT;

use crate::run::{LEAST, Work, sharing, without_a};
use crate::simd::{CpuElement, CpuTimes, Gemm, GemmPlan, Isa, Panel};

/// `Y = alpha A X + beta Y` for each entry of a batch, on several threads if each has at least `grain` KiB of the
/// matrices.
///
/// # Panics
/// If the shapes do not fit.
#[expect(clippy::too_many_arguments, reason = "a product has them")]
pub(crate) fn gemm<T: CpuTimes<V>, V: CpuElement>(
    isa: Isa,
    plan: GemmPlan,
    alpha: V::Acc,
    a: ArrayView3<'_, T>,
    conj: bool,
    x: ArrayView3<'_, V>,
    beta: V::Acc,
    mut y: ArrayViewMut3<'_, V>,
    grain: usize,
) {
    let ((batch, m, n), columns) = (a.dim(), x.dim().2);
    assert!(x.dim() == (batch, n, columns) && y.dim() == (batch, m, columns));
    if y.is_empty() {
        return;
    }
    if alpha == V::Acc::ZERO || n == 0 {
        return y.lanes_mut(Axis(1)).into_iter().for_each(|y| without_a(alpha, beta, y));
    }
    share(&Gemm::new(isa, plan, alpha, a, conj, x, beta, y), grain);
}

/// Columns of X that cost about as much as to read the matrix.
const FREE: usize = 8;

fn share(g: &Gemm<'_>, grain: usize) {
    let ((batch, m, n, columns), element) = (g.dim(), g.element());
    let bytes = m * n * element;
    let kib = (batch * bytes * columns.div_ceil(FREE)) >> 10;
    // The cheap test first: most calls are small.
    let tasks = match kib < 2 * grain {
        true => 1,
        false => rayon::current_num_threads().min(kib / grain.max(1)),
    };
    if tasks <= 1 {
        return g.panel((0, batch), |mut all| all.run());
    }
    // Entries one after the other, each on all threads, if they are few or large.
    if batch >= 4 * tasks && bytes >> 10 < 8 * grain {
        let least = (LEAST / bytes).max(1);
        return g.panel((0, batch), |all| sharing(Entries(all), tasks, least));
    }
    let count = n.div_ceil(SEGMENT);
    // Rows if there are enough of them: then nothing is left to be done afterwards. Else segments.
    let segments = m < tasks * if g.by_rows() { 16 } else { 256 } && count >= tasks;
    for b in 0..batch {
        if segments {
            let least = LEAST.div_ceil(m * SEGMENT * element);
            g.by_segments(b, |all| sharing(Segments(all), tasks, least));
        } else {
            let least = (LEAST / (n * element)).next_multiple_of(UNIT).max(UNIT);
            g.panel((b, b + 1), |all| sharing(Rows(all), tasks, least));
        }
    }
}

/// Rows are cut at multiples of this number.
const UNIT: usize = 16;

/// Entries of a batch.
struct Entries<'a>(Panel<'a>);

impl Work for Entries<'_> {
    fn len(&self) -> usize {
        self.0.len().0
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let (first, second) = self.0.split_entries(at);
        (Entries(first), Entries(second))
    }

    fn run(&mut self) {
        self.0.run();
    }
}

/// Rows of one entry.
struct Rows<'a>(Panel<'a>);

impl Work for Rows<'_> {
    fn len(&self) -> usize {
        self.0.len().1
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let at = at.next_multiple_of(UNIT).min(self.len());
        let (first, second) = self.0.split_rows(at);
        (Rows(first), Rows(second))
    }

    fn run(&mut self) {
        self.0.run();
    }
}

/// Segments of one entry.
struct Segments<'a>(Panel<'a>);

impl Work for Segments<'_> {
    fn len(&self) -> usize {
        self.0.len().2
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let (first, second) = self.0.split_segments(at);
        (Segments(first), Segments(second))
    }

    fn run(&mut self) {
        self.0.run();
    }
}

#[cfg(test)]
mod tests {
    use gemv_core::half::{bf16, f16};
    use gemv_core::ndarray::{Axis, IntoDimension, Ix3, s};
    use gemv_core::num_complex::Complex;
    use gemv_core::{Element, Window, reference};
    use gemv_testkit::Numbers;

    use super::*;

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

    /// One product with operands at places that `rng` chooses, against the reference column by column.
    fn check<T: CpuTimes<V>, V: CpuElement>(
        isa: Isa,
        rng: &mut Numbers,
        (batch, m, n, columns): (usize, usize, usize, usize),
    ) {
        fn place<T: Element>(
            rng: &mut Numbers,
            dim: [usize; 3],
            shares: bool,
        ) -> (Window<(), Ix3>, Vec<T>) {
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
        let (pa, mut a) = place::<T>(rng, [batch, m, n], true);
        let (px, mut x) = place::<V>(rng, [batch, n, columns], true);
        let (py, mut y) = place::<V>(rng, [batch, m, columns], false);
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
        let (re, beta) =
            [(1.0, 0.0), (1.0, 1.0), (-0.5, 2.0), (2.0, 0.0), (0.0, 0.0), (0.0, 0.5), (1.0, 0.0)]
                [rng.below(7)];
        let im = if rng.below(2) == 0 { 0.0 } else { 0.25 * re };
        let (alpha, beta) = (V::Acc::from_parts(re, im), V::Acc::from_parts(beta, 0.0));
        let conj = rng.below(2) == 0;
        let (a, x) = (pa.view(&a), px.view(&x));
        let mut want = py.view(&y).to_owned();
        for b in 0..batch {
            for c in 0..columns {
                let (a, x) = (a.index_axis(Axis(0), b), x.slice(s![b, .., c]));
                reference::gemv(alpha, a, conj, x, beta, want.slice_mut(s![b, .., c]));
            }
        }
        if beta == V::Acc::ZERO {
            // Must not be read.
            py.view_mut(&mut y).fill(V::narrow(V::Acc::from_parts(f64::NAN, f64::NAN)));
        }
        let plan = GemmPlan {
            rows: [1, 16, 64, 300][rng.below(4)],
            columns: [1, 4, 5, 16][rng.below(4)],
            prefetch: [0, 512][rng.below(2)],
            narrow: rng.below(2) == 0,
        };
        let grain = [1, 1 << 20][rng.below(2)];
        let before = y.clone();
        gemm(isa, plan, alpha, a, conj, x, beta, py.view_mut(&mut y), grain);
        let got = py.view(&y);
        let what = format!(
            "{isa:?} {}*{} {batch} x {m} x {n} x {columns}, A {:?}, X {:?}, Y {:?}, {plan:?}, {grain}",
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

    fn all<T: CpuTimes<V>, V: CpuElement>(seed: u64) {
        let rng = &mut Numbers::new(seed);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for isa in Isa::all() {
            for columns in (1..=17).chain([31, 32, 33, 64]) {
                for _ in 0..12 {
                    let batch = [1, 1, 1, 2, 3, 5][rng.below(6)];
                    let m = [1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 33, 64, 65, 100][rng.below(14)];
                    let n =
                        [1, 2, 3, 5, 15, 16, 17, 33, 63, 64, 65, 127, 128, 200, 255, 256, 257, 600]
                            [rng.below(18)];
                    if batch * m * n * columns > 400_000 {
                        continue;
                    }
                    pool.install(|| check::<T, V>(isa, rng, (batch, m, n, columns)));
                }
            }
            // Empty operands.
            for dim in [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0)] {
                check::<T, V>(isa, rng, dim);
            }
        }
    }

    #[test]
    fn f32_has_the_bits_of_its_columns() {
        all::<f32, f32>(1);
    }

    #[test]
    fn f64_has_the_bits_of_its_columns() {
        all::<f64, f64>(2);
    }

    #[test]
    fn f16_has_the_bits_of_its_columns() {
        all::<f16, f16>(3);
    }

    #[test]
    fn bf16_has_the_bits_of_its_columns() {
        all::<bf16, bf16>(4);
    }

    #[test]
    fn c32_has_the_bits_of_its_columns() {
        all::<Complex<f32>, Complex<f32>>(5);
    }

    #[test]
    fn c64_has_the_bits_of_its_columns() {
        all::<Complex<f64>, Complex<f64>>(6);
    }

    #[test]
    fn f16_with_vectors_of_f32_has_the_bits_of_its_columns() {
        all::<f16, f32>(7);
    }

    #[test]
    fn bf16_with_vectors_of_f32_has_the_bits_of_its_columns() {
        all::<bf16, f32>(8);
    }

    #[test]
    fn f32_with_vectors_of_f64_has_the_bits_of_its_columns() {
        all::<f32, f64>(9);
    }

    #[test]
    fn small_products_of_a_batch_have_the_bits_of_their_columns() {
        let rng = &mut Numbers::new(77);
        for isa in Isa::all() {
            for _ in 0..1500 {
                let (most_n, most_columns) = ([8, 20, 70][rng.below(3)], [4, 18][rng.below(2)]);
                let (m, n) = (1 + rng.below(20), 1 + rng.below(most_n));
                let dim = (1 + rng.below(4), m, n, 1 + rng.below(most_columns));
                check::<f32, f32>(isa, rng, dim);
                check::<f64, f64>(isa, rng, dim);
                check::<f16, f32>(isa, rng, dim);
                check::<f32, f64>(isa, rng, dim);
            }
            // Large enough that the next entry is fetched meanwhile.
            for (m, n, columns) in [(64, 64, 8), (200, 40, 17), (33, 64, 3), (17, 256, 9)] {
                for _ in 0..12 {
                    check::<f32, f32>(isa, rng, (3, m, n, columns));
                }
            }
        }
    }

    #[test]
    fn narrow_matrices_have_the_bits_of_their_columns() {
        let rng = &mut Numbers::new(55);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for isa in Isa::all() {
            for n in 1..=9 {
                for _ in 0..40 {
                    // Blocks of 128 rows, whole ones and others.
                    let m = [1, 7, 127, 128, 129, 256, 300, 1000][rng.below(8)];
                    let dim = ([1, 1, 2][rng.below(3)], m, n, 2 + rng.below(16));
                    pool.install(|| {
                        check::<f32, f32>(isa, rng, dim);
                        check::<f64, f64>(isa, rng, dim);
                    });
                }
                check::<f16, f32>(isa, rng, (1, 300, n, 3));
                check::<f32, f64>(isa, rng, (1, 300, n, 3));
            }
        }
    }

    #[test]
    fn long_rows_have_the_bits_of_their_columns() {
        let rng = &mut Numbers::new(99);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for isa in Isa::all() {
            for n in [65_535, 65_536, 65_537, 70_000] {
                pool.install(|| {
                    check::<f32, f32>(isa, rng, (1, 3, n, 2));
                    check::<f64, f64>(isa, rng, (1, 1, n, 3));
                    check::<f16, f16>(isa, rng, (1, 2, n, 2));
                    check::<bf16, f32>(isa, rng, (1, 2, n, 1));
                    check::<f32, f64>(isa, rng, (1, 2, n, 2));
                    check::<Complex<f32>, Complex<f32>>(isa, rng, (1, 2, n, 2));
                });
            }
        }
    }
}
