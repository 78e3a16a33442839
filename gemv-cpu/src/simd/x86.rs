//! AVX-512 and AVX2.
//!
//! Complex numbers stay pairs of neighbours. With a = (re, im), the products of rule 7 are `fma((re, re), (x.re,
//! x.im), acc)` and then `fma((im, im), (-x.im, x.re), acc)`. So an entry of x is prepared once as these two pairs.
//! Conjugation changes the signs of the second pair.

use core::arch::x86_64::*;

use half::{bf16, f16};
use num_complex::Complex;

use super::ops::{Body, Ops};
use gemv_core::{half, num_complex};

/// Bits lo..hi.
#[inline(always)]
fn bits(lo: usize, hi: usize) -> u32 {
    ((1u64 << hi) - 1) as u32 & !(((1u64 << lo) - 1) as u32)
}

/// An instruction set's entry point, and the functions that all of its types share.
macro_rules! entry {
    ($kind:ident $features:literal) => {
        #[inline(always)]
        unsafe fn new(conj: bool) -> Self {
            entry!(@ $kind conj)
        }
        #[inline(always)]
        unsafe fn enter<B: Body>(self, body: B) {
            #[target_feature(enable = $features)]
            #[inline(never)]
            unsafe fn inner<B: Body>(body: B) {
                // SAFETY: the caller's.
                unsafe { body.run() }
            }
            // SAFETY: `self` exists only where the instructions do (`Isa::detect`); the rest is
            // the caller's.
            unsafe { inner(body) }
        }
        #[inline(always)]
        unsafe fn prefetch(self, p: *const Self::T) {
            // SAFETY: a prefetch does not fault, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        }
    };
    (@ real $conj:ident) => {{ let _ = $conj; Self }};
    (@ complex $conj:ident) => { Self { $conj } };
}
macro_rules! entry512 {
    ($kind:ident) => {
        entry!($kind "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c");
    };
}
macro_rules! entry256 {
    ($kind:ident) => {
        entry!($kind "avx2,fma,f16c");
    };
}

/// Implements unsafe functions whose bodies are intrinsics.
macro_rules! intrinsics {
    ($($(#[$doc:meta])* fn $name:ident($self:ident $(, $arg:ident: $t:ty)*) $(-> $r:ty)? { $($body:tt)* })*) => { $(
        #[inline(always)]
        unsafe fn $name($self $(, $arg: $t)*) $(-> $r)? {
            // SAFETY: `self` exists only where the instructions do; what the pointers have to be
            // good for is the caller's, as `Ops` says.
            unsafe { $($body)* }
        }
    )* };
}

// ---------------------------------------------------------------------------------- AVX-512

/// f32 accumulators in 512 bits: for f32, f16 and bf16.
macro_rules! singles512 {
    ($name:ident, $t:ty, $f32:literal, $($loads:tt)*) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Ops for $name {
            type T = $t;
            type Acc = f32;
            type Real = f32;
            type Sum = F32x16;
            type Base = Self;
            type V = __m512;
            type X = __m512;
            const W: usize = 16;
            const ROWS: usize = 4;
            // All of a segment's. Types narrower than an accumulator are bound by their conversion.
            const X_VECTORS: usize = if $f32 { 16 } else { 0 };
            // Types narrower than an accumulator need registers for their conversion.
            const PASS_LANES: usize = if $f32 { 4 } else { 2 };
            const FOLD_ALL: bool = $f32;
            // That is f32.
            const UNROLLS: bool = $f32;
            entry512!(real);
            intrinsics! {
                $($loads)*
                fn zero(self) -> __m512 { _mm512_setzero_ps() }
                fn x(self, p: *const f32) -> __m512 { _mm512_loadu_ps(p) }
                fn x_part(self, p: *const f32, lo: usize, hi: usize) -> __m512 {
                    _mm512_mask_loadu_ps(_mm512_set1_ps(-0.0), bits(lo, hi) as u16, p)
                }
                fn splat(self, x: f32) -> __m512 { _mm512_set1_ps(x) }
                fn fma(self, a: __m512, x: __m512, acc: __m512) -> __m512 { _mm512_fmadd_ps(a, x, acc) }
                fn add(self, a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
                fn merge(self, a: __m512, b: __m512, _hi: usize) -> __m512 { _mm512_or_ps(a, b) }
                fn load_acc(self, p: *const f32) -> __m512 { _mm512_loadu_ps(p) }
                fn load_acc_part(self, p: *const f32, lo: usize, hi: usize) -> __m512 {
                    _mm512_maskz_loadu_ps(bits(lo, hi) as u16, p)
                }
                fn store(self, v: __m512, p: *mut f32) { _mm512_storeu_ps(p, v) }
                fn store_part(self, v: __m512, p: *mut f32, lo: usize, hi: usize) {
                    _mm512_mask_storeu_ps(p, bits(lo, hi) as u16, v)
                }
                fn fold4(self, v: [__m512; 4], out: *mut f32) {
                    let [a, b, c, d] = v;
                    let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
                    let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
                    let t = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
                    let t = _mm512_add_ps(t, _mm512_permute_ps::<0x4e>(t));
                    let t = _mm512_add_ps(t, _mm512_permute_ps::<0xb1>(t));
                    // Element 0 of each quarter.
                    let at = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
                    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(at, t)));
                }
                fn fold_all(self, v: [__m512; 16], out: *mut f32) {
                    // Each step makes one vector of two, half of each, so that no lane idles.
                    let mut v = v;
                    for i in 0..8 {
                        let (p, q) = (v[i], v[i + 8]);
                        let low = _mm512_mask_blend_ps(0xff00, p, q);
                        v[i] = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0x4e>(p, q));
                    }
                    for i in 0..4 {
                        let (p, q) = (v[i], v[i + 4]);
                        let (p1, q1) = (_mm512_shuffle_f32x4::<0xb1>(p, p), _mm512_shuffle_f32x4::<0xb1>(q, q));
                        let low = _mm512_mask_blend_ps(0xf0f0, p, q);
                        v[i] = _mm512_add_ps(low, _mm512_mask_blend_ps(0xf0f0, p1, q1));
                    }
                    for i in 0..2 {
                        let (p, q) = (v[i], v[i + 2]);
                        v[i] = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(p, q), _mm512_shuffle_ps::<0xee>(p, q));
                    }
                    let (p, q) = (v[0], v[1]);
                    let one = _mm512_add_ps(_mm512_shuffle_ps::<0x88>(p, q), _mm512_shuffle_ps::<0xdd>(p, q));
                    // Rows 0, 2, 1, 3 in each quarter.
                    _mm512_storeu_ps(out, _mm512_permute_ps::<0xd8>(one));
                }
                fn fold(self, v: __m512) -> f32 {
                    let h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
                    fold8(h)
                }
            }
        }
    };
}

