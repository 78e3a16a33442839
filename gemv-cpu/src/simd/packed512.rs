//! Packed rows in AVX-512: elements are decoded in registers, and multiplied there.
//!
//! A code of 4 bits is looked up in a table of the sixteen elements that its block can have: so few elements are computed,
//! each by the format's expression, and a look-up takes the low bits of a place alone, so that nothing is masked.

use core::arch::x86_64::*;
use core::marker::PhantomData;
use core::mem::MaybeUninit;

use gemv_core::gemv_packed::{Blocks, Fp8, Int4, Mxfp4, Nvfp4, Q4_0, Q4K, Q6K, Q8_0};
use gemv_core::order::{LANES, SEGMENT};

use super::ops::{Body, Ops, each};
use super::x86::F32x16;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Numbers of a row's segment that are computed once: what a format takes them for is its own affair. In memory, where
/// an instruction takes one of them for all lanes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Scales([MaybeUninit<f32>; 16]);

/// A format whose elements are decoded in registers.
pub(super) trait Decode512: Blocks {
    /// Writes the numbers for the first `columns` of a segment.
    ///
    /// # Safety
    /// The processor has AVX-512; `p` is good for the blocks of these columns.
    #[inline(always)]
    unsafe fn scales(p: *const u8, columns: usize, to: &mut Scales) {
        let _ = (p, columns, to);
    }

    /// Whether there are elements that [`pair`](Self::pair) is not right for.
    const CARE: bool = false;

    /// Whether a segment has such elements.
    ///
    /// # Safety
    /// As [`pair`](Self::pair).
    #[inline(always)]
    unsafe fn care(scales: &Scales) -> bool {
        let _ = scales;
        false
    }
    /// As [`pair`](Self::pair), for any elements.
    ///
    /// # Safety
    /// As [`pair`](Self::pair).
    #[inline(always)]
    unsafe fn pair_with_care(p: *const u8, scales: &Scales, j: usize) -> [__m512; 2] {
        // SAFETY: the caller's.
        unsafe { Self::pair(p, scales, j) }
    }

    /// Columns 64 c .. 64 c + 64 of a segment.
    ///
    /// # Safety
    /// As [`pair`](Self::pair).
    #[inline(always)]
    unsafe fn chunk(p: *const u8, scales: &Scales, c: usize) -> [__m512; 4] {
        // SAFETY: the caller's.
        unsafe {
            let ([a, b], [c, d]) = (Self::pair(p, scales, 2 * c), Self::pair(p, scales, 2 * c + 1));
            [a, b, c, d]
        }
    }

    /// Columns 32 j .. 32 j + 32 of a segment.
    ///
    /// # Safety
    /// As [`scales`](Self::scales), which has written `scales`; these columns are there.
    unsafe fn pair(p: *const u8, scales: &Scales, j: usize) -> [__m512; 2];
}

/// Implements unsafe functions whose bodies are intrinsics.
macro_rules! intrinsics {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $t:ty),*) -> $r:ty { $($body:tt)* })*) => { $(
        $(#[$doc])*
        #[inline(always)]
        unsafe fn $name($($arg: $t),*) -> $r {
            // SAFETY: the caller's: the processor has AVX-512, and pointers are good for what is read.
            unsafe { $($body)* }
        }
    )* };
}

