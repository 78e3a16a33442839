//! The numbers of scales and codes, without branches: loops over them are vectorised.

use half::f16;

use crate::error::{Error, Result};

/// A slice as an array.
#[inline(always)]
pub fn array<T, const N: usize>(of: &[T]) -> &[T; N] {
    of.try_into().expect("a slice of the length that the function asks for")
}

/// A slice as an array to be written.
#[inline(always)]
pub fn array_mut<T, const N: usize>(of: &mut [T]) -> &mut [T; N] {
    of.try_into().expect("a slice of the length that the function asks for")
}

/// What an f16 stands for. `half` calls a function that looks for an instruction, which a kernel cannot inline.
#[inline(always)]
pub fn f16_value(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bytes));
    let (magnitude, sign) = ((bits & 0x7fff) << 13, (bits & 0x8000) << 16);
    // The exponent has another bias: 2^112 makes up for it, and normalises subnormals. Exact.
    let finite = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
    let special = magnitude | 0x7f80_0000;
    f32::from_bits(if magnitude >= 0x0f80_0000 { special } else { finite } | sign)
}

/// What a bf16 stands for.
#[inline(always)]
pub fn bf16_value(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// A number rounded to f16, to nearest, ties to even.
pub fn f16_bytes(value: f32) -> [u8; 2] {
    f16::from_f32_const(value).to_le_bytes()
}

/// What an e4m3fn stands for: 4 bits of exponent with the bias 7, 3 of mantissa; 0x7f and 0xff are NaN, and there is no
/// infinity.
#[inline(always)]
pub const fn e4m3_value(code: u8) -> f32 {
    let magnitude = (code & 0x7f) as u32;
    let sign = ((code & 0x80) as u32) << 24;
    // A subnormal m * 2^-9 is (1 + m / 8) * 2^-6 less 2^-6: subnormals of f32 would be slow.
    let subnormal = magnitude < 8;
    let exponent = if subnormal { 121 << 23 } else { 120 << 23 };
    let less = if subnormal { 0.015625 } else { 0.0 };
    let value = f32::from_bits((magnitude << 20) + exponent) - less;
    let bits = if magnitude == 0x7f { 0x7fc0_0000 } else { value.to_bits() };
    f32::from_bits(bits | sign)
}

/// [`e4m3_value`] of every code, where there are few to be looked up.
pub static E4M3: [f32; 256] = {
    let (mut values, mut code) = ([0.0; 256], 0);
    while code < 256 {
        values[code] = e4m3_value(code as u8);
        code += 1;
    }
    values
};

/// A number rounded to e4m3fn, to nearest, ties to even; beyond 448 it is 448.
pub fn e4m3_code(value: f32) -> u8 {
    let (magnitude, sign) = (value.abs(), (value.to_bits() >> 24) as u8 & 0x80);
    if magnitude.is_nan() {
        return sign | 0x7f;
    }
    let code = if magnitude < 0.015625 {
        // Multiples of 2^-9; 8 of them are the least normal number, whose code is 8.
        (magnitude * 512.0).round_ties_even() as u32
    } else {
        let bits = magnitude.to_bits();
        ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3)
    };
    sign | code.min(0x7e) as u8
}

/// Twice what an e2m1 stands for: 0, 1, 2, 3, 4, 6, 8, 12, and from code 8 on the negatives of these. There is one zero.
#[inline(always)]
pub fn e2m1_twice(code: u8) -> i8 {
    // Comparisons of bytes: a look-up in a table is not vectorised.
    let m = code & 7;
    let magnitude = m + u8::from(m > 4) + u8::from(m > 5) + 3 * u8::from(m > 6);
    let sign = if code & 8 == 0 { 0 } else { 0xff };
    (magnitude ^ sign).wrapping_sub(sign) as i8
}

/// The first of the codes of e2m1 for which `scale * e2m1_twice(code)` is nearest to the value.
pub fn e2m1_code(value: f32, scale: f32) -> u8 {
    let mut best = (f32::INFINITY, 0);
    for code in 0..16 {
        let error = (scale * f32::from(e2m1_twice(code)) - value).abs();
        if error < best.0 {
            best = (error, code);
        }
    }
    best.1
}

/// The largest magnitude; +0 of none.
pub fn largest(of: &[f32]) -> f32 {
    of.iter().fold(0.0, |most, value| most.max(value.abs()))
}

/// The codes of `PART` bytes at a time: their low halves, then their high halves; twice as many codes as bytes.
///
/// One loop over all codes: compilers vectorise it, and not two short ones.
#[inline(always)]
pub fn halves<const PART: usize, const LEN: usize>(bytes: &[u8]) -> [u8; LEN] {
    let (mut twice, mut low) = ([0; LEN], [0; LEN]);
    let to = twice.chunks_exact_mut(2 * PART).zip(low.chunks_exact_mut(2 * PART));
    for ((twice, low), bytes) in to.zip(bytes.chunks_exact(PART)) {
        twice[..PART].copy_from_slice(bytes);
        twice[PART..].copy_from_slice(bytes);
        low[..PART].fill(15);
    }
    for (byte, low) in twice.iter_mut().zip(low) {
        *byte = *byte & low | *byte >> 4 & !low & 15;
    }
    twice
}

