//! The kernel for several right-hand sides of a matrix of few columns: a vector holds neighbouring rows, whatever the
//! strides are.

// Arrays of vectors are indexed together: the numbers say more than iterators would.
#![allow(clippy::needless_range_loop)]

use core::mem::MaybeUninit;

use gemv_core::Accumulator;

use super::ops::{Body, Ops, Scalar};

/// Columns of the widest matrix.
pub(crate) const NARROW: usize = 8;

/// Columns of Y at a time.
const PANEL: usize = 8;

/// Rows at a time: their elements of A and Y stay in the first-level cache. A multiple of every number of lanes.
const BLOCK: usize = 128;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Columns of a block, one after the other.
type Columns<T> = [[T; BLOCK]; PANEL];

/// Rows of a product with a matrix of few columns. Strides are in elements.
///
/// # Safety
/// The processor has the instruction set; a is good for m x n elements, x for n x `columns`, y for m x `columns`, which
/// nothing else uses; alpha is not 0.
pub(super) struct NarrowCall {
    pub(super) a: *const u8,
    pub(super) x: *const u8,
    pub(super) y: *mut u8,
    /// Elements between two rows and two columns.
    pub(super) a_strides: [isize; 2],
    pub(super) x_strides: [isize; 2],
    pub(super) y_strides: [isize; 2],
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) columns: usize,
    pub(super) alpha: Scalar,
    pub(super) beta: Scalar,
}

/// `Y = alpha A X + beta Y` for rows of at most [`NARROW`] columns, of numbers that are their own accumulators and not
/// pairs.
///
/// Rows are transposed in blocks, and so are those of Y; columns whose elements are neighbours are read and written in
/// place. Lanes without a column are +0 times +0, which is +0.
pub(super) struct Narrow<'a, O> {
    pub(super) o: O,
    pub(super) c: &'a NarrowCall,
}

impl<O: Ops> Body for Narrow<'_, O> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's.
        unsafe {
            match self.c.n {
                ..=3 => self.blocks::<3>(),
                4 => self.blocks::<4>(),
                _ => self.blocks::<NARROW>(),
            }
        }
    }
}

/// The entries of some columns of X, each in all lanes.
type Entries<O, const N: usize> = [[MaybeUninit<<O as Ops>::X>; N]; PANEL];

impl<O: Ops> Narrow<'_, O> {
    /// All rows, of at most `N` columns.
    #[inline(always)]
    unsafe fn blocks<const N: usize>(&self) {
        let Narrow { o, c } = *self;
        let ([a_row, a_column], [y_row, y_column]) = (c.a_strides, c.y_strides);
        let zero = O::T::default();
        let (mut a_block, mut y_block) = ([[zero; BLOCK]; NARROW], [[zero; BLOCK]; PANEL]);
        let mut xs: Entries<O, N> = [[const { MaybeUninit::uninit() }; N]; PANEL];
        let y_of = |i: usize, from: usize| {
            let y = c.y.cast::<O::T>().wrapping_offset(i as isize * y_row);
            y.wrapping_offset(from as isize * y_column)
        };
        // SAFETY: the caller's: a and y are good for these rows and columns, X for these columns.
        unsafe {
            let reads = c.beta.get::<O::Acc>() != O::Acc::ZERO;
            for i in (0..c.m).step_by(BLOCK) {
                let count = (c.m - i).min(BLOCK);
                let a = c.a.cast::<O::T>().wrapping_offset(i as isize * a_row);
                let direct = count == BLOCK && a_row == 1;
                if !direct {
                    let (strides, width) = (c.a_strides, c.n);
                    o.enter(Apart::<O> { p: a, strides, count, width, to: &mut a_block });
                }
                let columns = core::array::from_fn(|j| match direct && j < c.n {
                    true => a.wrapping_offset(j as isize * a_column),
                    false => a_block[j].as_ptr(),
                });
                for from in (0..c.columns).step_by(PANEL) {
                    let (width, strides) = ((c.columns - from).min(PANEL), c.y_strides);
                    if i == 0 || c.columns > PANEL {
                        self.entries(from, width, &mut xs);
                    }
                    let y = y_of(i, from);
                    let direct = count == BLOCK && y_row == 1;
                    if reads && !direct {
                        let (p, to) = (y.cast_const(), &mut y_block);
                        o.enter(Apart::<O> { p, strides, count, width, to });
                    }
                    let out: [*mut O::Acc; PANEL] = core::array::from_fn(|w| match direct {
                        true => y.wrapping_offset(w as isize * y_column).cast(),
                        false => y_block[w].as_mut_ptr().cast(),
                    });
                    let len = count.next_multiple_of(O::W);
                    // Rows of A and Y that are transposed are read in bursts: between them, those of the next block are
                    // fetched.
                    let next = |p: *const O::T, [row, column]: [isize; 2], width: usize| {
                        let dense = column == 1 && row == width as isize;
                        (p.wrapping_offset(BLOCK as isize * row), if dense { width } else { 0 })
                    };
                    let next = [
                        next(a, c.a_strides, if from == 0 { c.n } else { 0 }),
                        next(y.cast_const(), strides, if reads { width } else { 0 }),
                    ];
                    self.sums(&columns, &xs[..width], &out, len, next, reads);
                    if !direct {
                        o.enter(Together::<O> { from: &y_block, p: y, strides, count, width });
                    }
                }
            }
        }
    }

    /// Columns `from .. from + width` of X. Entries that are not there are +0.
    ///
    /// # Safety
    /// X has these columns.
    #[inline(always)]
    unsafe fn entries<const N: usize>(&self, from: usize, width: usize, xs: &mut Entries<O, N>) {
        let Narrow { o, c } = *self;
        let [row, column] = c.x_strides;
        for (w, xs) in xs.iter_mut().enumerate().take(width) {
            let x = c.x.cast::<O::Acc>().wrapping_offset((from + w) as isize * column);
            for (j, entry) in xs.iter_mut().enumerate() {
                // SAFETY: the caller's.
                unsafe {
                    entry.write(o.splat(match j < c.n {
                        true => *x.wrapping_offset(j as isize * row),
                        false => O::Acc::ZERO,
                    }));
                }
            }
        }
    }

    /// `len` rows of some columns of Y. Meanwhile fetches what is `next`: rows of so many elements.
    ///
    /// # Safety
    /// The columns and `out` are good for `len` elements, a multiple of the lanes; `xs` are written.
    #[inline(always)]
    unsafe fn sums<const N: usize>(
        &self,
        columns: &[*const O::T; NARROW],
        xs: &[[MaybeUninit<O::X>; N]],
        out: &[*mut O::Acc; PANEL],
        len: usize,
        next: [(*const O::T, usize); 2],
        reads: bool,
    ) {
        let Narrow { o, c } = *self;
        // A product by itself is one that is added to -0, which keeps its sign.
        let minus = [O::Acc::from_parts(-0.0, -0.0); BLOCK];
        // SAFETY: the caller's.
        unsafe {
            let [alpha, beta] = [c.alpha, c.beta].map(|f: Scalar| o.splat(f.get::<O::Acc>()));
            let minus = o.load_acc(minus.as_ptr());
            for i in (0..len).step_by(O::W) {
                for (p, width) in next {
                    let p = p.wrapping_add(i * width);
                    for at in (0..O::W * width * size_of::<O::T>()).step_by(LINE) {
                        o.prefetch(p.wrapping_byte_add(at));
                    }
                }
                let a: [O::V; N] = core::array::from_fn(|j| o.load(columns[j].wrapping_add(i)));
                for (xs, out) in xs.iter().zip(out) {
                    let out = out.wrapping_add(i);
                    let mut lanes = [o.zero(); N];
                    for j in 0..N {
                        lanes[j] = o.fma(a[j], xs[j].assume_init(), lanes[j]);
                    }
                    for h in [4, 2, 1] {
                        for l in 0..N.saturating_sub(h).min(h) {
                            lanes[l] = o.add(lanes[l], lanes[l + h]);
                        }
                    }
                    // For the absent lanes.
                    let sum = o.add(lanes[0], o.zero());
                    let old = match reads {
                        true => o.fma(o.load_acc(out), beta, minus),
                        false => minus,
                    };
                    o.store(o.fma(sum, alpha, old), out);
                }
            }
        }
    }
}