#[inline(always)]
unsafe fn fold8(v: __m256) -> f32 {
    // SAFETY: the caller has AVX.
    unsafe {
        let q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let d = _mm_add_ps(q, _mm_movehl_ps(q, q));
        _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps::<1>(d, d)))
    }
}

#[inline(always)]
unsafe fn fold_pd(v: __m256d) -> f64 {
    // SAFETY: the caller has AVX.
    unsafe {
        let q = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd::<1>(v));
        _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)))
    }
}

singles512! { F32x16, f32, true,
    fn x_from_two(self, p: *const f32, q: *const f32, mid: usize) -> __m512 {
        _mm512_mask_loadu_ps(_mm512_maskz_loadu_ps(bits(0, mid) as u16, p), bits(mid, 16) as u16, q)
    }
    fn fma_masked(self, p: *const f32, x: __m512, acc: __m512, part: (usize, usize)) -> __m512 {
        let there = bits(part.0, part.1) as u16;
        _mm512_mask3_fmadd_ps(_mm512_maskz_loadu_ps(there, p), x, acc, there)
    }
    fn store_narrow(self, v: __m512, p: *mut f32) { _mm512_storeu_ps(p, v) }
    fn load(self, p: *const f32) -> __m512 { _mm512_loadu_ps(p) }
    fn load_part(self, p: *const f32, lo: usize, hi: usize) -> __m512 {
        _mm512_maskz_loadu_ps(bits(lo, hi) as u16, p)
    }
    fn load_even(self, p: *const f32) -> __m512 {
        // The mask keeps the loads from touching what lies between.
        let a = _mm512_maskz_loadu_ps(0x5555, p);
        let b = _mm512_maskz_loadu_ps(0x5555, p.add(16));
        let at = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        _mm512_permutex2var_ps(a, at, b)
    }
    fn load_even_part(self, p: *const f32, lo: usize, hi: usize) -> __m512 {
        let there = bits(2 * lo, 2 * hi) & 0x5555_5555;
        let a = _mm512_maskz_loadu_ps(there as u16, p);
        let b = _mm512_maskz_loadu_ps((there >> 16) as u16, p.wrapping_add(16));
        let at = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        _mm512_permutex2var_ps(a, at, b)
    }
}
singles512! { F16x16, f16, false,
    fn store_narrow(self, v: __m512, p: *mut f16) {
        _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v))
    }
    fn load(self, p: *const f16) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    fn load_part(self, p: *const f16, lo: usize, hi: usize) -> __m512 {
        _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(bits(lo, hi) as u16, p.cast()))
    }
}
singles512! { Bf16x16, bf16, false,
    fn store_narrow(self, v: __m512, p: *mut bf16) {
        let bits = _mm512_castps_si512(v);
        // To nearest, ties to even: adds half of the last place, less one if it is even.
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        let rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
        _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(rounded))
    }
    fn load(self, p: *const bf16) -> __m512 {
        let v = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v))
    }
    fn load_part(self, p: *const bf16, lo: usize, hi: usize) -> __m512 {
        let v = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(bits(lo, hi) as u16, p.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v))
    }
}

#[derive(Clone, Copy)]
pub(crate) struct F64x8;

