//! Eight lanes in an array, with the arithmetic of gemv-core, for targets that have a fused multiply-add.

use core::marker::PhantomData;

use gemv_core::{Accumulator, Element};

use super::ops::{Body, Ops};

const W: usize = 8;

/// The compiler makes vector instructions of the arrays.
pub(crate) struct Plain<T, R> {
    conj: bool,
    types: PhantomData<(T, R)>,
}

impl<T, R> Clone for Plain<T, R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, R> Copy for Plain<T, R> {}

impl<T: Element, R: Element<Acc = R> + Accumulator> Ops for Plain<T, R> {
    type T = T;
    type Acc = T::Acc;
    type Real = R;
    type Sum = Plain<R, R>;
    type Base = Self;
    type V = [T::Acc; W];
    type X = [T::Acc; W];
    const W: usize = W;
    const ROWS: usize = 2;
    const ROTATES: bool = false;
    const ALIGNS: bool = false;
    const INTERLEAVES: bool = false;

    #[inline(always)]
    unsafe fn new(conj: bool) -> Self {
        Plain { conj, types: PhantomData }
    }

    #[inline(never)]
    unsafe fn enter<B: Body>(self, body: B) {
        // SAFETY: the caller's.
        unsafe { body.run() }
    }

    #[inline(always)]
    unsafe fn zero(self) -> Self::V {
        [T::Acc::ZERO; W]
    }

    #[inline(always)]
    unsafe fn load(self, p: *const T) -> Self::V {
        // SAFETY: the caller's: p is good for W.
        core::array::from_fn(|i| unsafe { self.element(p.add(i)) })
    }

    #[inline(always)]
    unsafe fn load_part(self, p: *const T, lo: usize, hi: usize) -> Self::V {
        core::array::from_fn(|i| match (lo..hi).contains(&i) {
            // SAFETY: the caller's: p is good for lo..hi.
            true => unsafe { self.element(p.wrapping_add(i)) },
            false => T::Acc::ZERO,
        })
    }

    #[inline(always)]
    unsafe fn x(self, p: *const T::Acc) -> Self::X {
        // SAFETY: the caller's: p is good for W.
        core::array::from_fn(|i| unsafe { *p.add(i) })
    }

    #[inline(always)]
    unsafe fn x_part(self, p: *const T::Acc, lo: usize, hi: usize) -> Self::X {
        core::array::from_fn(|i| match (lo..hi).contains(&i) {
            // SAFETY: the caller's: p is good for lo..hi.
            true => unsafe { *p.wrapping_add(i) },
            false => T::Acc::ZERO,
        })
    }

    #[inline(always)]
    unsafe fn splat(self, x: T::Acc) -> Self::X {
        [x; W]
    }

    #[inline(always)]
    unsafe fn fma(self, a: Self::V, x: Self::X, acc: Self::V) -> Self::V {
        core::array::from_fn(|i| acc[i].fma(a[i], x[i]))
    }

    #[inline(always)]
    unsafe fn fma_part(
        self,
        a: Self::V,
        x: Self::X,
        acc: Self::V,
        (lo, hi): (usize, usize),
    ) -> Self::V {
        // No value of x leaves both parts of a pair as they are: lanes are left out by number.
        core::array::from_fn(|i| match (lo..hi).contains(&i) {
            true => acc[i].fma(a[i], x[i]),
            false => acc[i],
        })
    }

    #[inline(always)]
    unsafe fn add(self, a: Self::V, b: Self::V) -> Self::V {
        core::array::from_fn(|i| a[i].add(b[i]))
    }

    #[inline(always)]
    unsafe fn load_acc(self, p: *const T::Acc) -> Self::V {
        // SAFETY: the caller's: p is good for W.
        core::array::from_fn(|i| unsafe { *p.add(i) })
    }

    #[inline(always)]
    unsafe fn load_acc_part(self, p: *const T::Acc, lo: usize, hi: usize) -> Self::V {
        // SAFETY: the caller's: p is good for lo..hi.
        unsafe { self.x_part(p, lo, hi) }
    }

    #[inline(always)]
    unsafe fn store(self, v: Self::V, p: *mut T::Acc) {
        // SAFETY: the caller's: p is good for W.
        unsafe { self.store_part(v, p, 0, W) }
    }

    #[inline(always)]
    unsafe fn store_part(self, v: Self::V, p: *mut T::Acc, lo: usize, hi: usize) {
        for (i, v) in v.into_iter().enumerate().take(hi).skip(lo) {
            // SAFETY: the caller's: p is good for lo..hi.
            unsafe { *p.wrapping_add(i) = v }
        }
    }

    #[inline(always)]
    unsafe fn store_narrow(self, v: Self::V, p: *mut T) {
        for (i, v) in v.into_iter().enumerate() {
            // SAFETY: the caller's: p is good for W.
            unsafe { *p.add(i) = T::narrow(v) }
        }
    }

    #[inline(always)]
    unsafe fn merge(self, a: Self::V, b: Self::V, hi: usize) -> Self::V {
        core::array::from_fn(|i| if i < hi { b[i] } else { a[i] })
    }

    #[inline(always)]
    unsafe fn fold4(self, v: [Self::V; 4], out: *mut T::Acc) {
        for (r, v) in v.into_iter().enumerate() {
            // SAFETY: the caller's: out is good for four.
            unsafe { *out.add(r) = self.fold(v) }
        }
    }

    #[inline(always)]
    unsafe fn fold(self, v: Self::V) -> T::Acc {
        let four: [_; 4] = core::array::from_fn(|i| v[i].add(v[i + 4]));
        four[0].add(four[2]).add(four[1].add(four[3]))
    }
}

impl<T: Element, R> Plain<T, R> {
    /// # Safety
    /// `p` is good for one element.
    #[inline(always)]
    unsafe fn element(self, p: *const T) -> T::Acc {
        // SAFETY: the caller's.
        let v = unsafe { *p };
        if self.conj { v.conj().widen() } else { v.widen() }
    }
}
