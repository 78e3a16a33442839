//! Decoding of packed rows, compiled for each instruction set.

use std::marker::PhantomData;

use gemv_core::Format;
use gemv_core::gemv_packed::{Blocks, with_blocks};

use super::element::CpuElement;
use super::isa::{Isa, Kind};
use super::ops::{Body, Ops};

/// The elements of blocks, in order; `to` has as many places.
pub(crate) fn decode(isa: Isa, format: Format, blocks: &[u8], to: &mut [f32]) {
    with_blocks!(format, B => enter(isa, Decode::<'_, B> { blocks, to, of: PhantomData }));
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

#[inline(always)]
fn enter(isa: Isa, body: impl Body) {
    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` exists only where the processor has the instructions; the body is safe code.
        Kind::Avx512 => unsafe { <f32 as CpuElement>::Avx512::new(false).enter(body) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Kind::Avx2 => unsafe { <f32 as CpuElement>::Avx2::new(false).enter(body) },
        // SAFETY: the body is safe code.
        Kind::Plain => unsafe { body.run() },
    }
}
