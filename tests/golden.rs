//! Golden vectors: products whose bits were found by an independent program in exact rational
//! arithmetic (`tests/golden/make.py`), checked in, and compared on every device and with the
//! reference itself.
#![deny(unsafe_code)]

#[macro_use]
mod common;

use common::operand::{VARIANTS, Variant};
use common::{Check, Size, nan, same, trial};
use gemv::half::{bf16, f16};
use gemv::ndarray::{Array1, Array2};
use gemv::num_complex::Complex;
use gemv::{Accumulator, Device, Dtype, Element, MatrixRef, Times};
use gemv_testkit::generated;
use libtest_mimic::Trial;

/// Numbers from their bits.
trait FromBits: Sized {
    const PARTS: usize;
    fn from_words(words: &[u64]) -> Self;
}

macro_rules! from_bits {
    ($($t:ty: $bits:ty),*) => { $(
        impl FromBits for $t {
            const PARTS: usize = 1;
            fn from_words(words: &[u64]) -> Self {
                <$t>::from_bits(<$bits>::try_from(words[0]).expect("bits of this type"))
            }
        }
    )* };
}
from_bits!(f32: u32, f64: u64, f16: u16, bf16: u16);

impl<F: FromBits> FromBits for Complex<F> {
    const PARTS: usize = 2;
    fn from_words(words: &[u64]) -> Self {
        Complex { re: F::from_words(&words[..1]), im: F::from_words(&words[1..]) }
    }
}

/// One case of a file.
struct Case<T: Element, V: Element = T> {
    name: String,
    conj: bool,
    a: Array2<T>,
    x: Array1<V>,
    alpha: V::Acc,
    beta: V::Acc,
    /// `None` where it must not be read.
    y: Option<Vec<V>>,
    want: Vec<V>,
}

fn numbers<N: FromBits>(words: &str) -> Vec<N> {
    let words: Vec<u64> = words
        .split_whitespace()
        .map(|w| u64::from_str_radix(w, 16).expect("a word in hexadecimal"))
        .collect();
    assert!(words.len().is_multiple_of(N::PARTS), "half a number");
    words.chunks(N::PARTS).map(N::from_words).collect()
}

fn parse<T, V>(text: &str) -> Vec<Case<T, V>>
where
    T: Element + FromBits,
    V: Element<Acc: FromBits> + FromBits,
{
    let mut cases: Vec<Case<T, V>> = Vec::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        if key == "case" {
            let words: Vec<&str> = rest.split(' ').collect();
            let size = |k: usize| words[k].parse::<usize>().expect("a size");
            cases.push(Case {
                name: words[0].into(),
                conj: words[3] == "1",
                a: Array2::default((size(1), size(2))),
                x: Array1::default(size(2)),
                alpha: V::Acc::ZERO,
                beta: V::Acc::ZERO,
                y: None,
                want: Vec::new(),
            });
            continue;
        }
        let case = cases.last_mut().expect("a file begins with a case");
        let (m, n) = case.a.dim();
        match key {
            "seed" => {
                let seed: u64 = rest.parse().expect("a number");
                case.a = Array2::from_shape_fn((m, n), |(i, j)| generated(seed, i * n + j));
                case.x = Array1::from_shape_fn(n, |j| generated(seed + 1, j));
            }
            "a" => case.a = Array2::from_shape_vec((m, n), numbers(rest)).expect("m n numbers"),
            "x" => case.x = Array1::from_vec(numbers(rest)),
            "alpha" => case.alpha = numbers(rest)[0],
            "beta" => case.beta = numbers(rest)[0],
            "y" => case.y = (rest != "-").then(|| numbers(rest)),
            "want" => case.want = numbers(rest),
            other => panic!("{other:?} in a golden file"),
        }
    }
    cases
}

fn text(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => include_str!("golden/f32.txt"),
        Dtype::F64 => include_str!("golden/f64.txt"),
        Dtype::F16 => include_str!("golden/f16.txt"),
        Dtype::Bf16 => include_str!("golden/bf16.txt"),
        Dtype::C32 => include_str!("golden/c32.txt"),
        Dtype::C64 => include_str!("golden/c64.txt"),
    }
}

fn text_of_pair(pair: (Dtype, Dtype)) -> &'static str {
    match pair {
        (Dtype::F16, Dtype::F32) => include_str!("golden/f16-f32.txt"),
        (Dtype::Bf16, Dtype::F32) => include_str!("golden/bf16-f32.txt"),
        (Dtype::F32, Dtype::F64) => include_str!("golden/f32-f64.txt"),
        other => panic!("{other:?} is no mixed pair"),
    }
}