intrinsics! {
    /// The integers 0 to 15.
    fn integers() -> __m512i {
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    }
    /// The codes of e2m1, doubled.
    fn e2m1_twice() -> __m512 {
        _mm512_setr_ps(
            0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0,
        )
    }
    /// An f16 in all lanes.
    fn f16(p: *const u8) -> __m512 {
        _mm512_cvtph_ps(_mm256_set1_epi16(p.cast::<i16>().read_unaligned()))
    }
    fn word(p: *const u8) -> i32 { p.cast::<i32>().read_unaligned() }
    /// The four bytes that blocks of so many bytes and columns begin with, of those of a segment that are there.
    fn first_words(p: *const u8, bytes: usize, len: usize, columns: usize) -> __m256i {
        if columns < SEGMENT {
            let mut words = [0; 8];
            for (i, to) in words.iter_mut().enumerate().take(columns / len) {
                *to = word(p.add(i * bytes));
            }
            return bytes32(words.as_ptr().cast());
        }
        match SEGMENT / len {
            1 => _mm256_zextsi128_si256(_mm_cvtsi32_si128(word(p))),
            2 => _mm256_zextsi128_si256(_mm_setr_epi32(word(p), word(p.add(bytes)), 0, 0)),
            4 => _mm256_zextsi128_si256(four_words(p, bytes)),
            _ => _mm256_set_m128i(four_words(p.add(4 * bytes), bytes), four_words(p, bytes)),
        }
    }
    fn four_words(p: *const u8, bytes: usize) -> __m128i {
        let (q, r) = (p.add(bytes), p.add(2 * bytes));
        _mm_setr_epi32(word(p), word(q), word(r), word(r.add(bytes)))
    }
    fn bytes16(p: *const u8) -> __m128i { _mm_loadu_si128(p.cast()) }
    fn bytes32(p: *const u8) -> __m256i { _mm256_loadu_si256(p.cast()) }
    fn bytes64(p: *const u8) -> __m512i { _mm512_loadu_si512(p.cast()) }
    /// The f16 that the first of blocks of so many bytes begin with, eight at most.
    fn few_f16(p: *const u8, bytes: usize, blocks: usize, to: &mut Scales) -> () {
        for i in 0..blocks {
            to.0[i] = MaybeUninit::new(_mm512_cvtss_f32(f16(p.add(i * bytes))));
        }
    }
    /// Sixteen bytes of codes: the elements of the low halves, then those of the high halves.
    fn halves(p: *const u8, table: __m512) -> [__m512; 2] {
        let codes = _mm512_cvtepu8_epi32(bytes16(p));
        let low = _mm512_permutexvar_ps(codes, table);
        [low, _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(codes), table)]
    }
    /// Eight bytes of codes of e2m1: the elements of the low halves, then those of the high halves.
    fn eights(p: *const u8, scale: __m512) -> __m512 {
        let by = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
        let codes = _mm512_cvtepu8_epi32(_mm_set1_epi64x(p.cast::<i64>().read_unaligned()));
        _mm512_permutexvar_ps(_mm512_srlv_epi32(codes, by), _mm512_mul_ps(scale, e2m1_twice()))
    }
    /// Signed bytes as numbers.
    fn signed(bytes: __m128i) -> __m512 { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)) }
    /// A number of [`Scales`] in all lanes.
    fn lane(scales: &Scales, i: usize) -> __m512 { _mm512_set1_ps(number(scales, i)) }
    /// The elements of 32 columns of Q4_K: rounded once as it is written, because the products are exact.
    fn q4_k_table(scales: &Scales, j: usize) -> __m512 {
        let numbers = _mm512_cvtepi32_ps(integers());
        _mm512_fmsub_ps(lane(scales, j), numbers, lane(scales, 8 + j))
    }
    fn number(scales: &Scales, i: usize) -> f32 { scales.0[i].assume_init() }
    fn store16(v: __m512, to: &mut Scales) -> () { _mm512_store_ps(to.0.as_mut_ptr().cast(), v) }
    fn store8(v: __m256, to: &mut Scales) -> () { _mm256_store_ps(to.0.as_mut_ptr().cast(), v) }
    /// The numbers of e4m3, divided by 256: f16 has the same fields with another bias. None is NaN.
    fn e4m3(codes: __m128i) -> __m512 {
        let bits = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(codes));
        _mm512_cvtph_ps(_mm256_and_si256(bits, _mm256_set1_epi16(0xbf80_u16 as i16)))
    }
    /// The numbers of e4m3, NaN among them.
    fn e4m3_or_nan(codes: __m128i) -> __m512 {
        let ones = _mm_set1_epi8(-1);
        let nan = _mm_cmpeq_epi8_mask(_mm_or_si128(codes, _mm_set1_epi8(-128)), ones);
        let value = _mm512_mul_ps(e4m3(codes), _mm512_set1_ps(256.0));
        _mm512_mask_mov_ps(value, nan, _mm512_set1_ps(f32::NAN))
    }
    /// Which codes of e4m3 are NaN.
    fn any_nan(codes: __m512i) -> u64 {
        let ones = _mm512_set1_epi8(-1);
        _mm512_cmpeq_epi8_mask(_mm512_or_si512(codes, _mm512_set1_epi8(-128)), ones)
    }
}

