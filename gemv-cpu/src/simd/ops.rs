//! What the algorithms need of an instruction set, for one element type.

use gemv_core::order::LANES;
use gemv_core::{Accumulator, Element};

/// The block for each of the numbers, as constants: an array that is indexed by a loop variable stays in memory.
macro_rules! each {
    ($k:ident in $($n:literal)*: $body:block) => { $({ const $k: usize = $n; $body })* };
}
pub(super) use each;

/// Work inside a function that is compiled for an instruction set.
pub(crate) trait Body {
    /// # Safety
    /// That of the kernel inside.
    unsafe fn run(self);
}

/// Vectors of `W` neighbouring lanes, for one element type on one instruction set.
///
/// A value of an implementing type exists only where the processor has the instructions. The callers of the unsafe
/// functions see to it that the pointers are good for the elements named.
pub(crate) trait Ops: Copy {
    /// Elements in memory.
    type T: Element<Acc = Self::Acc>;
    /// Their accumulator.
    type Acc: Accumulator;
    /// The parts of an accumulator: one or two.
    type Real: Element<Acc = Self::Real> + Accumulator;
    /// The same instruction set for sums of `Real`.
    type Sum: Ops<T = Self::Real, Acc = Self::Real, Real = Self::Real>;
    /// The same for lines whose elements are neighbours.
    type Base: Ops<T = Self::T, Acc = Self::Acc>;
    /// `W` accumulators, or elements widened to them.
    type V: Copy;
    /// `W` entries of x, prepared for `fma`.
    type X: Copy;

    /// Lanes of a vector; a power of two.
    const W: usize;
    /// Rows at a time in the row kernel: 4, 2 or 1.
    const ROWS: usize;
    /// Vectors of each row that the row kernel keeps in registers: 4, or all of them (8 for two rows, 16 for one).
    const ROW_VECTORS: usize = 4;
    /// Vectors of a segment's x that stay in registers where two rows are taken at a time with all their vectors. 0
    /// if rows are not taken so.
    const X_VECTORS: usize = 0;
    /// Vectors of x that stay in registers where no lane has more than one column.
    const SHORT_VECTORS: usize = 4;
    /// How far apart the elements of a line are.
    const STEP: isize = 1;

    /// # Safety
    /// The processor has the instruction set.
    unsafe fn new(conj: bool) -> Self;

    /// Runs the body in a function compiled for the instruction set. What has to be fast is inlined into it.
    unsafe fn enter<B: Body>(self, body: B);