fn run<T: Element>(device: &Device, case: &Case<T>, variant: Variant) -> Check {
    let held = variant.hold(&case.a);
    let resident = held.sub_view(device).map_err(|e| e.to_string())?;
    for a in [MatrixRef::Host(held.view()), MatrixRef::Device(&resident)] {
        let mut y = Array1::from(case.y.clone().unwrap_or(vec![nan(); case.want.len()]));
        let (alpha, beta) = (case.alpha, case.beta);
        let done = match case.conj {
            true => device.product(a, &case.x).conj().scaled(alpha, beta).to(&mut y),
            false => device.gemv(alpha, a, &case.x, beta, &mut y),
        };
        done.map_err(|e| e.to_string())?;
        same(y.as_slice().expect("owned"), &case.want)
            .map_err(|e| format!("{}, {}: {e}", case.name, variant.name))?;
        if !case.conj {
            // Rule 8: a column has the bits of its own product, whatever stands beside it.
            columns(device, case, a).map_err(|e| format!("{}, columns: {e}", case.name))?;
        }
    }
    Ok(())
}

/// The case's vector as one column of several.
fn columns<T: Element>(device: &Device, case: &Case<T>, a: MatrixRef<'_, T>) -> Check {
    let before = case.y.clone().unwrap_or(vec![nan(); case.want.len()]);
    for (count, at) in [(2, 1), (5, 2)] {
        let zero = T::default();
        let mut x = Array2::from_elem((case.x.len(), count), zero);
        x.column_mut(at).assign(&case.x);
        let mut y = Array2::from_elem((before.len(), count), zero);
        y.column_mut(at).assign(&Array1::from(before.clone()));
        device
            .product(a, &x)
            .scaled(case.alpha, case.beta)
            .to(&mut y)
            .map_err(|e| e.to_string())?;
        same(&y.column(at).to_vec(), &case.want)?;
    }
    Ok(())
}

fn check<T: Element + FromBits>(device: &Device) -> Check
where
    T::Acc: FromBits,
{
    let cases = parse::<T, T>(text(T::DTYPE));
    if cases.len() < 17 {
        return Err(format!("only {} cases were read", cases.len()));
    }
    for case in cases {
        if common::size() == Size::Tiny && case.a.len() > 300 {
            continue;
        }
        for variant in VARIANTS {
            let few = case.a.len() <= 300 && common::size() != Size::Tiny;
            let plain = matches!(variant.name, "c" | "f" | "columns-2");
            if variant.repeat == common::operand::Repeat::None && (few || plain) {
                run(device, &case, variant)?;
            }
        }
    }
    Ok(())
}

/// A matrix of one type with vectors of another: alone, and as one column of several.
fn check_mixed<T, V>(device: &Device) -> Check
where
    T: Element + Times<V> + FromBits,
    V: Element<Acc: FromBits> + FromBits,
{
    let cases = parse::<T, V>(text_of_pair((T::DTYPE, V::DTYPE)));
    if cases.len() < 17 {
        return Err(format!("only {} cases were read", cases.len()));
    }
    for case in cases {
        if common::size() == Size::Tiny && case.a.len() > 300 {
            continue;
        }
        let before = case.y.clone().unwrap_or(vec![nan(); case.want.len()]);
        for name in ["c", "f", "columns-2"] {
            let variant = VARIANTS.into_iter().find(|v| v.name == name).expect("a variant");
            let held = variant.hold(&case.a);
            let resident = held.sub_view(device).map_err(|e| e.to_string())?;
            for a in [MatrixRef::Host(held.view()), MatrixRef::Device(&resident)] {
                for (count, at) in [(1, 0), (2, 1), (5, 2)] {
                    let mut x = Array2::from_elem((case.x.len(), count), V::default());
                    x.column_mut(at).assign(&case.x);
                    let mut y = Array2::from_elem((before.len(), count), V::default());
                    y.column_mut(at).assign(&Array1::from(before.clone()));
                    let (alpha, beta) = (case.alpha, case.beta);
                    let done = match count {
                        1 => device.product(a, x.column(0)).scaled(alpha, beta).to(y.column_mut(0)),
                        _ => device.product(a, &x).scaled(alpha, beta).to(&mut y),
                    };
                    done.map_err(|e| e.to_string())?;
                    same(&y.column(at).to_vec(), &case.want)
                        .map_err(|e| format!("{}, {name}, {count} columns: {e}", case.name))?;
                }
            }
        }
    }
    Ok(())
}

fn main() {
    let targets = common::targets();
    let mut trials = common::absences(&targets);
    for target in &targets {
        let Ok(device) = &target.device else { continue };
        for dtype in Dtype::ALL {
            let name = format!("{}/{dtype}/golden", target.id);
            match common::supported(device, dtype) {
                Err(why) => trials.push(
                    Trial::test(format!("{name}/unsupported: {why}"), move || Err(why.into()))
                        .with_ignored_flag(true),
                ),
                Ok(()) => {
                    let device = device.clone();
                    let body = move || with_type!(dtype, T => check::<T>(&device));
                    trials.push(trial(name, body));
                }
            }
        }
        for pair in Dtype::MIXED {
            let name = format!("{}/{}*{}/golden", target.id, pair.0, pair.1);
            let ignored = common::supported_mixed(device, pair).is_err();
            let device = device.clone();
            let body = move || with_mixed!(pair, T, V => check_mixed::<T, V>(&device));
            trials.push(trial(name, body).with_ignored_flag(ignored));
        }
    }
    common::main(trials);
}
