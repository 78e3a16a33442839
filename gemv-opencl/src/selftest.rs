//! Small products whose bits change with every liberty that a compiler or a device may take: other
//! orders of additions, an fma in two roundings, subnormals flushed to zero, the wrong sign of zero.

use gemv_core::ndarray::{Array3, ArrayView3, Axis, s};
use gemv_core::{Accumulator, Dtype, Element, Job, Layout, Number, Times, reference};

/// The operands of one test.
pub(crate) struct Case<T: Element, V: Element> {
    /// The matrices as they lie in memory; see [`matrices`].
    a: Array3<T>,
    x: Array3<V>,
    y: Array3<V>,
    layout: Layout,
    alpha: V::Acc,
    beta: V::Acc,
    conj: bool,
}

/// Sizes of a test: matrices, their rows and columns, and right-hand sides of each.
pub(crate) type Sizes = [usize; 4];

impl<T: Element + Times<V>, V: Element> Case<T, V> {
    /// `plain` has alpha = 1 and beta = 0, so a sum's own sign of zero is seen; otherwise every part of the
    /// formula is used.
    pub(crate) fn new(layout: Layout, [batch, m, n, rhs]: Sizes, plain: bool) -> Case<T, V> {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        // Not zero, and below a half in magnitude: the product with the least number rounds to zero.
        let mut x = Array3::from_shape_simple_fn((batch, n, rhs), || {
            let (re, im) = (random.signed(), random.signed());
            V::narrow(V::Acc::from_parts(re, im))
        });
        // For two large products that cancel.
        if n > 1 {
            let first = x.slice(s![.., 0, ..]).to_owned();
            x.slice_mut(s![.., 1, ..]).assign(&first);
        }
        let least = least::<T>();
        let entry = |b: usize, i: usize, j: usize| {
            // By the signs of the first column's entry, so that every product is negative, or -0.
            let (x_re, x_im) = x[[b, j, 0]].widen().parts();
            let (re_sign, im_sign) = (-x_re.signum(), x_im.signum());
            let large = if T::DTYPE == Dtype::F16 { 32_768.0 } else { 1_048_576.0 };
            let (re, im) = match i % 5 {
                // What the others lose to them depends on the order, even in results of few bits.
                1 if n > 1 && j < 2 => (if j == 0 { large } else { -large }, 0.0),
                // Numbers in which every other order of additions and every contraction shows.
                0 | 1 => {
                    let mut part = || random.signed() * [1.0, 0.125, 16.0, 3.0][random.of(4)];
                    (part(), part())
                }
                // Subnormal numbers, with subnormal sums.
                2 => {
                    let mut part = || least * (1 + random.of(7)) as f64;
                    (part(), part())
                }
                // Products that round to -0.
                3 => (re_sign * least, im_sign * 0.0),
                // Products that are -0, in sums that are +0.
                _ => (re_sign * 0.0, im_sign * 0.0),
            };
            T::narrow(T::Acc::from_parts(re, im))
        };
        let a = matrices(layout, [batch, m, n], entry);
        let beta = if plain { (0.0, 0.0) } else { (0.75, -2.0) };
        let alpha = if plain { (1.0, 0.0) } else { (-1.5, 0.25) };
        let y = Array3::from_shape_simple_fn((batch, m, rhs), || match plain {
            // It must not be read.
            true => V::narrow(V::Acc::from_parts(f64::NAN, f64::NAN)),
            false => V::narrow(V::Acc::from_parts(random.signed(), random.signed())),
        });
        let acc = |(re, im)| V::Acc::from_parts(re, im);
        Case { a, x, y, layout, alpha: acc(alpha), beta: acc(beta), conj: !plain }
    }