/// Each of these numbers so many times.
#[inline(always)]
pub fn spread<T: Copy + Default, const N: usize, const TIMES: usize, const LEN: usize>(
    of: [T; N],
) -> [T; LEN] {
    let mut all = [T::default(); LEN];
    for (to, of) in all.as_chunks_mut::<TIMES>().0.iter_mut().zip(of) {
        *to = [of; TIMES];
    }
    all
}

/// Packs codes of 4 bits: the first half of them is the low halves of the bytes.
pub fn pack_halves(codes: &[u8], bytes: &mut [u8]) {
    let (low, high) = codes.split_at(bytes.len());
    for ((byte, low), high) in bytes.iter_mut().zip(low).zip(high) {
        *byte = low & 15 | high << 4;
    }
}

/// Packs codes of 4 bits that lie as in most tensors of Python, the even column in the low half of a byte.
pub fn pack_pairs(pairs: &[u8], bytes: &mut [u8]) {
    let code = |column: usize| pairs[column / 2] >> (4 * (column % 2)) & 15;
    let half = bytes.len();
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = code(i) | code(half + i) << 4;
    }
}

/// Elements of a matrix of 4-bit codes, in pairs, whose rows are whole blocks; `of` are the elements of a block and of a scale.
///
/// # Errors
/// The lengths do not fit.
pub fn pairs_and_scales(
    format: &str,
    (rows, columns): (usize, usize),
    (codes, scales): (&[u8], &[u8]),
    of: [usize; 2],
) -> Result<usize> {
    let len = rows.checked_mul(columns).filter(|_| columns.is_multiple_of(of[0]));
    let (codes, scales) = (codes.len(), scales.len());
    len.filter(|len| (codes, scales) == (len / 2, len / of[1])).ok_or_else(|| {
        let reason = format!("{rows} × {columns} elements in {codes} bytes with {scales} scales");
        Error { format: format.into(), reason }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_16_bits_are_those_of_half() {
        for bits in 0..=u16::MAX {
            let (own, half) = (f16_value(bits.to_le_bytes()), f16::from_bits(bits).to_f32_const());
            assert!(own.to_bits() == half.to_bits() || own.is_nan() && half.is_nan(), "{bits:#x}");
            let (own, half) =
                (bf16_value(bits.to_le_bytes()), half::bf16::from_bits(bits).to_f32());
            assert!(own.to_bits() == half.to_bits() || own.is_nan() && half.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn e4m3_is_its_definition() {
        for code in 0..=0x7e_u8 {
            let (e, m) = (i32::from(code >> 3), f32::from(code & 7));
            let want = if e == 0 { m / 512.0 } else { (1.0 + m / 8.0) * 2f32.powi(e - 7) };
            assert_eq!(e4m3_value(code).to_bits(), want.to_bits(), "{code:#x}");
            assert_eq!(e4m3_value(code | 0x80).to_bits(), (-want).to_bits(), "{code:#x}");
            assert_eq!((e4m3_code(want), e4m3_code(-want)), (code, code | 0x80));
            if code < 0x7e {
                // Between two numbers: the nearer one, of two as near the even one.
                let next = e4m3_value(code + 1);
                let middle = (want + next) / 2.0;
                assert_eq!(e4m3_code(middle), code + (code & 1), "{code:#x}");
                assert_eq!(e4m3_code(middle.next_down()), code);
                assert_eq!(e4m3_code(middle.next_up()), code + 1);
            }
        }
        assert!(e4m3_value(0x7f).is_nan() && e4m3_value(0xff).is_nan());
        assert_eq!((e4m3_code(1e9), e4m3_code(f32::NEG_INFINITY)), (0x7e, 0xfe));
        assert_eq!(e4m3_code(f32::NAN) & 0x7f, 0x7f);
    }

    #[test]
    fn e2m1_is_its_definition() {
        let want = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0_f32];
        for (code, want) in (0..8).zip(want) {
            assert_eq!(f32::from(e2m1_twice(code)), 2.0 * want);
            assert_eq!(f32::from(e2m1_twice(code | 8)), -2.0 * want);
            assert_eq!(e2m1_code(want, 0.5), code);
        }
    }

    #[test]
    fn halves_are_packed_again() {
        let bytes = [0x21, 0x43, 0x65, 0xf7];
        let mut again = [0; 4];
        assert_eq!(halves::<2, 8>(&bytes), [1, 3, 2, 4, 5, 7, 6, 15]);
        let codes = halves::<4, 8>(&bytes);
        assert_eq!(codes, [1, 3, 5, 7, 2, 4, 6, 15]);
        pack_halves(&codes, &mut again);
        assert_eq!(again, bytes);
        pack_pairs(&[0x31, 0x75, 0x42, 0xf6], &mut again);
        assert_eq!(again, bytes);
    }
}
