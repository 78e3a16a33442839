//! Element types: the kernels of each on each instruction set.

#[cfg(feature = "half")]
use gemv_core::half::{bf16, f16};
#[cfg(feature = "complex")]
use gemv_core::num_complex::Complex;
use gemv_core::{Element, Times};

use super::entry::{EntryPoints, Of, Widen, promote};
use super::isa::{Isa, Kind};
use super::ops::Ops;
#[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
use super::ordered::{self, Ordered};
#[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
use super::portable::Plain;
#[cfg(target_arch = "x86_64")]
use super::{stride_two::StrideTwo, x86};

/// An element type with kernels in this program: f32, f64, and those of the features.
pub(crate) trait CpuElement: Element {
    #[cfg(target_arch = "x86_64")]
    type Avx512: Ops<T = Self, Acc = Self::Acc>;
    #[cfg(target_arch = "x86_64")]
    type Avx2: Ops<T = Self, Acc = Self::Acc>;
    #[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
    type Plain: Ops<T = Self, Acc = Self::Acc>;
    /// The kernels for lines whose elements are `step` apart, if there are any.
    fn kernels(isa: Isa, step: isize) -> Option<&'static EntryPoints>;
    /// The elements as accumulators, without a copy.
    fn as_acc(x: &[Self]) -> Option<&[Self::Acc]>;
    /// As [`as_acc`](Self::as_acc), to be written.
    fn as_acc_mut(y: &mut [Self]) -> Option<&mut [Self::Acc]>;
}

macro_rules! elements {
    ($($t:ty, $real:ty, $wide:ident, $narrow:ident, $step:ident, |$x:ident| $same:expr;)*) => { $(
        impl CpuElement for $t {
            #[cfg(target_arch = "x86_64")]
            type Avx512 = x86::$wide;
            #[cfg(target_arch = "x86_64")]
            type Avx2 = x86::$narrow;
            #[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
            type Plain = Plain<$t, $real>;
            #[inline]
            fn kernels(isa: Isa, step: isize) -> Option<&'static EntryPoints> {
                match (isa.kind(), step) {
                    #[cfg(target_arch = "x86_64")]
                    (Kind::Avx512, 1) => Some(Of::<x86::$wide>::ENTRY_POINTS),
                    #[cfg(target_arch = "x86_64")]
                    (Kind::Avx2, 1) => Some(Of::<x86::$narrow>::ENTRY_POINTS),
                    #[cfg(target_arch = "x86_64")]
                    (Kind::Avx512, 2) => elements!(@ $step x86::$wide),
                    #[cfg(target_arch = "x86_64")]
                    (Kind::Avx2, 2) => elements!(@ $step x86::$narrow),
                    #[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
                    (Kind::Plain, 1) => Some(Of::<Plain<$t, $real>>::ENTRY_POINTS),
                    #[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
                    (Kind::Plain, 1) => Some(Ordered::<$t, $real>::ENTRY_POINTS),
                    _ => None,
                }
            }
            #[inline(always)]
            fn as_acc($x: &[Self]) -> Option<&[Self::Acc]> {
                $same
            }
            #[inline(always)]
            fn as_acc_mut($x: &mut [Self]) -> Option<&mut [Self::Acc]> {
                $same
            }
        }
    )* };
    (@ one $path:path) => { None };
    (@ two $path:path) => { Some(Of::<StrideTwo<$path>>::ENTRY_POINTS) };
}
elements! {
    f32, f32, F32x16, F32x8, two, |x| Some(x);
    f64, f64, F64x8, F64x4, two, |x| Some(x);
}
#[cfg(feature = "half")]
elements! {
    f16, f32, F16x16, F16x8, one, |_x| None;
    bf16, f32, Bf16x16, Bf16x8, one, |_x| None;
}
#[cfg(feature = "complex")]
elements! {
    Complex<f32>, f32, C32x8, C32x4, one, |x| Some(x);
    Complex<f64>, f64, C64x4, C64x2, one, |x| Some(x);
}

/// What reads a matrix that is multiplied with vectors of another type or the same.
pub(crate) struct Reader {
    /// The kernels for the matrix; for copies of its lines, if it is `narrow`.
    pub(super) k: &'static EntryPoints,
    /// Copies elements of the matrix as accumulators.
    pub(super) widen: Widen,
    /// Whether its elements have fewer bits than the accumulators of their own type could take: no kernel
    /// reads them.
    pub(super) narrow: bool,
}

/// An element type of matrices that are multiplied with vectors of `V`.
///
/// f16 and bf16 are summed in f32, whatever the vectors' type is, by the same kernels. No kernel reads f32
/// and sums in f64: such lines are copied first.
pub(crate) trait CpuTimes<V: CpuElement>: CpuElement + Times<V> {
    /// What reads the matrix.
    fn reader(isa: Isa) -> Reader;
}

macro_rules! read_by_own_kernels {
    ($($t:ty: $($v:ty),*;)*) => { $($(
        impl CpuTimes<$v> for $t {
            fn reader(isa: Isa) -> Reader {
                let k = <$t>::kernels(isa, 1).expect("every type has kernels of stride one");
                Reader { k, widen: k.widen, narrow: false }
            }
        }
    )*)* };
}
read_by_own_kernels! {
    f32: f32;
    f64: f64;
}
#[cfg(feature = "half")]
read_by_own_kernels! {
    f16: f16, f32;
    bf16: bf16, f32;
}
#[cfg(feature = "complex")]
read_by_own_kernels! {
    Complex<f32>: Complex<f32>;
    Complex<f64>: Complex<f64>;
}

impl CpuTimes<f64> for f32 {
    fn reader(isa: Isa) -> Reader {
        let k = f64::kernels(isa, 1).expect("every type has kernels of stride one");
        let widen = match isa.kind() {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => promote::<x86::F64x8>,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => promote::<x86::F64x4>,
            #[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
            Kind::Plain => promote::<Plain<f64, f64>>,
            #[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
            Kind::Plain => ordered::promote,
        };
        Reader { k, widen, narrow: true }
    }
}