    fn a(&self) -> ArrayView3<'_, T> {
        view(self.layout, &self.a)
    }

    /// What the device is to compute.
    pub(crate) fn job(&mut self) -> Job<'_> {
        let Case { a, x, y, layout, alpha, beta, conj } = self;
        Job {
            alpha: Number::new(*alpha),
            a: view(*layout, a).into(),
            conj: *conj,
            x: x.view().into(),
            beta: Number::new(*beta),
            y: y.view_mut().into(),
        }
    }

    /// What the reference computes.
    pub(crate) fn expected(&self) -> Array3<V> {
        let mut expected = self.y.clone();
        for (b, a) in self.a().axis_iter(Axis(0)).enumerate() {
            for c in 0..self.x.dim().2 {
                let (x, y) = (self.x.slice(s![b, .., c]), expected.slice_mut(s![b, .., c]));
                reference::gemv(self.alpha, a, self.conj, x, self.beta, y);
            }
        }
        expected
    }

    /// What is wrong with what the job has written, as the end of a sentence.
    pub(crate) fn fault(&self, expected: &Array3<V>) -> Option<String> {
        let wrong = |(got, expected): (&V, &V)| got.bits() != expected.bits();
        let at = self.y.iter().zip(expected).position(wrong)?;
        let (_, m, rhs) = self.y.dim();
        let (row, column) = (at / rhs % m, at % rhs);
        let value = |of: &Array3<V>| of.iter().nth(at).map(|v| format!("{v:?}"));
        let (got, expected) = (value(&self.y)?, value(expected)?);
        let what = match row % 5 {
            0 | 1 => "a sum of ordinary numbers",
            2 => "a sum of subnormal numbers",
            3 => "a sum of products that round to zero",
            _ => "a sum of zeros",
        };
        Some(format!("row {row} of column {column}, {what}, is {got} and not {expected}"))
    }
}

/// The least positive number of a type: a power of two whose half rounds to zero.
fn least<T: Element>() -> f64 {
    let is_zero = |v: f64| T::narrow(T::Acc::from_parts(v, 0.0)).widen().is_zero();
    let halves = std::iter::successors(Some(1.0), |v| Some(v / 2.0));
    halves.take_while(|v| !is_zero(*v)).last().expect("1 is a number of every type")
}

/// Matrices that lie in memory so that [`view`] has this layout.
fn matrices<T: Element>(
    layout: Layout,
    [batch, m, n]: [usize; 3],
    mut entry: impl FnMut(usize, usize, usize) -> T,
) -> Array3<T> {
    match layout {
        Layout::Row => Array3::from_shape_fn((batch, m, n), |(b, i, j)| entry(b, i, j)),
        Layout::Col => Array3::from_shape_fn((batch, n, m), |(b, j, i)| entry(b, i, j)),
        Layout::Strided => Array3::from_shape_fn((batch, m, 2 * n), |(b, i, j)| entry(b, i, j / 2)),
    }
}

fn view<T>(layout: Layout, a: &Array3<T>) -> ArrayView3<'_, T> {
    match layout {
        Layout::Row => a.view(),
        Layout::Col => a.view().permuted_axes([0, 2, 1]),
        Layout::Strided => a.slice(s![.., .., ..;2]),
    }
}

