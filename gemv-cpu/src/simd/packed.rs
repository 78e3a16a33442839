//! Packed rows, compiled for each instruction set: decoded in registers and multiplied there, or decoded to memory.

use std::marker::PhantomData;

use gemv_core::Format;
use gemv_core::gemv_packed::{Blocks, with_blocks};
use gemv_core::order::SEGMENT;

use super::element::CpuElement;
use super::isa::{Isa, Kind};
use super::ops::{Body, Ops};
#[cfg(target_arch = "x86_64")]
use super::{packed512, sums};

/// The elements of blocks, in order; `to` has as many places.
pub(crate) fn decode(isa: Isa, format: Format, blocks: &[u8], to: &mut [f32]) {
    with_blocks!(format, B => {
        assert!(blocks.len().is_multiple_of(B::BYTES) && blocks.len() / B::BYTES * B::LEN == to.len());
        let of = PhantomData::<B>;
        match isa.kind() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` exists only where the processor has the instructions; the lengths were compared.
            Kind::Avx512 => unsafe {
                let (blocks, columns, to) = (blocks.as_ptr(), to.len(), to.as_mut_ptr());
                let o = <f32 as CpuElement>::Avx512::new(false);
                o.enter(packed512::Store { blocks, columns, to, of });
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above; the body is safe code.
            Kind::Avx2 => unsafe {
                <f32 as CpuElement>::Avx2::new(false).enter(Decode { blocks, to, of });
            },
            // SAFETY: the body is safe code.
            Kind::Plain => unsafe { Decode { blocks, to, of }.run() },
        }
    });
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
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no value is made"))]
    isa: Isa,
}

/// Sums of a row of X's columns that [`Fused::sums`] computes at a time.
pub(crate) const SUMS: usize = 16;

impl Fused {
    /// Those of the instruction set, if it has any.
    pub(crate) fn of(isa: Isa) -> Option<Fused> {
        match isa.kind() {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => Some(Fused { isa }),
            _ => None,
        }
    }

    /// Numbers of scratch for rows of n columns.
    pub(crate) fn scratch(n: usize) -> usize {
        let segments = n.div_ceil(SEGMENT);
        #[cfg(target_arch = "x86_64")]
        let segments = segments + sums::spare_lines(segments);
        SUMS * segments
    }

    /// The sums of rows of `row` bytes with one, two or four columns of X, each of n entries, one after the other: of row
    /// i and column c in place i * columns + c. There are [`SUMS`] at most.
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
        assert!(rows.len().is_multiple_of(row) && rows.len() / row * columns <= SUMS);
        assert!(scratch.len() >= Fused::scratch(n));
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions, for which a value of this type stands; the lengths were compared.
        unsafe {
            with_blocks!(format, B => match columns {
                1 => self.segments::<B, 4, 1>((rows, row), x, scratch),
                2 => self.segments::<B, 2, 2>((rows, row), x, scratch),
                4 => self.segments::<B, 1, 4>((rows, row), x, scratch),
                _ => unreachable!("one, two or four columns"),
            });
            let k = f32::kernels(self.isa, 1).expect("every type has kernels of stride one");
            let count = n.div_ceil(SEGMENT);
            let (first, spare) = scratch.split_at_mut(SUMS * count);
            if count == 1 {
                // Not added to +0, which would turn -0 into +0.
                to.copy_from_slice(first);
                return to;
            }
            let (first, spare) = (first.as_ptr().cast(), spare.as_mut_ptr().cast());
            let m = rows.len() / row * columns;
            sums::levels(k, first, m, SUMS, count, spare, to.as_mut_ptr().cast());
        }
        to
    }

    /// The sums of all segments, those of a segment `SUMS` apart.
    ///
    /// # Safety
    /// That of [`packed512::Sums`].
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn segments<B: packed512::Decode512, const R: usize, const K: usize>(
        self,
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
}