/// Implements [`Decode512`].
macro_rules! formats {
    ($($(@ [$($of:tt)*])? $t:ty {
        $(scales($q:ident, $columns:ident, $to:ident) { $($scales:tt)* })?
        pair($p:ident, $of_row:ident, $j:ident) { $($pair:tt)* }
        $(chunk($p4:ident, $of_row4:ident, $c:ident) { $($chunk:tt)* })?
        $(
            care($of_row5:ident) { $($care:tt)* }
            pair_with_care($p6:ident, $of_row6:ident, $c6:ident) { $($with_care:tt)* }
        )?
    })*) => { $(
        impl $(<$($of)*>)? Decode512 for $t {
            $(
                #[inline(always)]
                unsafe fn scales($q: *const u8, $columns: usize, $to: &mut Scales) {
                    // SAFETY: the caller's.
                    unsafe { $($scales)* }
                }
            )?
            #[inline(always)]
            unsafe fn pair($p: *const u8, $of_row: &Scales, $j: usize) -> [__m512; 2] {
                // SAFETY: the caller's.
                unsafe { $($pair)* }
            }
            $(
                #[inline(always)]
                unsafe fn chunk($p4: *const u8, $of_row4: &Scales, $c: usize) -> [__m512; 4] {
                    // SAFETY: the caller's.
                    unsafe { $($chunk)* }
                }
            )?
            $(
                const CARE: bool = true;
                #[inline(always)]
                unsafe fn care($of_row5: &Scales) -> bool {
                    // SAFETY: the caller's.
                    unsafe { $($care)* }
                }
                #[inline(always)]
                unsafe fn pair_with_care($p6: *const u8, $of_row6: &Scales, $c6: usize) -> [__m512; 2] {
                    // SAFETY: the caller's.
                    unsafe { $($with_care)* }
                }
            )?
        }
    )* };
}