/// Marsaglia's xorshift: every process tests the same.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn of(&mut self, count: u64) -> usize {
        (self.next() >> 33) as usize % count as usize
    }

    /// Between a quarter and a half in magnitude, of either sign.
    fn signed(&mut self) -> f64 {
        let unit = (self.next() >> 12) as f64 / (1u64 << 52) as f64;
        let value = 0.25 + 0.2 * unit;
        if self.of(2) == 0 { value } else { -value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gemv_core::num_complex::Complex;
    use gemv_core::reference::ordered_sum;
    use gemv_core::{half, scale};

    type Sum<T> = fn(&[T], &[T]) -> <T as Element>::Acc;

    /// What is found where rows are summed like this.
    fn fault<T: Element>(layout: Layout, sizes: Sizes, plain: bool, sum: Sum<T>) -> Option<String> {
        let mut case = Case::<T, T>::new(layout, sizes, plain);
        let expected = case.expected();
        let Job { alpha, a, conj, x, beta, mut y } = case.job();
        let (alpha, beta): (T::Acc, T::Acc) = (alpha.get(), beta.get());
        let (a, x) = (a.view::<T>().unwrap(), x.view::<T>().unwrap());
        for ((b, i, c), y) in y.view_mut_with::<T>(|_| unreachable!()).indexed_iter_mut() {
            let row = a.slice(s![b, i, ..]).mapv(|v| if conj { v.conj() } else { v }).to_vec();
            let before = (beta != T::Acc::ZERO).then_some(*y);
            *y = scale(alpha, sum(&row, &x.slice(s![b, .., c]).to_vec()), beta, before);
        }
        case.fault(&expected)
    }

    fn in_order<T: Element>(a: &[T], x: &[T]) -> T::Acc {
        ordered_sum(a.len(), &|j, lane: T::Acc| lane.fma(a[j].widen(), x[j].widen()))
    }

    fn in_another_order<T: Element>(a: &[T], x: &[T]) -> T::Acc {
        a.iter().zip(x).fold(T::Acc::ZERO, |sum, (a, x)| sum.fma(a.widen(), x.widen()))
    }

    fn in_two_roundings<T: Element>(a: &[T], x: &[T]) -> T::Acc {
        ordered_sum(a.len(), &|j, lane: T::Acc| lane.add(a[j].widen().mul(x[j].widen())))
    }

    fn without_subnormals<T: Element>(a: &[T], x: &[T]) -> T::Acc {
        // Smaller numbers than the test's least and its sevenfold are not tested.
        let least = least::<T>();
        let kept = |v: f64| if v.abs() < 10.0 * least { 0.0 * v } else { v };
        let flushed = |v: T| {
            let (re, im) = v.widen().parts();
            T::Acc::from_parts(kept(re), kept(im))
        };
        ordered_sum(a.len(), &|j, lane: T::Acc| lane.fma(flushed(a[j]), x[j].widen()))
    }

    fn from_the_first_product<T: Element>(a: &[T], x: &[T]) -> T::Acc {
        ordered_sum(a.len(), &|j, lane: T::Acc| match j % 256 < 64 {
            true => a[j].widen().mul(x[j].widen()),
            false => lane.fma(a[j].widen(), x[j].widen()),
        })
    }

    fn with_one_more_zero<T: Element>(a: &[T], x: &[T]) -> T::Acc {
        in_order(a, x).add(T::Acc::ZERO)
    }

    fn of_type<T: Element>(faults: &[(&str, Sum<T>)]) {
        for layout in Layout::ALL {
            for (sizes, plain) in
                [([1, 19, 643, 1], false), ([2, 19, 256, 3], true), ([1, 9, 4, 2], true)]
            {
                assert_eq!(fault::<T>(layout, sizes, plain, in_order), None);
            }
            for (what, sum) in faults {
                let found = [([1, 19, 643, 1], false), ([1, 19, 256, 1], true)]
                    .map(|(sizes, plain)| fault::<T>(layout, sizes, plain, *sum));
                assert!(found.iter().any(Option::is_some), "{what} of {} is not found", T::DTYPE);
            }
        }
    }

    #[test]
    fn every_liberty_is_found_and_the_order_passes() {
        macro_rules! all {
            ($($t:ty),*) => { $( of_type::<$t>(&[
                ("another order", in_another_order),
                ("two roundings", in_two_roundings),
                ("no subnormals", without_subnormals),
                ("no zero at the beginning", from_the_first_product),
                ("a zero too many", with_one_more_zero),
            ]); )* };
        }
        all!(f32, f64, Complex<f32>, Complex<f64>);
        // Products of two are exact, and none is below the least number of the accumulator.
        macro_rules! short {
            ($($t:ty),*) => { $( of_type::<$t>(&[
                ("another order", in_another_order),
                ("no subnormals", without_subnormals),
                ("no zero at the beginning", from_the_first_product),
            ]); )* };
        }
        short!(half::f16, half::bf16);
    }

    #[test]
    fn a_fault_is_named() {
        let found = fault::<f32>(Layout::Row, [1, 19, 256, 1], true, from_the_first_product);
        let found = found.unwrap();
        assert_eq!(found, "row 4 of column 0, a sum of zeros, is -0.0 and not 0.0");
    }
}
