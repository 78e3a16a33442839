//! Partial sums, byte by byte as an independent program made them in exact rational arithmetic
//! (`tests/golden/make.py`), on every device.
use std::collections::BTreeMap;

use crate::common::{devices, select};
use gemv::half::{bf16, f16};
use gemv::ndarray::{Array1, Array2, Axis, Slice};
use gemv::num_complex::Complex;
use gemv::{Element, Times};
use gemv_core::order::SEGMENT;
use gemv_shard::{Partial, SumElement};
use gemv_testkit::generated;

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("a byte in hexadecimal");
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn check<T, V, S>(name: &str) -> BTreeMap<&'static str, usize>
where
    T: Element + Times<S> + Times<V>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let text = include_str!("../../../tests/golden/partials.txt");
    let mut seen = BTreeMap::new();
    for device in devices::<T, V>() {
        let mut case = None;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<usize>().expect("a number");
            if words[0] == "case" {
                let (m, n, seed) = (number(2), number(3), number(4) as u64);
                case = (words[1] == name).then(|| {
                    let a = Array2::from_shape_fn((m, n), |(i, j)| generated::<T>(seed, i * n + j));
                    (a, Array1::from_shape_fn(n, |j| generated::<V>(seed + 1, j)))
                });
                continue;
            }
            let Some((a, x)) = &case else { continue };
            let (n, want) = (x.len(), bytes(words[3]));
            let (first, second) = (number(1), number(2));
            let part = if words[0] == "range" {
                let columns = Slice::from(first..second);
                let (a, x) = (a.slice_axis(Axis(1), columns), x.slice_axis(Axis(0), columns));
                Partial::new(&device, a, x, first, n).unwrap()
            } else {
                let mine: Vec<usize> = (0..n).filter(|j| j / SEGMENT % second == first).collect();
                let (a, x) = select(a, x, &mine);
                let part = Partial::cyclic(&device, &a, &x, first, second, n).unwrap();
                if words[0] == "reduced" { part.reduce(second).unwrap() } else { part }
            };
            assert!(part.to_bytes().unwrap() == want, "{device}: {name}, n = {n}: {}", &line[..30]);
            assert_eq!(Partial::from_bytes(&want).unwrap(), part);
            let kind = ["range", "cyclic", "reduced"].into_iter().find(|kind| *kind == words[0]);
            *seen.entry(kind.expect("a kind of part")).or_default() += 1;
        }
    }
    seen
}

macro_rules! types {
    ($($test:ident: $t:ty, $v:ty, $name:literal;)*) => { $(
        #[test]
        fn $test() {
            let devices = devices::<$t, $v>().len();
            let want = [("cyclic", 16), ("range", 8), ("reduced", 13)];
            let want = want.map(|(kind, count)| (kind, count * devices));
            assert_eq!(check::<$t, $v, _>($name), want.into());
        }
    )* };
}
types! {
    single: f32, f32, "f32";
    double: f64, f64, "f64";
    half: f16, f16, "f16";
    brain: bf16, bf16, "bf16";
    pair: Complex<f32>, Complex<f32>, "c32";
    double_pair: Complex<f64>, Complex<f64>, "c64";
    half_single: f16, f32, "f16-f32";
    brain_single: bf16, f32, "bf16-f32";
    single_double: f32, f64, "f32-f64";
}
