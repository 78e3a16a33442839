//! Elements, matrices and comparisons that the checks share.

use gemv::half::{bf16, f16};
use gemv::ndarray::{Array1, Array2};
use gemv::num_complex::Complex;
use gemv::{Accumulator, Device, Element};

use crate::common::operand::{VARIANTS, Variant};
pub use crate::common::text;
use crate::common::{Check, elem, random, same};

/// What the element type itself has, as bits and extremes.
pub trait Raw: Element {
    /// The bits, those of NaN included.
    fn raw(self) -> u128;
    /// A quiet NaN with a payload.
    fn odd_nan() -> Self;
    /// log2 of the smallest subnormal.
    const LEAST: i32;
}

macro_rules! raw {
    ($t:ty, $nan:expr, $least:expr) => {
        impl Raw for $t {
            fn raw(self) -> u128 {
                self.to_bits().into()
            }
            fn odd_nan() -> Self {
                <$t>::from_bits($nan)
            }
            const LEAST: i32 = $least;
        }
    };
}
raw!(f32, 0xffc1_2345, -149);
raw!(f64, 0x7ff8_0000_dead_beef, -1074);
raw!(f16, 0xfe57, -24);
raw!(bf16, 0x7fd3, -133);

impl<F: Raw> Raw for Complex<F>
where
    Complex<F>: Element,
{
    fn raw(self) -> u128 {
        self.re.raw() << 64 | self.im.raw()
    }
    fn odd_nan() -> Self {
        Complex { re: F::odd_nan(), im: F::odd_nan() }
    }
    const LEAST: i32 = F::LEAST;
}

pub fn pow2(k: i32) -> f64 {
    // powi rounds below 2^-1022.
    if k < -1000 { 2f64.powi(k + 500) * 2f64.powi(-500) } else { 2f64.powi(k) }
}

pub fn real<T: Element>(v: f64) -> T {
    elem(v, 0.0)
}

/// The ways to hold a matrix that the checks here go through: by rows, by columns, strided.
pub fn forms() -> [Variant; 3] {
    let named = |name| *VARIANTS.iter().find(|v| v.name == name).expect("a variant");
    [VARIANTS[0], VARIANTS[1], named("columns2")]
}

/// One product of every form, from the host and resident, each compared with `want`.
pub fn expect<T: Element>(
    device: &Device,
    (alpha, a, x): (T::Acc, &Array2<T>, &[T]),
    (beta, y): (T::Acc, &[T]),
    want: &[T],
) -> Check {
    let x = Array1::from(x.to_vec());
    for form in forms() {
        let held = form.hold(a);
        let label = |e: String| format!("{} {:?} {e}", form.name, a.dim());
        let mut out = Array1::from(y.to_vec());
        device.gemv(alpha, &held.view(), &x, beta, &mut out).map_err(text)?;
        same(out.as_slice().expect("owned"), want).map_err(label)?;

        let resident = held.sub_view(device).map_err(text)?;
        let (x, mut out) = (
            device.vector(&x).map_err(text)?,
            device.vector(&Array1::from(y.to_vec())).map_err(text)?,
        );
        device.gemv(alpha, &resident, &x, beta, &mut out).map_err(text)?;
        let out = out.download().map_err(text)?;
        same(out.as_slice().expect("owned"), want).map_err(|e| label(format!("resident {e}")))?;
    }
    Ok(())
}

pub fn oracle<T: Element>(alpha: T::Acc, a: &Array2<T>, x: &[T], beta: T::Acc, y: &[T]) -> Vec<T> {
    let (x, mut y) = (Array1::from(x.to_vec()), Array1::from(y.to_vec()));
    gemv_testkit::gemv(alpha, a.view(), false, x.view(), beta, y.view_mut());
    y.to_vec()
}

pub fn some<T: Element>(m: usize, n: usize) -> (Array2<T>, Vec<T>) {
    let a = Array2::from_shape_fn((m, n), |(i, j)| random(5, i, j));
    (a, (0..n).map(|j| random(6, 0, j)).collect())
}

pub const SHAPES: [(usize, usize); 4] = [(3, 5), (66, 17), (2, 70), (5, 300)];

pub fn one<T: Element>() -> T::Acc {
    T::Acc::ONE
}

pub fn zero<T: Element>() -> T::Acc {
    T::Acc::ZERO
}