formats! {
    // `d` of each 32 columns.
    Q8_0 {
        scales(p, columns, to) {
            if columns < SEGMENT {
                return few_f16(p, Self::BYTES, columns / 32, to);
            }
            // Of four blocks each.
            let places = _mm512_broadcast_i64x2(_mm_setr_epi16(0, 17, 34, 51, 0, 17, 34, 51));
            let q = p.add(4 * Self::BYTES);
            let first = _mm512_permutex2var_epi16(bytes64(p), places, bytes64(p.add(64)));
            let second = _mm512_permutex2var_epi16(bytes64(q), places, bytes64(q.add(64)));
            let all = _mm_unpacklo_epi64(_mm512_castsi512_si128(first), _mm512_castsi512_si128(second));
            store8(_mm256_cvtph_ps(all), to)
        }
        pair(p, scales, j) {
            let p = p.add(j * Self::BYTES);
            let d = lane(scales, j);
            let (first, second) = (signed(bytes16(p.add(2))), signed(bytes16(p.add(18))));
            [_mm512_mul_ps(d, first), _mm512_mul_ps(d, second)]
        }
    }
    // `d` of each 32 columns.
    Q4_0 {
        scales(p, columns, to) {
            if columns < SEGMENT {
                return few_f16(p, Self::BYTES, columns / 32, to);
            }
            let places = _mm512_broadcast_i64x2(_mm_setr_epi16(0, 9, 18, 27, 36, 45, 54, 63));
            let all = _mm512_permutex2var_epi16(bytes64(p), places, bytes64(p.add(64)));
            store8(_mm256_cvtph_ps(_mm512_castsi512_si128(all)), to)
        }
        pair(p, scales, j) {
            let p = p.add(j * Self::BYTES);
            let less = _mm512_cvtepi32_ps(_mm512_sub_epi32(integers(), _mm512_set1_epi32(8)));
            halves(p.add(2), _mm512_mul_ps(lane(scales, j), less))
        }
    }
    // `d * sc` of each 32 columns, then `dmin * m`.
    Q4K {
        scales(p, _columns, to) {
            let low = p.add(4).cast::<u32>().read_unaligned();
            let min = p.add(8).cast::<u32>().read_unaligned();
            let rest = p.add(12).cast::<u32>().read_unaligned();
            let (six, four, two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x3030_3030);
            let bytes = _mm_setr_epi32(
                (low & six) as i32,
                (rest & four | low >> 2 & two) as i32,
                (min & six) as i32,
                (rest >> 4 & four | min >> 2 & two) as i32,
            );
            let both = _mm_cvtph_ps(_mm_cvtsi32_si128(p.cast::<i32>().read_unaligned()));
            let places = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
            let both = _mm512_permutexvar_ps(places, _mm512_castps128_ps512(both));
            store16(_mm512_mul_ps(both, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))), to)
        }
        pair(p, scales, j) {
            let [a, b, c, d] = Self::chunk(p, scales, j / 2);
            if j & 1 == 0 { [a, b] } else { [c, d] }
        }
        chunk(p, scales, c) {
            let p = p.add(16 + 32 * c);
            let (low, high) = (q4_k_table(scales, 2 * c), q4_k_table(scales, 2 * c + 1));
            let first = _mm512_cvtepu8_epi32(bytes16(p));
            let second = _mm512_cvtepu8_epi32(bytes16(p.add(16)));
            [
                _mm512_permutexvar_ps(first, low),
                _mm512_permutexvar_ps(second, low),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(first), high),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(second), high),
            ]
        }
    }
    // `d * sc` of each 16 columns.
    Q6K {
        scales(p, _columns, to) {
            store16(_mm512_mul_ps(f16(p.add(208)), signed(bytes16(p.add(192)))), to)
        }
        pair(p, scales, j) {
            let (h, part) = (j / 4, j % 4);
            let low = bytes32(p.add(64 * h + part % 2 * 32));
            let low = if part < 2 { low } else { _mm256_srli_epi16::<4>(low) };
            let upper = bytes32(p.add(128 + 32 * h));
            let upper = match part {
                0 => _mm256_slli_epi16::<4>(upper),
                1 => _mm256_slli_epi16::<2>(upper),
                2 => upper,
                _ => _mm256_srli_epi16::<2>(upper),
            };
            let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
            let codes = _mm256_or_si256(low, _mm256_and_si256(upper, _mm256_set1_epi8(48)));
            let less = _mm256_sub_epi8(codes, _mm256_set1_epi8(32));
            let (first, second) = (_mm256_castsi256_si128(less), _mm256_extracti128_si256::<1>(less));
            [
                _mm512_mul_ps(lane(scales, 2 * j), signed(first)),
                _mm512_mul_ps(lane(scales, 2 * j + 1), signed(second)),
            ]
        }
    }
    // `s` of each group, from 8 on `z`.
    @ [const GROUP: usize, const BF16: bool] Int4<GROUP, BF16> {
        scales(p, columns, to) {
            let heads = first_words(p, Self::BYTES, GROUP, columns);
            let s = match BF16 {
                true => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(heads)),
                false => _mm256_cvtph_ps(_mm256_cvtepi32_epi16(heads)),
            };
            let z = _mm256_and_si256(_mm256_srli_epi32::<16>(heads), _mm256_set1_epi32(255));
            store8(s, to);
            _mm256_store_ps(to.0.as_mut_ptr().add(8).cast(), _mm256_cvtepi32_ps(z));
        }
        pair(p, scales, j) {
            let group = 32 * j / GROUP;
            let p = p.add(group * Self::BYTES + 4 + 32 * j % GROUP / 2);
            let less = _mm512_sub_ps(_mm512_cvtepi32_ps(integers()), lane(scales, 8 + group));
            halves(p, _mm512_mul_ps(lane(scales, group), less))
        }
    }
    // 256 times `s` of each 128 columns; whether that overflows or an element is NaN; then `s`.
    Fp8 {
        scales(p, columns, to) {
            let mut care = false;
            each!(I in 0 1: { if columns > I * Self::LEN {
                let p = p.add(I * Self::BYTES);
                let s = p.cast::<f32>().read_unaligned();
                let nan = any_nan(bytes64(p.add(4))) | any_nan(bytes64(p.add(68)));
                care |= nan != 0 || (s * 256.0).is_infinite();
                to.0[I] = MaybeUninit::new(s * 256.0);
                to.0[3 + I] = MaybeUninit::new(s);
            } });
            to.0[2] = MaybeUninit::new(if care { 1.0 } else { 0.0 });
        }
        pair(p, scales, j) {
            let (p, s) = (p.add(j / 4 * Self::BYTES + 4 + j % 4 * 32), lane(scales, j / 4));
            [_mm512_mul_ps(s, e4m3(bytes16(p))), _mm512_mul_ps(s, e4m3(bytes16(p.add(16))))]
        }
        care(scales) { number(scales, 2) != 0.0 }
        pair_with_care(p, scales, j) {
            let (p, s) = (p.add(j / 4 * Self::BYTES + 4 + j % 4 * 32), lane(scales, 3 + j / 4));
            let (first, second) = (e4m3_or_nan(bytes16(p)), e4m3_or_nan(bytes16(p.add(16))));
            [_mm512_mul_ps(s, first), _mm512_mul_ps(s, second)]
        }
    }
    Mxfp4 {
        pair(p, _scales, j) {
            let p = p.add(j * Self::BYTES);
            let scale = _mm512_set1_ps(POWERS[usize::from(*p)]);
            halves(p.add(1), _mm512_mul_ps(scale, e2m1_twice()))
        }
    }
    // Half the scale of each 16 columns.
    Nvfp4 {
        scales(p, columns, to) {
            let codes = _mm256_castsi256_si128(first_words(p, Self::BYTES, Self::LEN, columns));
            store16(_mm512_mul_ps(e4m3_or_nan(codes), _mm512_set1_ps(0.5)), to)
        }
        pair(p, scales, j) {
            let p = p.add(j / 2 * Self::BYTES + 4 + j % 2 * 16);
            [eights(p, lane(scales, 2 * j)), eights(p.add(8), lane(scales, 2 * j + 1))]
        }
    }
}