impl Ops for F64x8 {
    type T = f64;
    type Acc = f64;
    type Real = f64;
    type Sum = F64x8;
    type Base = Self;
    type V = __m512d;
    type X = __m512d;
    const W: usize = 8;
    const ROWS: usize = 4;
    // In addition to sixteen sums.
    const X_VECTORS: usize = 10;
    const SHORT_VECTORS: usize = 8;
    const PASS_LANES: usize = 4;
    const FOLD_ALL: bool = true;
    const UNROLLS: bool = true;
    entry512!(real);
    intrinsics! {
        fn zero(self) -> __m512d { _mm512_setzero_pd() }
        fn load(self, p: *const f64) -> __m512d { _mm512_loadu_pd(p) }
        fn load_part(self, p: *const f64, lo: usize, hi: usize) -> __m512d {
            _mm512_maskz_loadu_pd(bits(lo, hi) as u8, p)
        }
        fn load_even(self, p: *const f64) -> __m512d {
            let a = _mm512_maskz_loadu_pd(0x55, p);
            let b = _mm512_maskz_loadu_pd(0x55, p.add(8));
            _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), b)
        }
        fn load_even_part(self, p: *const f64, lo: usize, hi: usize) -> __m512d {
            let there = bits(2 * lo, 2 * hi) & 0x5555;
            let a = _mm512_maskz_loadu_pd(there as u8, p);
            let b = _mm512_maskz_loadu_pd((there >> 8) as u8, p.wrapping_add(8));
            _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), b)
        }
        fn x(self, p: *const f64) -> __m512d { _mm512_loadu_pd(p) }
        fn x_part(self, p: *const f64, lo: usize, hi: usize) -> __m512d {
            _mm512_mask_loadu_pd(_mm512_set1_pd(-0.0), bits(lo, hi) as u8, p)
        }
        fn x_from_two(self, p: *const f64, q: *const f64, mid: usize) -> __m512d {
            _mm512_mask_loadu_pd(_mm512_maskz_loadu_pd(bits(0, mid) as u8, p), bits(mid, 8) as u8, q)
        }
        fn fma_masked(self, p: *const f64, x: __m512d, acc: __m512d, part: (usize, usize)) -> __m512d {
            let there = bits(part.0, part.1) as u8;
            _mm512_mask3_fmadd_pd(_mm512_maskz_loadu_pd(there, p), x, acc, there)
        }
        fn splat(self, x: f64) -> __m512d { _mm512_set1_pd(x) }
        fn fma(self, a: __m512d, x: __m512d, acc: __m512d) -> __m512d { _mm512_fmadd_pd(a, x, acc) }
        fn add(self, a: __m512d, b: __m512d) -> __m512d { _mm512_add_pd(a, b) }
        fn merge(self, a: __m512d, b: __m512d, _hi: usize) -> __m512d { _mm512_or_pd(a, b) }
        fn load_acc(self, p: *const f64) -> __m512d { _mm512_loadu_pd(p) }
        fn load_acc_part(self, p: *const f64, lo: usize, hi: usize) -> __m512d { self.load_part(p, lo, hi) }
        fn store(self, v: __m512d, p: *mut f64) { _mm512_storeu_pd(p, v) }
        fn store_part(self, v: __m512d, p: *mut f64, lo: usize, hi: usize) {
            _mm512_mask_storeu_pd(p, bits(lo, hi) as u8, v)
        }
        fn store_narrow(self, v: __m512d, p: *mut f64) { _mm512_storeu_pd(p, v) }
        fn fold4(self, v: [__m512d; 4], out: *mut f64) {
            let [a, b, c, d] = v;
            let ab = _mm512_add_pd(_mm512_shuffle_f64x2::<0x44>(a, b), _mm512_shuffle_f64x2::<0xee>(a, b));
            let cd = _mm512_add_pd(_mm512_shuffle_f64x2::<0x44>(c, d), _mm512_shuffle_f64x2::<0xee>(c, d));
            let t = _mm512_add_pd(_mm512_shuffle_f64x2::<0x88>(ab, cd), _mm512_shuffle_f64x2::<0xdd>(ab, cd));
            let t = _mm512_add_pd(t, _mm512_permute_pd::<0x55>(t));
            let at = _mm512_setr_epi64(0, 2, 4, 6, 0, 0, 0, 0);
            _mm256_storeu_pd(out, _mm512_castpd512_pd256(_mm512_permutexvar_pd(at, t)));
        }
        fn fold_all(self, v: [__m512d; 16], out: *mut f64) {
            // As for f32: eight vectors to one, twice.
            for h in [0, 8] {
                let mut v: [__m512d; 8] = [v[h], v[h + 1], v[h + 2], v[h + 3], v[h + 4], v[h + 5], v[h + 6], v[h + 7]];
                for i in 0..4 {
                    let (p, q) = (v[i], v[i + 4]);
                    let low = _mm512_mask_blend_pd(0xf0, p, q);
                    v[i] = _mm512_add_pd(low, _mm512_shuffle_f64x2::<0x4e>(p, q));
                }
                for i in 0..2 {
                    let (p, q) = (v[i], v[i + 2]);
                    let (p1, q1) = (_mm512_shuffle_f64x2::<0xb1>(p, p), _mm512_shuffle_f64x2::<0xb1>(q, q));
                    let low = _mm512_mask_blend_pd(0xcc, p, q);
                    v[i] = _mm512_add_pd(low, _mm512_mask_blend_pd(0xcc, p1, q1));
                }
                let (p, q) = (v[0], v[1]);
                let one = _mm512_add_pd(_mm512_unpacklo_pd(p, q), _mm512_unpackhi_pd(p, q));
                _mm512_storeu_pd(out.add(h), one);
            }
        }
        fn fold(self, v: __m512d) -> f64 {
            fold_pd(_mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd::<1>(v)))
        }
    }
}

/// Pairs of f32, eight in 512 bits.
#[derive(Clone, Copy)]
pub(crate) struct C32x8 {
    conj: bool,
}