/// Rows to columns.
struct Apart<'a, O: Ops> {
    p: *const O::T,
    /// Elements between two rows and two columns.
    strides: [isize; 2],
    count: usize,
    width: usize,
    to: &'a mut Columns<O::T>,
}

/// Columns to rows.
struct Together<'a, O: Ops> {
    from: &'a Columns<O::T>,
    p: *mut O::T,
    strides: [isize; 2],
    count: usize,
    width: usize,
}

/// A call for rows that follow each other without gaps, with their number of columns as a constant: the compiler takes
/// whole vectors and shuffles them. True if there is one.
macro_rules! dense {
    ($width:expr, $strides:expr, $f:ident $args:tt, $($n:literal)*) => {
        match $width {
            $($n if $strides == [$n, 1] => {
                $f::<O::T, $n> $args;
                true
            })*
            _ => false,
        }
    };
}

impl<O: Ops> Body for Apart<'_, O> {
    #[inline(always)]
    unsafe fn run(self) {
        let Apart { p, strides, count, width, to } = self;
        // SAFETY: the caller's: p is good for these rows and columns.
        unsafe {
            if dense!(width, strides, apart(p, count, to), 2 3 4 5 6 7 8) {
                return;
            }
            let [rs, cs] = strides;
            for (j, to) in to.iter_mut().enumerate().take(width) {
                let column = p.wrapping_offset(j as isize * cs);
                for (i, to) in to.iter_mut().enumerate().take(count) {
                    *to = *column.wrapping_offset(i as isize * rs);
                }
            }
        }
    }
}

impl<O: Ops> Body for Together<'_, O> {
    #[inline(always)]
    unsafe fn run(self) {
        let Together { from, p, strides, count, width } = self;
        // SAFETY: the caller's: p is good for these rows and columns.
        unsafe {
            if dense!(width, strides, together(from, p, count), 2 3 4 5 6 7 8) {
                return;
            }
            let [rs, cs] = strides;
            for (j, from) in from.iter().enumerate().take(width) {
                let column = p.wrapping_offset(j as isize * cs);
                for (i, from) in from.iter().enumerate().take(count) {
                    *column.wrapping_offset(i as isize * rs) = *from;
                }
            }
        }
    }
}

// References as parameters of functions: so the compiler knows that they are apart from `p`.

/// # Safety
/// p is good for `count` rows of `N` elements.
#[inline(always)]
unsafe fn apart<T: Copy, const N: usize>(p: *const T, count: usize, to: &mut Columns<T>) {
    for i in 0..count.min(BLOCK) {
        for j in 0..N {
            // SAFETY: the caller's.
            to[j][i] = unsafe { *p.add(i * N + j) };
        }
    }
}

/// # Safety
/// p is good for `count` rows of `N` elements, which nothing else uses.
#[inline(always)]
unsafe fn together<T: Copy, const N: usize>(from: &Columns<T>, p: *mut T, count: usize) {
    for i in 0..count.min(BLOCK) {
        for j in 0..N {
            // SAFETY: the caller's.
            unsafe { *p.add(i * N + j) = from[j][i] };
        }
    }
}
