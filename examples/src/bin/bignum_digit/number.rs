//! Numbers of signed digits on the host: inputs, the product on the CPU, and the check by num-bigint.

use gemv_examples::random::Random;
use num_bigint::{BigInt, Sign};
use rayon::prelude::*;

/// Bits of the base.
pub(crate) const BITS: u32 = 30;
pub(crate) const BASE: i32 = 1 << BITS;

/// What the digits of a number are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// Any, from -BASE to BASE.
    Random,
    /// BASE, the largest.
    Maximal,
    /// BASE and -BASE in turn.
    Alternating,
}

impl Input {
    pub(crate) const ALL: [Input; 3] = [Input::Random, Input::Maximal, Input::Alternating];

    pub(crate) fn digits(self, n: usize, random: &mut Random) -> Vec<i32> {
        match self {
            Input::Random => {
                let base = i64::from(BASE);
                let any = |_| (i64::from(random.below(2 * BASE as u32 + 1)) - base) as i32;
                (0..n).map(any).collect()
            }
            Input::Maximal => vec![BASE; n],
            Input::Alternating => (0..n).map(|i| if i % 2 == 0 { BASE } else { -BASE }).collect(),
        }
    }
}

/// Digits of one task.
const PART: usize = 1 << 14;

/// y = k x on rayon's pool; `y` has a digit more than `x`. The digits are those of the kernels.
pub(crate) fn multiply(x: &[i32], k: i32, y: &mut [i32]) {
    let k = i64::from(k);
    y.par_chunks_mut(PART).enumerate().for_each(|(part, y)| {
        let first = part * PART;
        let before = |back: usize| {
            first.checked_sub(back).map_or(0, |i| x.get(i).map_or(0, |&v| i64::from(v) * k))
        };
        let (p1, p2) = (before(1), before(2));
        let (mut above, mut coming) = (high(p1), carry(low(p1) + high(p2)));
        let own = &x[first..(first + y.len()).min(x.len())];
        let (front, last) = y.split_at_mut(own.len());
        for (y, &x) in front.iter_mut().zip(own) {
            let p = i64::from(x) * k;
            let s = low(p) + above;
            let out = carry(s);
            *y = s - out * BASE + coming;
            (above, coming) = (high(p), out);
        }
        // The digit that y has more.
        if let [last] = last {
            *last = above + coming;
        }
    });
}

/// The first digits of `y` from `x`, on rayon's pool: the roof.
pub(crate) fn copy(x: &[i32], y: &mut [i32]) {
    let parts = y.par_chunks_mut(PART).zip(x.par_chunks(PART));
    parts.for_each(|(y, x)| y[..x.len()].copy_from_slice(x));
}

fn low(p: i64) -> i32 {
    (p & i64::from(BASE - 1)) as i32
}

fn high(p: i64) -> i32 {
    (p >> BITS) as i32
}

fn carry(s: i32) -> i32 {
    i32::from(s >= BASE)
}

/// The value of digits.
pub(crate) fn value(digits: &[i32]) -> BigInt {
    // Of one sign first: each digit from 0 to BASE - 1, and what is carried beyond the last.
    let mut carried = 0i64;
    let mut words = Vec::with_capacity(digits.len() + 2);
    let (mut bits, mut held) = (0u64, 0u32);
    let mut push = |digit: u32, words: &mut Vec<u32>| {
        bits |= u64::from(digit) << held;
        held += BITS;
        if held >= 32 {
            words.push(bits as u32);
            bits >>= 32;
            held -= 32;
        }
    };
    for &digit in digits {
        let sum = i64::from(digit) + carried;
        carried = sum >> BITS;
        push((sum & i64::from(BASE - 1)) as u32, &mut words);
    }
    // Zeros, until every digit has left.
    push(0, &mut words);
    push(0, &mut words);
    let low = BigInt::from_slice(Sign::Plus, &words);
    low + (BigInt::from(carried) << (BITS as usize * digits.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_the_sum_of_its_digits() {
        let mut random = Random(1);
        for n in [0, 1, 2, 3, 15, 16, 17, 40] {
            for input in Input::ALL {
                let digits = input.digits(n, &mut random);
                let want = digits.iter().rev().fold(BigInt::ZERO, |sum, &d| sum * BASE + d);
                assert_eq!(value(&digits), want, "{input:?} {n}");
            }
        }
    }

    #[test]
    fn products_are_those_of_num_bigint_and_digits_stay_digits() {
        let mut random = Random(2);
        for n in [1, 2, 3, 100, PART - 1, PART, PART + 1, 2 * PART] {
            for input in Input::ALL {
                let x = input.digits(n, &mut random);
                for k in [0, 1, BASE / 2, BASE - 1, random.below(BASE as u32) as i32] {
                    let mut y = vec![i32::MIN; n + 1];
                    multiply(&x, k, &mut y);
                    assert_eq!(value(&y), value(&x) * k, "{input:?} {n} {k}");
                    assert!(y.iter().all(|d| (-BASE..=BASE).contains(d)));
                }
            }
        }
    }
}