impl C32x8 {
    intrinsics! {
        fn prepare(self, x: __m512, there: u16) -> (__m512, __m512) {
            let sign = if self.conj { 1i64 << 63 } else { 1i64 << 31 };
            let swapped = _mm512_castps_si512(_mm512_permute_ps::<0xb1>(x));
            let turned = _mm512_xor_si512(swapped, _mm512_set1_epi64(sign));
            (x, _mm512_mask_mov_ps(_mm512_set1_ps(-0.0), there, _mm512_castsi512_ps(turned)))
        }
    }
}

impl Ops for C32x8 {
    type T = Complex<f32>;
    type Acc = Complex<f32>;
    type Real = f32;
    type Sum = F32x16;
    type Base = Self;
    type V = __m512;
    type X = (__m512, __m512);
    const W: usize = 8;
    const ROWS: usize = 2;
    const ROW_VECTORS: usize = 8;
    const PASS_LANES: usize = 2;
    entry512!(complex);
    intrinsics! {
        fn zero(self) -> __m512 { _mm512_setzero_ps() }
        fn load(self, p: *const Complex<f32>) -> __m512 { _mm512_loadu_ps(p.cast()) }
        fn load_part(self, p: *const Complex<f32>, lo: usize, hi: usize) -> __m512 {
            _mm512_maskz_loadu_ps(bits(2 * lo, 2 * hi) as u16, p.cast())
        }
        fn x(self, p: *const Complex<f32>) -> Self::X {
            self.prepare(_mm512_loadu_ps(p.cast()), !0)
        }
        fn x_part(self, p: *const Complex<f32>, lo: usize, hi: usize) -> Self::X {
            let there = bits(2 * lo, 2 * hi) as u16;
            self.prepare(_mm512_mask_loadu_ps(_mm512_set1_ps(-0.0), there, p.cast()), there)
        }
        fn splat(self, x: Complex<f32>) -> Self::X {
            let both = u64::from(x.re.to_bits()) | u64::from(x.im.to_bits()) << 32;
            self.prepare(_mm512_castsi512_ps(_mm512_set1_epi64(both as i64)), !0)
        }
        fn fma(self, a: __m512, x: Self::X, acc: __m512) -> __m512 {
            let acc = _mm512_fmadd_ps(_mm512_moveldup_ps(a), x.0, acc);
            _mm512_fmadd_ps(_mm512_movehdup_ps(a), x.1, acc)
        }
        fn add(self, a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn merge(self, a: __m512, b: __m512, _hi: usize) -> __m512 { _mm512_or_ps(a, b) }
        fn load_acc(self, p: *const Complex<f32>) -> __m512 { _mm512_loadu_ps(p.cast()) }
        fn load_acc_part(self, p: *const Complex<f32>, lo: usize, hi: usize) -> __m512 { self.load_part(p, lo, hi) }
        fn store(self, v: __m512, p: *mut Complex<f32>) { _mm512_storeu_ps(p.cast(), v) }
        fn store_part(self, v: __m512, p: *mut Complex<f32>, lo: usize, hi: usize) {
            _mm512_mask_storeu_ps(p.cast(), bits(2 * lo, 2 * hi) as u16, v)
        }
        fn store_narrow(self, v: __m512, p: *mut Complex<f32>) { _mm512_storeu_ps(p.cast(), v) }
        fn fold4(self, v: [__m512; 4], out: *mut Complex<f32>) {
            let [a, b, c, d] = v;
            let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
            let t = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
            let t = _mm512_add_ps(t, _mm512_permute_ps::<0x4e>(t));
            let at = _mm512_setr_epi64(0, 2, 4, 6, 0, 0, 0, 0);
            let four = _mm512_permutexvar_pd(at, _mm512_castps_pd(t));
            _mm256_storeu_pd(out.cast(), _mm512_castpd512_pd256(four));
        }
        fn fold(self, v: __m512) -> Complex<f32> {
            let h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            fold_c32(h)
        }
    }
}

#[inline(always)]
unsafe fn fold_c32(v: __m256) -> Complex<f32> {
    // SAFETY: the caller has AVX.
    unsafe {
        let q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let d = _mm_add_ps(q, _mm_movehl_ps(q, q));
        Complex::new(_mm_cvtss_f32(d), _mm_cvtss_f32(_mm_shuffle_ps::<1>(d, d)))
    }
}

/// Pairs of f64, four in 512 bits.
#[derive(Clone, Copy)]
pub(crate) struct C64x4 {
    conj: bool,
}

impl C64x4 {
    intrinsics! {
        fn prepare(self, x: __m512d, there: u8) -> (__m512d, __m512d) {
            let sign = match self.conj {
                true => _mm512_setr_pd(0.0, -0.0, 0.0, -0.0, 0.0, -0.0, 0.0, -0.0),
                false => _mm512_setr_pd(-0.0, 0.0, -0.0, 0.0, -0.0, 0.0, -0.0, 0.0),
            };
            let turned = _mm512_xor_pd(_mm512_permute_pd::<0x55>(x), sign);
            (x, _mm512_mask_mov_pd(_mm512_set1_pd(-0.0), there, turned))
        }
    }
}

impl Ops for C64x4 {
    type T = Complex<f64>;
    type Acc = Complex<f64>;
    type Real = f64;
    type Sum = F64x8;
    type Base = Self;
    type V = __m512d;
    type X = (__m512d, __m512d);
    const W: usize = 4;
    const ROWS: usize = 1;
    const ROW_VECTORS: usize = 16;
    const PASS_LANES: usize = 2;
    entry512!(complex);
    intrinsics! {
        fn zero(self) -> __m512d { _mm512_setzero_pd() }
        fn load(self, p: *const Complex<f64>) -> __m512d { _mm512_loadu_pd(p.cast()) }
        fn load_part(self, p: *const Complex<f64>, lo: usize, hi: usize) -> __m512d {
            _mm512_maskz_loadu_pd(bits(2 * lo, 2 * hi) as u8, p.cast())
        }
        fn x(self, p: *const Complex<f64>) -> Self::X {
            self.prepare(_mm512_loadu_pd(p.cast()), !0)
        }
        fn x_part(self, p: *const Complex<f64>, lo: usize, hi: usize) -> Self::X {
            let there = bits(2 * lo, 2 * hi) as u8;
            self.prepare(_mm512_mask_loadu_pd(_mm512_set1_pd(-0.0), there, p.cast()), there)
        }
        fn splat(self, x: Complex<f64>) -> Self::X {
            let pair = _mm_setr_pd(x.re, x.im);
            self.prepare(_mm512_broadcast_f64x2(pair), !0)
        }
        fn fma(self, a: __m512d, x: Self::X, acc: __m512d) -> __m512d {
            let acc = _mm512_fmadd_pd(_mm512_movedup_pd(a), x.0, acc);
            _mm512_fmadd_pd(_mm512_permute_pd::<0xff>(a), x.1, acc)
        }
        fn add(self, a: __m512d, b: __m512d) -> __m512d { _mm512_add_pd(a, b) }
        fn merge(self, a: __m512d, b: __m512d, _hi: usize) -> __m512d { _mm512_or_pd(a, b) }
        fn load_acc(self, p: *const Complex<f64>) -> __m512d { _mm512_loadu_pd(p.cast()) }
        fn load_acc_part(self, p: *const Complex<f64>, lo: usize, hi: usize) -> __m512d { self.load_part(p, lo, hi) }
        fn store(self, v: __m512d, p: *mut Complex<f64>) { _mm512_storeu_pd(p.cast(), v) }
        fn store_part(self, v: __m512d, p: *mut Complex<f64>, lo: usize, hi: usize) {
            _mm512_mask_storeu_pd(p.cast(), bits(2 * lo, 2 * hi) as u8, v)
        }
        fn store_narrow(self, v: __m512d, p: *mut Complex<f64>) { _mm512_storeu_pd(p.cast(), v) }
        fn fold4(self, v: [__m512d; 4], out: *mut Complex<f64>) {
            let [a, b, c, d] = v;
            let ab = _mm512_add_pd(_mm512_shuffle_f64x2::<0x44>(a, b), _mm512_shuffle_f64x2::<0xee>(a, b));
            let cd = _mm512_add_pd(_mm512_shuffle_f64x2::<0x44>(c, d), _mm512_shuffle_f64x2::<0xee>(c, d));
            let t = _mm512_add_pd(_mm512_shuffle_f64x2::<0x88>(ab, cd), _mm512_shuffle_f64x2::<0xdd>(ab, cd));
            _mm512_storeu_pd(out.cast(), t);
        }
        fn fold(self, v: __m512d) -> Complex<f64> {
            fold_c64(_mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd::<1>(v)))
        }
    }
}