    /// +0 in all lanes.
    unsafe fn zero(self) -> Self::V;
    /// Elements 0..W from `p`.
    unsafe fn load(self, p: *const Self::T) -> Self::V;
    /// Elements lo..hi from `p`, +0 for the others, which are not touched.
    unsafe fn load_part(self, p: *const Self::T, lo: usize, hi: usize) -> Self::V;
    /// Elements 0, 2, ... 2W - 2 from `p`; those between are not touched.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load_even(self, p: *const Self::T) -> Self::V {
        let _ = p;
        unreachable!("there are no kernels of stride two for it")
    }
    /// As [`load_even`](Self::load_even), of elements 2 lo ..= 2 hi - 2 alone; +0 for the others.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load_even_part(self, p: *const Self::T, lo: usize, hi: usize) -> Self::V {
        let _ = (p, lo, hi);
        unreachable!("there are no kernels of stride two for it")
    }
    /// Entries 0..W of x.
    unsafe fn x(self, p: *const Self::Acc) -> Self::X;
    /// Entries lo..hi of x. The others are not touched, and are -0: `fma` with an element of +0 then leaves the
    /// accumulator as it is, since (+0)(-0) + v = v for every v.
    unsafe fn x_part(self, p: *const Self::Acc, lo: usize, hi: usize) -> Self::X;
    /// One entry of x for all lanes.
    unsafe fn splat(self, x: Self::Acc) -> Self::X;
    /// `acc + a * x` by rules 2 and 7 of the order.
    unsafe fn fma(self, a: Self::V, x: Self::X, acc: Self::V) -> Self::V;
    /// `fma` after `load_part` and `x_part` of the same lanes.
    #[inline(always)]
    unsafe fn fma_part(
        self,
        a: Self::V,
        x: Self::X,
        acc: Self::V,
        part: (usize, usize),
    ) -> Self::V {
        let _ = part;
        // SAFETY: as for this function.
        unsafe { self.fma(a, x, acc) }
    }
    /// Entries 0..mid of x from `p`, and mid..W from `q`; the others are not touched. For [`X_VECTORS`](Self::X_VECTORS).
    #[inline(always)]
    unsafe fn x_from_two(self, p: *const Self::Acc, q: *const Self::Acc, mid: usize) -> Self::X {
        let _ = (p, q, mid);
        unreachable!("X_VECTORS says that it is not there")
    }
    /// `fma` with elements lo..hi from `p`. The others are not touched, and their lanes stay as they are, whatever x
    /// has there. For [`X_VECTORS`](Self::X_VECTORS).
    #[inline(always)]
    unsafe fn fma_masked(
        self,
        p: *const Self::T,
        x: Self::X,
        acc: Self::V,
        part: (usize, usize),
    ) -> Self::V {
        let _ = (p, x, acc, part);
        unreachable!("X_VECTORS says that it is not there")
    }
    unsafe fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// Accumulators 0..W from `p`, which is aligned to 64 bytes or not.
    unsafe fn load_acc(self, p: *const Self::Acc) -> Self::V;
    /// Accumulators lo..hi from `p`, any values for the others, which are not touched.
    unsafe fn load_acc_part(self, p: *const Self::Acc, lo: usize, hi: usize) -> Self::V;
    unsafe fn store(self, v: Self::V, p: *mut Self::Acc);
    /// Lanes lo..hi to their places from `p`; nothing else is touched.
    unsafe fn store_part(self, v: Self::V, p: *mut Self::Acc, lo: usize, hi: usize);
    /// The lanes as elements, each rounded once.
    unsafe fn store_narrow(self, v: Self::V, p: *mut Self::T);
    /// Combines two [`load_part`](Self::load_part)s that have no lane in common; those of `b` are below `hi`.
    unsafe fn merge(self, a: Self::V, b: Self::V, hi: usize) -> Self::V;
    /// Halves the `W` lanes of each of four vectors to one and stores the four sums.
    unsafe fn fold4(self, v: [Self::V; 4], out: *mut Self::Acc);
    /// Whether there is `fold_all`.
    const FOLD_ALL: bool = false;
    /// Halves the `W` lanes of each of 16 vectors to one and stores the sums.
    #[inline(always)]
    unsafe fn fold_all(self, v: [Self::V; 16], out: *mut Self::Acc) {
        let _ = (v, out);
        unreachable!("FOLD_ALL says that it is not there")
    }
    /// Halves the `W` lanes to one.
    unsafe fn fold(self, v: Self::V) -> Self::Acc;
    /// Prefetches the cache line of `p`, which need not be valid.
    #[inline(always)]
    unsafe fn prefetch(self, p: *const Self::T) {
        let _ = p;
    }

    /// Whether every number of columns has code of its own, which is long.
    const UNROLLS: bool = false;
    /// Whether several vectors are computed together.
    const INTERLEAVES: bool = true;
    /// Lanes at a time in the column kernel in memory: 4, 2 or 1. Each has four columns, whose entries of x take a
    /// register each.
    const PASS_LANES: usize = 1;
    /// Whether the row kernel rotates lanes for the sake of aligned loads.
    const ROTATES: bool = true;
    /// Whether the column kernel in memory starts with a partial vector for the sake of aligned loads.
    const ALIGNS: bool = true;
    /// Vectors of 64 lanes.
    const VECTORS: usize = LANES / Self::W;
}

/// An accumulator of any type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scalar([u64; 2]);

impl Scalar {
    pub(super) fn new<A: Accumulator>(v: A) -> Scalar {
        const { assert!(size_of::<A>() <= 16 && align_of::<A>() <= 8) };
        let mut scalar = Scalar([0; 2]);
        // SAFETY: an accumulator fits (asserted).
        unsafe { scalar.0.as_mut_ptr().cast::<A>().write(v) };
        scalar
    }

    /// # Safety
    /// It is made from an `A`.
    pub(super) unsafe fn get<A: Accumulator>(&self) -> A {
        // SAFETY: the caller's.
        unsafe { self.0.as_ptr().cast::<A>().read() }
    }
}
