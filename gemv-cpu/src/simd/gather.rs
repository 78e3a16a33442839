//! Copies of lines whose elements are apart.

use super::isa::Isa;

/// Copies lines together: `lines` and `entries` are a number and a stride.
///
/// # Safety
/// `from` is good for these elements, `to` for as many.
pub(super) unsafe fn gather(
    isa: Isa,
    from: *const u8,
    lines: (usize, isize),
    entries: (usize, isize),
    element: usize,
    to: *mut u8,
) {
    /// # Safety
    /// As above, for elements as large as `E`.
    unsafe fn copy<E: Copy>(
        from: *const u8,
        lines: (usize, isize),
        entries: (usize, isize),
        to: *mut u8,
    ) {
        let (from, mut to) = (from.cast::<E>(), to.cast::<E>());
        for l in 0..lines.0 {
            let line = from.wrapping_offset(l as isize * lines.1);
            for e in 0..entries.0 {
                // SAFETY: the caller's.
                unsafe { *to = *line.wrapping_offset(e as isize * entries.1) };
                to = to.wrapping_add(1);
            }
        }
    }
    // SAFETY: the caller's. The types are as large as the elements and need no more alignment.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if element == 4 && isa.is_avx512() && apart::copy(from, lines, entries, to) {
            return;
        }
        match element {
            2 => copy::<u16>(from, lines, entries, to),
            4 => copy::<u32>(from, lines, entries, to),
            8 => copy::<[u32; 2]>(from, lines, entries, to),
            16 => copy::<[u64; 2]>(from, lines, entries, to),
            _ => unreachable!("no element has another size"),
        }
    }
}

/// Few numbers apart, AVX-512 loads vectors, and a permutation of each puts its numbers in their places.
#[cfg(target_arch = "x86_64")]
mod apart {
    use std::arch::x86_64::*;

    /// Numbers of a vector.
    const W: usize = 16;

    /// Copies numbers of 32 bits where this is faster than one after the other, and says whether it did.
    ///
    /// # Safety
    /// That of [`gather`](super::gather), for elements of four bytes; AVX-512 is there.
    #[inline]
    pub(super) unsafe fn copy(
        from: *const u8,
        lines: (usize, isize),
        entries: (usize, isize),
        to: *mut u8,
    ) -> bool {
        let of = match entries.1 {
            2 => words::<2>,
            3 => words::<3>,
            4 => words::<4>,
            5 => words::<5>,
            6 => words::<6>,
            _ => return false,
        };
        let enough = entries.0 >= W;
        if enough {
            // SAFETY: the caller's.
            unsafe { of(from.cast(), lines, entries.0, to.cast()) };
        }
        enough
    }

    /// Where every `S`-th number is taken, the places of these by loaded vector: in it, and in the vector that is stored.
    const fn masks<const S: usize>() -> ([u16; S], [u16; S]) {
        let (mut loaded, mut stored) = ([0; S], [0; S]);
        let mut i = 0;
        while i < W {
            loaded[i * S / W] |= 1 << (i * S % W);
            stored[i * S / W] |= 1 << i;
            i += 1;
        }
        (loaded, stored)
    }

    /// # Safety
    /// That of [`gather`](super::gather), for a stride of `S` numbers of 32 bits; AVX-512 is there.
    #[target_feature(enable = "avx512f")]
    unsafe fn words<const S: usize>(
        from: *const i32,
        lines: (usize, isize),
        count: usize,
        mut to: *mut i32,
    ) {
        let (loaded, stored) = const { masks::<S>() };
        let places: [i32; W] = core::array::from_fn(|i| (i * S % W) as i32);
        // SAFETY: an array as long as a vector. The masks keep loads and stores from other elements than the caller's.
        unsafe {
            let places = _mm512_loadu_si512(places.as_ptr().cast());
            for l in 0..lines.0 {
                let mut p = from.wrapping_offset(l as isize * lines.1);
                for _ in 0..count / W {
                    let mut all = _mm512_setzero_si512();
                    for v in 0..S {
                        let some = _mm512_maskz_loadu_epi32(loaded[v], p.wrapping_add(v * W));
                        all = _mm512_mask_permutexvar_epi32(all, stored[v], places, some);
                    }
                    _mm512_storeu_si512(to.cast(), all);
                    (p, to) = (p.wrapping_add(S * W), to.wrapping_add(W));
                }
                let left = count % W;
                if left > 0 {
                    let (there, reach) = ((1 << left) - 1, (left - 1) * S + 1);
                    let mut all = _mm512_setzero_si512();
                    for v in 0..S {
                        let within = ((1u64 << reach.saturating_sub(v * W).min(W)) - 1) as u16;
                        let mask = loaded[v] & within;
                        let some = _mm512_maskz_loadu_epi32(mask, p.wrapping_add(v * W));
                        all = _mm512_mask_permutexvar_epi32(all, stored[v], places, some);
                    }
                    _mm512_mask_storeu_epi32(to, there, all);
                    to = to.wrapping_add(left);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::gather;
    use crate::simd::Isa;

    /// What lies outside of the elements is not read: `tests/outside.rs`.
    #[test]
    fn every_stride_and_length() {
        Isa::all().into_iter().for_each(check);
    }

    fn check(isa: Isa) {
        for element in [2, 4, 8, 16] {
            for stride in [-3, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16isize] {
                for count in [0, 1, 7, 8, 9, 15, 16, 17, 31, 40, 100] {
                    let reach = (count as isize - 1).max(0) * stride.abs() + 1;
                    // No byte follows the last element of the last line.
                    let from: Vec<u8> =
                        (0..2 * reach as usize * element).map(|i| i as u8).collect();
                    let first = if stride < 0 { reach - 1 } else { 0 };
                    let mut to = vec![0u8; 2 * count * element];
                    let p = from.as_ptr().wrapping_add(first as usize * element);
                    // SAFETY: two lines of so many elements.
                    unsafe {
                        gather(isa, p, (2, reach), (count, stride), element, to.as_mut_ptr())
                    };
                    let want = (0..2).flat_map(|l| {
                        (0..count as isize).map(move |e| l * reach + first + e * stride)
                    });
                    let want: Vec<u8> = want
                        .flat_map(|at| &from[at as usize * element..][..element])
                        .copied()
                        .collect();
                    assert_eq!(to, want, "{count} elements of {element} bytes, {stride} apart");
                }
            }
        }
    }
}