#[inline(always)]
unsafe fn fold_c64(v: __m256d) -> Complex<f64> {
    // SAFETY: the caller has AVX.
    unsafe {
        let q = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd::<1>(v));
        Complex::new(_mm_cvtsd_f64(q), _mm_cvtsd_f64(_mm_unpackhi_pd(q, q)))
    }
}

// ------------------------------------------------------------------------------------- AVX2

/// All ones in 32-bit lanes lo..hi.
#[inline(always)]
unsafe fn lanes32(lo: usize, hi: usize) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let below = _mm256_cmpgt_epi32(_mm256_set1_epi32(hi as i32), i);
        _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo as i32), i), below)
    }
}

/// Elements lo..hi of eight, the others 0: AVX2 has no masked load of 16-bit elements.
#[inline(always)]
unsafe fn halves(p: *const u16, lo: usize, hi: usize) -> __m128i {
    // SAFETY: the caller's: p is good for lo..hi, and there is AVX2.
    unsafe {
        if (lo, hi) == (0, 8) {
            return _mm_loadu_si128(p.cast());
        }
        let mut near = [0u16; 8];
        for (i, near) in near.iter_mut().enumerate().take(hi).skip(lo) {
            *near = *p.wrapping_add(i);
        }
        _mm_loadu_si128(near.as_ptr().cast())
    }
}

