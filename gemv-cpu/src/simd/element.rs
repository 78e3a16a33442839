//! Element types: the kernels of each on each instruction set.

use gemv_core::Element;
#[cfg(feature = "half")]
use gemv_core::half::{bf16, f16};
#[cfg(feature = "complex")]
use gemv_core::num_complex::Complex;

use super::entry::{EntryPoints, Of};
use super::isa::{Isa, Kind};
use super::ops::Ops;
#[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
use super::ordered::Ordered;
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
