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
struct Case<T, V: Element> {
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

fn text(types: (Dtype, Dtype)) -> &'static str {
    macro_rules! text {
        ($($a:ident, $x:ident, $name:literal;)*) => {
            match types {
                $((Dtype::$a, Dtype::$x) => include_str!(concat!("golden/", $name, ".txt")),)*
                other => panic!("there are no products of {other:?}"),
            }
        };
    }
    text! {
        F32, F32, "f32";
        F64, F64, "f64";
        F16, F16, "f16";
        Bf16, Bf16, "bf16";
        C32, C32, "c32";
        C64, C64, "c64";
        F16, F32, "f16-f32";
        Bf16, F32, "bf16-f32";
        F32, F64, "f32-f64";
    }
}

/// Rule 8: a column has the bits of its own product, whatever stands beside it. So the case's vector is multiplied alone
/// and as one column of several.
fn run<T, V>(device: &Device, case: &Case<T, V>, variant: Variant) -> Check
where
    T: Element + Times<V>,
    V: Element,
{
    let held = variant.hold(&case.a);
    let resident = held.sub_view(device).map_err(|e| e.to_string())?;
    let before = Array1::from(case.y.clone().unwrap_or(vec![nan(); case.want.len()]));
    for a in [MatrixRef::Host(held.view()), MatrixRef::Device(&resident)] {
        for (count, at) in [(1, 0), (2, 1), (5, 2)] {
            let mut x = Array2::from_elem((case.x.len(), count), V::default());
            x.column_mut(at).assign(&case.x);
            let mut y = Array2::from_elem((before.len(), count), V::default());
            y.column_mut(at).assign(&before);
            let (alpha, beta) = (case.alpha, case.beta);
            let done = match count {
                1 => {
                    let product = device.product(a, x.column(0)).conj_if(case.conj);
                    product.scaled(alpha, beta).to(y.column_mut(0))
                }
                _ => device.product(a, &x).conj_if(case.conj).scaled(alpha, beta).to(&mut y),
            };
            done.map_err(|e| e.to_string())?;
            same(&y.column(at).to_vec(), &case.want)
                .map_err(|e| format!("{}, {}, {count} columns: {e}", case.name, variant.name))?;
        }
    }
    Ok(())
}

fn check<T, V>(device: &Device) -> Check
where
    T: Element + Times<V> + FromBits,
    V: Element<Acc: FromBits> + FromBits,
{
    let cases = parse::<T, V>(text((T::DTYPE, V::DTYPE)));
    if cases.len() < 17 {
        return Err(format!("only {} cases were read", cases.len()));
    }
    let tiny = common::size() == Size::Tiny;
    for case in cases.iter().filter(|case| !tiny || case.a.len() <= 300) {
        // Two types are read by the same loops as one.
        let all = case.a.len() <= 300 && !tiny && T::DTYPE == V::DTYPE;
        for variant in VARIANTS {
            let plain = matches!(variant.name, "c" | "f" | "columns-2");
            if variant.repeat == common::operand::Repeat::None && (all || plain) {
                run(device, case, variant)?;
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
        let one = Dtype::ALL.map(|dtype| (dtype, dtype));
        for types in one.into_iter().chain(Dtype::MIXED) {
            let name = match types.0 == types.1 {
                true => format!("{}/{}/golden", target.id, types.0),
                false => format!("{}/{}*{}/golden", target.id, types.0, types.1),
            };
            let ignored = common::supported_mixed(device, types).is_err();
            let device = device.clone();
            let body = move || gemv::unstable::for_types!(types, T, V => check::<T, V>(&device));
            trials.push(trial(name, body).with_ignored_flag(ignored));
        }
    }
    common::main(trials);
}