/// f32 accumulators in 256 bits: for f32, f16 and bf16.
macro_rules! singles256 {
    ($name:ident, $t:ty, $f32:literal, $($loads:tt)*) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Ops for $name {
            type T = $t;
            type Acc = f32;
            type Real = f32;
            type Sum = F32x8;
            type Base = Self;
            type V = __m256;
            type X = __m256;
            const W: usize = 8;
            const ROWS: usize = 2;
            const PASS_LANES: usize = 2;
            // That is f32.
            const UNROLLS: bool = $f32;
            entry256!(real);
            intrinsics! {
                $($loads)*
                fn zero(self) -> __m256 { _mm256_setzero_ps() }
                fn x(self, p: *const f32) -> __m256 { _mm256_loadu_ps(p) }
                fn x_part(self, p: *const f32, lo: usize, hi: usize) -> __m256 {
                    let there = lanes32(lo, hi);
                    let x = _mm256_maskload_ps(p, there);
                    _mm256_blendv_ps(_mm256_set1_ps(-0.0), x, _mm256_castsi256_ps(there))
                }
                fn splat(self, x: f32) -> __m256 { _mm256_set1_ps(x) }
                fn fma(self, a: __m256, x: __m256, acc: __m256) -> __m256 { _mm256_fmadd_ps(a, x, acc) }
                fn add(self, a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
                fn merge(self, a: __m256, b: __m256, _hi: usize) -> __m256 { _mm256_or_ps(a, b) }
                fn load_acc(self, p: *const f32) -> __m256 { _mm256_loadu_ps(p) }
                fn load_acc_part(self, p: *const f32, lo: usize, hi: usize) -> __m256 {
                    _mm256_maskload_ps(p, lanes32(lo, hi))
                }
                fn store(self, v: __m256, p: *mut f32) { _mm256_storeu_ps(p, v) }
                fn store_part(self, v: __m256, p: *mut f32, lo: usize, hi: usize) {
                    _mm256_maskstore_ps(p, lanes32(lo, hi), v)
                }
                fn fold4(self, v: [__m256; 4], out: *mut f32) {
                    let [a, b, c, d] = v;
                    let ab = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
                    let cd = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(c, d), _mm256_permute2f128_ps::<0x31>(c, d));
                    let t = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
                    let t = _mm256_add_ps(t, _mm256_permute_ps::<0xb1>(t));
                    // a _ c _ b _ d _
                    let four = _mm256_permutevar8x32_ps(t, _mm256_setr_epi32(0, 4, 2, 6, 0, 0, 0, 0));
                    _mm_storeu_ps(out, _mm256_castps256_ps128(four));
                }
                fn fold(self, v: __m256) -> f32 { fold8(v) }
            }
        }
    };
}

singles256! { F32x8, f32, true,
    fn store_narrow(self, v: __m256, p: *mut f32) { _mm256_storeu_ps(p, v) }
    fn load(self, p: *const f32) -> __m256 { _mm256_loadu_ps(p) }
    fn load_part(self, p: *const f32, lo: usize, hi: usize) -> __m256 {
        _mm256_maskload_ps(p, lanes32(lo, hi))
    }
    fn load_even(self, p: *const f32) -> __m256 {
        let even = _mm256_setr_epi32(-1, 0, -1, 0, -1, 0, -1, 0);
        let (a, b) = (_mm256_maskload_ps(p, even), _mm256_maskload_ps(p.add(8), even));
        // a0 a2 b0 b2 | a4 a6 b4 b6
        let v = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(a, b));
        _mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(v))
    }
    fn load_even_part(self, p: *const f32, lo: usize, hi: usize) -> __m256 {
        let even = _mm256_setr_epi32(-1, 0, -1, 0, -1, 0, -1, 0);
        let (l0, l8) = (lanes32(2 * lo, 2 * hi), lanes32((2 * lo).saturating_sub(8), (2 * hi).saturating_sub(8)));
        let a = _mm256_maskload_ps(p, _mm256_and_si256(l0, even));
        let b = _mm256_maskload_ps(p.wrapping_add(8), _mm256_and_si256(l8, even));
        let v = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(a, b));
        _mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(v))
    }
}
singles256! { F16x8, f16, false,
    fn store_narrow(self, v: __m256, p: *mut f16) {
        _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v))
    }
    fn load(self, p: *const f16) -> __m256 { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    fn load_part(self, p: *const f16, lo: usize, hi: usize) -> __m256 {
        _mm256_cvtph_ps(halves(p.cast(), lo, hi))
    }
}
singles256! { Bf16x8, bf16, false,
    fn store_narrow(self, v: __m256, p: *mut bf16) {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        let rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
        // Eight values below 2^16, four from each half.
        let packed = _mm256_permute4x64_epi64::<0x8>(_mm256_packus_epi32(rounded, rounded));
        _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(packed))
    }
    fn load(self, p: *const bf16) -> __m256 {
        let v = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v))
    }
    fn load_part(self, p: *const bf16, lo: usize, hi: usize) -> __m256 {
        let v = _mm256_cvtepu16_epi32(halves(p.cast(), lo, hi));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v))
    }
}

#[derive(Clone, Copy)]
pub(crate) struct F64x4;