/// The scales of MXFP4, half the type's powers of two.
static POWERS: [f32; 256] = {
    let (mut powers, mut e) = ([0.0; 256], 0);
    while e < 256 {
        powers[e] = f32::from_bits(match e {
            0 | 1 => 0x0020_0000 << e,
            255 => 0x7fc0_0000,
            _ => (e as u32 - 1) << 23,
        });
        e += 1;
    }
    powers
};

/// The sums of all segments of `m` rows with `K` columns of X, `R` rows at a time. That of segment s, row i and column
/// c goes to `out[s * ld + i * K + c]`; those of the rows up to a multiple of `R` are written.
pub(super) struct Sums<B, const R: usize, const K: usize> {
    pub(super) o: F32x16,
    /// The first row's blocks, and the bytes of a row.
    pub(super) rows: *const u8,
    pub(super) row: usize,
    pub(super) m: usize,
    pub(super) n: usize,
    /// One column after the other.
    pub(super) x: *const f32,
    pub(super) out: *mut f32,
    pub(super) ld: usize,
    pub(super) of: PhantomData<B>,
}

/// Bytes of x that stay in the first cache.
const X_BLOCK: usize = 16 << 10;

/// The next rows are prefetched, unless they are so many bytes further, where the second cache would lose them.
const FAR: usize = 256 << 10;

/// Then so many bytes further along a row.
const AHEAD: usize = 1 << 10;

/// Four vectors of lanes for each row and column of X.
type Lanes<const R: usize, const K: usize> = [[[__m512; 4]; K]; R];

impl<B: Decode512, const R: usize, const K: usize> Sums<B, R, K> {
    /// Bytes of a segment.
    const BYTES: usize = SEGMENT / B::LEN * B::BYTES;

    /// Adds the products of `V` vectors of a row's columns to their lanes.
    #[inline(always)]
    unsafe fn add<const V: usize>(
        &self,
        a: [__m512; V],
        x: &[[__m512; V]; K],
        acc: &mut [[__m512; 4]; K],
    ) {
        for c in 0..K {
            for k in 0..V {
                // SAFETY: `o` exists.
                acc[c][k] = unsafe { self.o.fma(a[k], x[c][k], acc[c][k]) };
            }
        }
    }

    /// Entries of x for `V` vectors of columns.
    #[inline(always)]
    unsafe fn x<const V: usize>(&self, x: *const f32) -> [[__m512; V]; K] {
        let Sums { o, n, .. } = *self;
        // SAFETY: the caller's: x is good for these columns.
        unsafe {
            let mut all = [[o.zero(); V]; K];
            for (c, all) in all.iter_mut().enumerate() {
                for (k, entries) in all.iter_mut().enumerate() {
                    *entries = o.x(x.add(c * n + 16 * k));
                }
            }
            all
        }
    }

