//! Lines of stride two: the algorithms see them through a wrapper.

use super::ops::{Body, Ops};

/// Forwards everything that does not depend on where elements are.
macro_rules! forward {
    ($O:ident) => {
        type T = $O::T;
        type Acc = $O::Acc;
        type Real = $O::Real;
        type Sum = $O::Sum;
        type Base = $O;
        type V = $O::V;
        type X = $O::X;
        const W: usize = $O::W;
        const ROWS: usize = $O::ROWS;
        const ROW_VECTORS: usize = $O::ROW_VECTORS;
        const PASS_LANES: usize = $O::PASS_LANES;
        const INTERLEAVES: bool = $O::INTERLEAVES;
        #[inline(always)]
        unsafe fn new(conj: bool) -> Self {
            // SAFETY: the caller's, as everywhere in this macro.
            StrideTwo { o: unsafe { $O::new(conj) } }
        }
        #[inline(always)]
        unsafe fn enter<B: Body>(self, body: B) {
            // SAFETY: the caller's.
            unsafe { self.o.enter(body) }
        }
        forward!(fn zero() -> Self::V);
        forward!(fn x(p: *const Self::Acc) -> Self::X);
        forward!(fn x_part(p: *const Self::Acc, lo: usize, hi: usize) -> Self::X);
        forward!(fn splat(x: Self::Acc) -> Self::X);
        forward!(fn fma(a: Self::V, x: Self::X, acc: Self::V) -> Self::V);
        forward!(fn fma_part(a: Self::V, x: Self::X, acc: Self::V, part: (usize, usize)) -> Self::V);
        forward!(fn add(a: Self::V, b: Self::V) -> Self::V);
        forward!(fn load_acc(p: *const Self::Acc) -> Self::V);
        forward!(fn load_acc_part(p: *const Self::Acc, lo: usize, hi: usize) -> Self::V);
        forward!(fn store(v: Self::V, p: *mut Self::Acc) -> ());
        forward!(fn store_part(v: Self::V, p: *mut Self::Acc, lo: usize, hi: usize) -> ());
        forward!(fn store_narrow(v: Self::V, p: *mut Self::T) -> ());
        forward!(fn merge(a: Self::V, b: Self::V, hi: usize) -> Self::V);
        forward!(fn fold4(v: [Self::V; 4], out: *mut Self::Acc) -> ());
        forward!(fn fold(v: Self::V) -> Self::Acc);
        forward!(fn prefetch(p: *const Self::T) -> ());
    };
    (fn $name:ident($($arg:ident: $t:ty),*) -> $r:ty) => {
        #[inline(always)]
        unsafe fn $name(self, $($arg: $t),*) -> $r {
            // SAFETY: the caller's.
            unsafe { self.o.$name($($arg),*) }
        }
    };
}

/// Lines of which every second element is taken.
#[derive(Clone, Copy)]
pub(crate) struct StrideTwo<O> {
    o: O,
}

impl<O: Ops> Ops for StrideTwo<O> {
    forward!(O);
    const STEP: isize = 2;
    const ROTATES: bool = false;
    #[inline(always)]
    unsafe fn load(self, p: *const Self::T) -> Self::V {
        // SAFETY: the caller's: p is good for elements 0, 2, ... 2W - 2.
        unsafe { self.o.load_even(p) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const Self::T, lo: usize, hi: usize) -> Self::V {
        // SAFETY: the caller's: p is good for elements 2 lo ..= 2 hi - 2.
        unsafe { self.o.load_even_part(p, lo, hi) }
    }
}