impl Ops for F64x4 {
    type T = f64;
    type Acc = f64;
    type Real = f64;
    type Sum = F64x4;
    type Base = Self;
    type V = __m256d;
    type X = __m256d;
    const W: usize = 4;
    const ROWS: usize = 2;
    const PASS_LANES: usize = 2;
    const UNROLLS: bool = true;
    entry256!(real);
    intrinsics! {
        fn zero(self) -> __m256d { _mm256_setzero_pd() }
        fn load(self, p: *const f64) -> __m256d { _mm256_loadu_pd(p) }
        fn load_part(self, p: *const f64, lo: usize, hi: usize) -> __m256d {
            _mm256_maskload_pd(p, lanes32(2 * lo, 2 * hi))
        }
        fn load_even(self, p: *const f64) -> __m256d {
            let even = _mm256_setr_epi64x(-1, 0, -1, 0);
            let (a, b) = (_mm256_maskload_pd(p, even), _mm256_maskload_pd(p.add(4), even));
            // a0 b0 a2 b2
            _mm256_permute4x64_pd::<0xd8>(_mm256_unpacklo_pd(a, b))
        }
        fn load_even_part(self, p: *const f64, lo: usize, hi: usize) -> __m256d {
            let even = _mm256_setr_epi64x(-1, 0, -1, 0);
            let (l0, l8) = (lanes32(4 * lo, 4 * hi), lanes32((4 * lo).saturating_sub(8), (4 * hi).saturating_sub(8)));
            let a = _mm256_maskload_pd(p, _mm256_and_si256(l0, even));
            let b = _mm256_maskload_pd(p.wrapping_add(4), _mm256_and_si256(l8, even));
            _mm256_permute4x64_pd::<0xd8>(_mm256_unpacklo_pd(a, b))
        }
        fn x(self, p: *const f64) -> __m256d { _mm256_loadu_pd(p) }
        fn x_part(self, p: *const f64, lo: usize, hi: usize) -> __m256d {
            let there = lanes32(2 * lo, 2 * hi);
            let x = _mm256_maskload_pd(p, there);
            _mm256_blendv_pd(_mm256_set1_pd(-0.0), x, _mm256_castsi256_pd(there))
        }
        fn splat(self, x: f64) -> __m256d { _mm256_set1_pd(x) }
        fn fma(self, a: __m256d, x: __m256d, acc: __m256d) -> __m256d { _mm256_fmadd_pd(a, x, acc) }
        fn add(self, a: __m256d, b: __m256d) -> __m256d { _mm256_add_pd(a, b) }
        fn merge(self, a: __m256d, b: __m256d, _hi: usize) -> __m256d { _mm256_or_pd(a, b) }
        fn load_acc(self, p: *const f64) -> __m256d { _mm256_loadu_pd(p) }
        fn load_acc_part(self, p: *const f64, lo: usize, hi: usize) -> __m256d { self.load_part(p, lo, hi) }
        fn store(self, v: __m256d, p: *mut f64) { _mm256_storeu_pd(p, v) }
        fn store_part(self, v: __m256d, p: *mut f64, lo: usize, hi: usize) {
            _mm256_maskstore_pd(p, lanes32(2 * lo, 2 * hi), v)
        }
        fn store_narrow(self, v: __m256d, p: *mut f64) { _mm256_storeu_pd(p, v) }
        fn fold4(self, v: [__m256d; 4], out: *mut f64) {
            let [a, b, c, d] = v;
            let ab = _mm256_add_pd(_mm256_permute2f128_pd::<0x20>(a, b), _mm256_permute2f128_pd::<0x31>(a, b));
            let cd = _mm256_add_pd(_mm256_permute2f128_pd::<0x20>(c, d), _mm256_permute2f128_pd::<0x31>(c, d));
            // a c b d
            let t = _mm256_add_pd(_mm256_unpacklo_pd(ab, cd), _mm256_unpackhi_pd(ab, cd));
            _mm256_storeu_pd(out, _mm256_permute4x64_pd::<0xd8>(t));
        }
        fn fold(self, v: __m256d) -> f64 { fold_pd(v) }
    }
}

/// Pairs of f32, four in 256 bits.
#[derive(Clone, Copy)]
pub(crate) struct C32x4 {
    conj: bool,
}

impl C32x4 {
    intrinsics! {
        fn prepare(self, x: __m256) -> (__m256, __m256) {
            let sign = if self.conj { 1i64 << 63 } else { 1i64 << 31 };
            let sign = _mm256_castsi256_ps(_mm256_set1_epi64x(sign));
            (x, _mm256_xor_ps(_mm256_permute_ps::<0xb1>(x), sign))
        }
    }
}

impl Ops for C32x4 {
    type T = Complex<f32>;
    type Acc = Complex<f32>;
    type Real = f32;
    type Sum = F32x8;
    type Base = Self;
    type V = __m256;
    type X = (__m256, __m256);
    const W: usize = 4;
    const ROWS: usize = 2;
    entry256!(complex);
    intrinsics! {
        fn zero(self) -> __m256 { _mm256_setzero_ps() }
        fn load(self, p: *const Complex<f32>) -> __m256 { _mm256_loadu_ps(p.cast()) }
        fn load_part(self, p: *const Complex<f32>, lo: usize, hi: usize) -> __m256 {
            _mm256_maskload_ps(p.cast(), lanes32(2 * lo, 2 * hi))
        }
        fn x(self, p: *const Complex<f32>) -> Self::X { self.prepare(_mm256_loadu_ps(p.cast())) }
        fn x_part(self, p: *const Complex<f32>, lo: usize, hi: usize) -> Self::X {
            let there = lanes32(2 * lo, 2 * hi);
            let x = self.prepare(_mm256_maskload_ps(p.cast(), there));
            let there = _mm256_castsi256_ps(there);
            let none = _mm256_set1_ps(-0.0);
            (_mm256_blendv_ps(none, x.0, there), _mm256_blendv_ps(none, x.1, there))
        }
        fn splat(self, x: Complex<f32>) -> Self::X {
            let both = u64::from(x.re.to_bits()) | u64::from(x.im.to_bits()) << 32;
            self.prepare(_mm256_castsi256_ps(_mm256_set1_epi64x(both as i64)))
        }
        fn fma(self, a: __m256, x: Self::X, acc: __m256) -> __m256 {
            let acc = _mm256_fmadd_ps(_mm256_moveldup_ps(a), x.0, acc);
            _mm256_fmadd_ps(_mm256_movehdup_ps(a), x.1, acc)
        }
        fn add(self, a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        fn merge(self, a: __m256, b: __m256, _hi: usize) -> __m256 { _mm256_or_ps(a, b) }
        fn load_acc(self, p: *const Complex<f32>) -> __m256 { _mm256_loadu_ps(p.cast()) }
        fn load_acc_part(self, p: *const Complex<f32>, lo: usize, hi: usize) -> __m256 { self.load_part(p, lo, hi) }
        fn store(self, v: __m256, p: *mut Complex<f32>) { _mm256_storeu_ps(p.cast(), v) }
        fn store_part(self, v: __m256, p: *mut Complex<f32>, lo: usize, hi: usize) {
            _mm256_maskstore_ps(p.cast(), lanes32(2 * lo, 2 * hi), v)
        }
        fn store_narrow(self, v: __m256, p: *mut Complex<f32>) { _mm256_storeu_ps(p.cast(), v) }
        fn fold4(self, v: [__m256; 4], out: *mut Complex<f32>) {
            let [a, b, c, d] = v;
            let ab = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
            let cd = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(c, d), _mm256_permute2f128_ps::<0x31>(c, d));
            let t = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
            _mm256_storeu_pd(out.cast(), _mm256_permute4x64_pd::<0xd8>(_mm256_castps_pd(t)));
        }
        fn fold(self, v: __m256) -> Complex<f32> { fold_c32(v) }
    }
}

