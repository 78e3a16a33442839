//! Packed rows, compiled for each instruction set: decoded in registers and multiplied there, or decoded to memory.

use std::marker::PhantomData;

use gemv_core::Format;
use gemv_core::gemv_packed::{Blocks, with_blocks};
use gemv_core::order::SEGMENT;

use super::element::CpuElement;
use super::isa::{Isa, Kind};
use super::ops::Body;
use super::plan::spare_lines;
use super::sums;
#[cfg(target_arch = "x86_64")]
use super::{ops::Ops, packed512};

/// The elements of blocks, in order; `to` has as many places.
pub(crate) fn decode(isa: Isa, format: Format, blocks: &[u8], to: &mut [f32]) {
    with_blocks!(format, B => enter(isa, Decode::<'_, B> { blocks, to, of: PhantomData }));
}

#[inline(always)]
fn enter(isa: Isa, body: impl Body) {
    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` exists only where the processor has the instructions, and with AVX-512 it has AVX2; the body is
        // safe code.
        Kind::Avx512 | Kind::Avx2 => unsafe { <f32 as CpuElement>::Avx2::new(false).enter(body) },
        // SAFETY: the body is safe code.
        Kind::Plain => unsafe { body.run() },
    }
}

struct Decode<'a, B> {
    blocks: &'a [u8],
    to: &'a mut [f32],
    of: PhantomData<B>,
}

impl<B: Blocks> Body for Decode<'_, B> {
    #[inline(always)]
    unsafe fn run(self) {
        let Decode { blocks, to, .. } = self;
        for (block, to) in blocks.chunks_exact(B::BYTES).zip(to.chunks_exact_mut(B::LEN)) {
            B::decode(block, to);
        }
    }
}

/// Kernels that decode in registers.
#[derive(Clone, Copy)]
pub(crate) struct Fused {
    isa: Isa,
}

/// Rows that [`Fused::sums`] computes at a time, so that what it reads of several columns of X is in the first cache.
pub(crate) const ROWS: usize = 16;

/// The sums of [`ROWS`] rows with four columns of X.
const SUMS: usize = 4 * ROWS;

impl Fused {
    /// Those of the instruction set, if it has any.
    pub(crate) fn of(isa: Isa) -> Option<Fused> {
        let there = match isa.kind() {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => true,
            _ => false,
        };
        there.then_some(Fused { isa })
    }

    /// Numbers of scratch for rows of n columns.
    pub(crate) fn scratch(n: usize) -> usize {
        let segments = n.div_ceil(SEGMENT);
        SUMS * (segments + spare_lines(segments))
    }

    /// The sums of rows of `row` bytes with one, two or four columns of X, each of n entries, one after the other: of row
    /// i and column c in place i * columns + c. There are [`ROWS`] rows at most.
    pub(crate) fn sums(
        self,
        format: Format,
        (rows, row): (&[u8], usize),
        (x, columns): (&[f32], usize),
        scratch: &mut [f32],
    ) -> [f32; SUMS] {
        let n = x.len() / columns;
        assert_eq!(Ok(row), format.row_bytes(n));
        let mut to = [0.0; SUMS];
        if n == 0 {
            return to;
        }
        assert!(rows.len().is_multiple_of(row) && rows.len() / row <= ROWS);
        assert!(scratch.len() >= Fused::scratch(n));
        self.segments(format, (rows, row), (x, columns), scratch);
        let count = n.div_ceil(SEGMENT);
        let (first, spare) = scratch.split_at_mut(SUMS * count);
        if count == 1 {
            // Not added to +0, which would turn -0 into +0.
            to.copy_from_slice(first);
            return to;
        }
        let k = f32::kernels(self.isa, 1).expect("every type has kernels of stride one");
        let (first, spare) = (first.as_ptr().cast(), spare.as_mut_ptr().cast());
        let m = rows.len() / row * columns;
        // SAFETY: the lengths were compared: there are `count` lines of `SUMS`, and spare ones as they are asked for.
        unsafe { sums::levels(k, first, m, SUMS, count, spare, to.as_mut_ptr().cast()) };
        to
    }

    /// The sums of all segments, those of a segment [`SUMS`] apart. The lengths were compared.
    #[inline(always)]
    fn segments(
        self,
        format: Format,
        (rows, row): (&[u8], usize),
        (x, columns): (&[f32], usize),
        out: &mut [f32],
    ) {
        match self.isa.kind() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` exists only where the processor has the instructions; the lengths were compared.
            Kind::Avx512 => unsafe {
                with_blocks!(format, B => match columns {
                    1 => avx512::<B, 4, 1>((rows, row), x, out),
                    2 => avx512::<B, 2, 2>((rows, row), x, out),
                    4 => avx512::<B, 1, 4>((rows, row), x, out),
                    _ => unreachable!("one, two or four columns"),
                });
            },
            _ => {
                let _ = (format, rows, row, x, columns, out);
                unreachable!("it has no such kernels")
            }
        }
    }
}

/// See [`Fused::segments`].
///
/// # Safety
/// That of [`packed512::Sums`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn avx512<B: packed512::Decode512, const R: usize, const K: usize>(
    (rows, row): (&[u8], usize),
    x: &[f32],
    out: &mut [f32],
) {
    // SAFETY: the caller's.
    unsafe {
        let o = <f32 as CpuElement>::Avx512::new(false);
        let (m, n, of) = (rows.len() / row, x.len() / K, PhantomData::<B>);
        let (rows, x, out) = (rows.as_ptr(), x.as_ptr(), out.as_mut_ptr());
        o.enter(packed512::Sums::<B, R, K> { o, rows, row, m, n, x, out, ld: SUMS, of });
    }
}
