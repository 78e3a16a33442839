//! Lines whose elements are not neighbours: the algorithms see them through these wrappers.

use super::ops::{Body, Ops};

/// Forwards everything that has nothing to do with where elements are.
macro_rules! forward {
    ($O:ident) => {
        type T = $O::T;
        type Acc = $O::Acc;
        type Real = $O::Real;
        type Sum = $O::Sum;
        type V = $O::V;
        type X = $O::X;
        const W: usize = $O::W;
        const NR: usize = $O::NR;
        #[inline(always)]
        fn sum(self) -> Self::Sum {
            self.o.sum()
        }
        #[inline(always)]
        unsafe fn enter<B: Body>(self, body: B) {
            // SAFETY: the caller's, as everywhere in this macro.
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
        forward!(fn store(v: Self::V, p: *mut Self::Acc) -> ());
        forward!(fn store_part(v: Self::V, p: *mut Self::Acc, count: usize) -> ());
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

/// Lines that run backwards: each chunk of 64 elements is read forwards from its last, and x is
/// packed the same way. The halving does not change under reversal of the lanes.
#[derive(Clone, Copy)]
pub(super) struct Reversed<O> {
    pub(super) o: O,
}

impl<O: Ops> Ops for Reversed<O> {
    forward!(O);
    const SHORT: bool = false;
    forward!(fn load(p: *const Self::T) -> Self::V);
    forward!(fn load_part(p: *const Self::T, lo: usize, hi: usize) -> Self::V);
    #[inline(always)]
    fn at(self, j: usize) -> isize {
        // Place k of the chunk is element 63 - k of it.
        (j & 63) as isize - 63 - (j & !63) as isize
    }
    #[inline(always)]
    fn part(self, first: usize, rem: usize) -> (usize, usize) {
        ((64 - rem).saturating_sub(first).min(Self::W), Self::W)
    }
}

/// Lines of which every second element is taken.
#[derive(Clone, Copy)]
pub(super) struct Second<O> {
    pub(super) o: O,
}

impl<O: Ops> Ops for Second<O> {
    forward!(O);
    const TURNS: bool = false;
    #[inline(always)]
    unsafe fn load(self, p: *const Self::T) -> Self::V {
        // SAFETY: the caller's: p is good for elements 0, 2, ... 2W - 2.
        unsafe { self.o.load_second(p) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const Self::T, lo: usize, hi: usize) -> Self::V {
        // SAFETY: the caller's: p is good for elements 2 lo ..= 2 hi - 2; W is at most 16.
        unsafe {
            let mut near = [<Self::T as Default>::default(); 16];
            for (i, near) in near.iter_mut().enumerate().take(hi).skip(lo) {
                *near = *p.wrapping_add(2 * i);
            }
            self.o.load_part(near.as_ptr(), lo, hi)
        }
    }
    #[inline(always)]
    fn at(self, j: usize) -> isize {
        2 * j as isize
    }
}