/// Pairs of f64, two in 256 bits.
#[derive(Clone, Copy)]
pub(crate) struct C64x2 {
    conj: bool,
}

impl C64x2 {
    intrinsics! {
        fn prepare(self, x: __m256d) -> (__m256d, __m256d) {
            let sign = match self.conj {
                true => _mm256_setr_pd(0.0, -0.0, 0.0, -0.0),
                false => _mm256_setr_pd(-0.0, 0.0, -0.0, 0.0),
            };
            (x, _mm256_xor_pd(_mm256_permute_pd::<0x5>(x), sign))
        }
    }
}

impl Ops for C64x2 {
    type T = Complex<f64>;
    type Acc = Complex<f64>;
    type Real = f64;
    type Sum = F64x4;
    type Base = Self;
    type V = __m256d;
    type X = (__m256d, __m256d);
    const W: usize = 2;
    const ROWS: usize = 2;
    entry256!(complex);
    intrinsics! {
        fn zero(self) -> __m256d { _mm256_setzero_pd() }
        fn load(self, p: *const Complex<f64>) -> __m256d { _mm256_loadu_pd(p.cast()) }
        fn load_part(self, p: *const Complex<f64>, lo: usize, hi: usize) -> __m256d {
            _mm256_maskload_pd(p.cast(), lanes32(4 * lo, 4 * hi))
        }
        fn x(self, p: *const Complex<f64>) -> Self::X { self.prepare(_mm256_loadu_pd(p.cast())) }
        fn x_part(self, p: *const Complex<f64>, lo: usize, hi: usize) -> Self::X {
            let there = lanes32(4 * lo, 4 * hi);
            let x = self.prepare(_mm256_maskload_pd(p.cast(), there));
            let there = _mm256_castsi256_pd(there);
            let none = _mm256_set1_pd(-0.0);
            (_mm256_blendv_pd(none, x.0, there), _mm256_blendv_pd(none, x.1, there))
        }
        fn splat(self, x: Complex<f64>) -> Self::X {
            self.prepare(_mm256_setr_pd(x.re, x.im, x.re, x.im))
        }
        fn fma(self, a: __m256d, x: Self::X, acc: __m256d) -> __m256d {
            let acc = _mm256_fmadd_pd(_mm256_movedup_pd(a), x.0, acc);
            _mm256_fmadd_pd(_mm256_permute_pd::<0xf>(a), x.1, acc)
        }
        fn add(self, a: __m256d, b: __m256d) -> __m256d { _mm256_add_pd(a, b) }
        fn merge(self, a: __m256d, b: __m256d, _hi: usize) -> __m256d { _mm256_or_pd(a, b) }
        fn load_acc(self, p: *const Complex<f64>) -> __m256d { _mm256_loadu_pd(p.cast()) }
        fn load_acc_part(self, p: *const Complex<f64>, lo: usize, hi: usize) -> __m256d { self.load_part(p, lo, hi) }
        fn store(self, v: __m256d, p: *mut Complex<f64>) { _mm256_storeu_pd(p.cast(), v) }
        fn store_part(self, v: __m256d, p: *mut Complex<f64>, lo: usize, hi: usize) {
            _mm256_maskstore_pd(p.cast(), lanes32(4 * lo, 4 * hi), v)
        }
        fn store_narrow(self, v: __m256d, p: *mut Complex<f64>) { _mm256_storeu_pd(p.cast(), v) }
        fn fold4(self, v: [__m256d; 4], out: *mut Complex<f64>) {
            let [a, b, c, d] = v;
            let ab = _mm256_add_pd(_mm256_permute2f128_pd::<0x20>(a, b), _mm256_permute2f128_pd::<0x31>(a, b));
            let cd = _mm256_add_pd(_mm256_permute2f128_pd::<0x20>(c, d), _mm256_permute2f128_pd::<0x31>(c, d));
            _mm256_storeu_pd(out.cast(), ab);
            _mm256_storeu_pd(out.add(2).cast(), cd);
        }
        fn fold(self, v: __m256d) -> Complex<f64> { fold_c64(v) }
    }
}