    /// The lanes of the first `columns` of a segment of rows.
    #[inline(always)]
    unsafe fn lanes<const CARE: bool>(
        &self,
        p: &[*const u8; R],
        scales: &[Scales; R],
        x: *const f32,
        columns: usize,
    ) -> Lanes<R, K> {
        // SAFETY: the caller's: rows and x are good for these columns.
        unsafe {
            let mut acc: Lanes<R, K> = [[[self.o.zero(); 4]; K]; R];
            // Blocks of 128 columns and more come 128 columns at a time.
            let step = if B::LEN >= 2 * LANES { 2 } else { 1 };
            let chunks = if B::LEN == SEGMENT { 4 } else { columns / LANES };
            for c in 0..chunks / step {
                each!(C in 0 1: { if C < step {
                    let c = step * c + C;
                    let x = self.x::<4>(x.add(LANES * c));
                    for r in 0..R {
                        let chunk = if CARE {
                            let [a, b] = B::pair_with_care(p[r], &scales[r], 2 * c);
                            let [c, d] = B::pair_with_care(p[r], &scales[r], 2 * c + 1);
                            [a, b, c, d]
                        } else {
                            B::chunk(p[r], &scales[r], c)
                        };
                        self.add(chunk, &x, &mut acc[r]);
                    }
                } });
            }
            // Half of a chunk, in blocks of 32.
            if B::LEN < LANES && !columns.is_multiple_of(LANES) {
                let x = self.x::<2>(x.add(LANES * chunks));
                for r in 0..R {
                    self.add(B::pair(p[r], &scales[r], 2 * chunks), &x, &mut acc[r]);
                }
            }
            acc
        }
    }

    /// The sums of segment s of rows i .. i + R, the last row again for those beyond it.
    #[inline(always)]
    unsafe fn segment(&self, i: usize, s: usize, ahead: usize) {
        let Sums { o, rows, row, m, n, x, out, ld, .. } = *self;
        // SAFETY: the caller's: the rows are good, x for n entries of each column, out for the sums.
        unsafe {
            let columns = (n - s * SEGMENT).min(SEGMENT);
            let x = x.add(s * SEGMENT);
            let (mut p, mut scales) = ([rows; R], [Scales([MaybeUninit::uninit(); 16]); R]);
            let mut care = false;
            for r in 0..R {
                p[r] = rows.add((i + r).min(m - 1) * row + s * Self::BYTES);
                for line in 0..Self::BYTES.div_ceil(LINE) {
                    o.prefetch(p[r].wrapping_add(ahead + line * LINE).cast());
                }
                B::scales(p[r], columns, &mut scales[r]);
                care |= B::CARE && B::care(&scales[r]);
            }
            let acc = match care {
                true => self.lanes::<true>(&p, &scales, x, columns),
                false => self.lanes::<false>(&p, &scales, x, columns),
            };
            let mut four = [o.zero(); 4];
            for r in 0..R {
                for c in 0..K {
                    let [a, b, d, e] = acc[r][c];
                    four[r * K + c] = o.add(o.add(a, d), o.add(b, e));
                }
            }
            o.fold4(four, out.add(s * ld + i * K));
        }
    }
}

impl<B: Decode512, const R: usize, const K: usize> Body for Sums<B, R, K> {
    #[inline(always)]
    unsafe fn run(self) {
        // Four sums are halved together; a row's segment is a number of blocks.
        const { assert!(R * K == 4 && SEGMENT.is_multiple_of(B::LEN) && B::LEN >= 32) };
        let Sums { row, m, n, .. } = self;
        let segments = n.div_ceil(SEGMENT);
        // One column of x is read through for all rows: blocks of segments are a little slower. Of several columns a
        // block stays in the first cache.
        let block = if K == 1 { segments } else { X_BLOCK / (SEGMENT * 4 * K) };
        for first in (0..segments).step_by(block) {
            let end = segments.min(first + block);
            let width = (end - first) * Self::BYTES;
            for i in (0..m).step_by(R) {
                let ahead = if R * row > FAR {
                    AHEAD
                } else if i + R < m {
                    R * row
                } else if end < segments {
                    width.wrapping_sub(i * row)
                } else {
                    ((m - i) * row).wrapping_sub(first * Self::BYTES)
                };
                for s in first..end {
                    // SAFETY: the caller's.
                    unsafe { self.segment(i, s, ahead) }
                }
            }
        }
    }
}
