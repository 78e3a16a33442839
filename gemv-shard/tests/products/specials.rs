//! Signed zeros, infinities and subnormals in the sums of segments, whole and reduced, against the
//! reference.
use crate::common::{Random, blocks, devices, same, select, whole};
use gemv::ndarray::{Array1, Array2};
use gemv::num_complex::Complex;
use gemv::{Device, Element, Times};
use gemv_shard::{Partial, SumElement};

/// Numbers whose sums are -0, infinite or subnormal. A product of two `tiny` ones is below all numbers: a
/// segment of 64 or more such products, all of them negative, has the sum -0.
trait Special: Element {
    fn tiny(sign: f64) -> Self;
    fn special(random: &mut Random) -> Self;
}

macro_rules! special {
    ($($t:ident, $tiny:expr, $least:expr;)*) => { $(
        impl Special for $t {
            fn tiny(sign: f64) -> Self {
                sign as $t * $tiny
            }
            fn special(random: &mut Random) -> Self {
                let sign = if random.below(2) == 0 { 1.0 } else { -1.0 };
                match random.below(40) {
                    0 => sign * $t::INFINITY,
                    1 => sign * $t::MAX,
                    2..20 => sign * $tiny,
                    20..25 => sign * 0.0,
                    _ => sign * $least * random.below(100) as $t,
                }
            }
        }
        impl Special for Complex<$t> {
            fn tiny(sign: f64) -> Self {
                Complex::new(<$t as Special>::tiny(sign), 0.0)
            }
            fn special(random: &mut Random) -> Self {
                let part = |random: &mut Random| <$t as Special>::special(random);
                Complex::new(part(random), part(random))
            }
        }
    )* };
}
special! {
    f32, 1e-30, f32::from_bits(1);
    f64, 1e-200, f64::from_bits(1);
}

/// Finishes the whole and what is left of it for each number of processes, with factors of 1 and 0 (which leave
/// the sum as it is) and with others.
fn check<S: SumElement + Times<S>>(a: &Array2<S>, x: &Array1<S>, on: &[Device], what: &str) {
    let n = x.len();
    let odd = S::from_parts(-0.7, 0.3);
    let mut parts = vec![vec![Partial::new(&on[0], a, x, 0, n).unwrap()]];
    for k in 0..=6 {
        let processes = 1 << k;
        let each = (0..processes).map(|process| {
            let (a, x) = select(a, x, &blocks(process, processes, n));
            let device = &on[process % on.len()];
            Partial::cyclic(device, &a, &x, process, processes, n).unwrap()
        });
        parts.push(each.map(|part| part.reduce(processes).unwrap()).collect());
    }
    let before = Array1::from_elem(a.nrows(), S::from_parts(-0.0, -0.0));
    let factors = [(S::ONE, S::ZERO), (S::ONE, S::ONE), (odd, S::ZERO), (odd, odd)];
    let wanted = factors.map(|(alpha, beta)| whole(alpha, a, x, beta, &before));
    for (cut, parts) in parts.into_iter().enumerate() {
        let sums = Partial::merge(parts).unwrap();
        for ((alpha, beta), want) in factors.iter().zip(&wanted) {
            for device in on {
                let mut y = before.clone();
                sums.finish(device, *alpha, *beta, &mut y).unwrap();
                let what = format!("{what}, cut {cut}, {alpha:?} and {beta:?} on {device}");
                same(&y, want, &what);
            }
        }
    }
}

/// Fewer segments than processes, one more and one less than a group of 64 or 256, and several groups.
const LENGTHS: [usize; 16] =
    [0, 1, 63, 64, 255, 256, 257, 300, 512, 1000, 4096, 16_384, 16_385, 16_700, 65_536, 65_600];

fn check_all<S: SumElement + Special>() {
    let on = devices::<S, S>();
    let random = &mut Random(1);
    for n in LENGTHS {
        // All sums of segments are -0, or all but the last; the rest of the row is +0, or is not there.
        let negative = Array2::from_elem((2, n), S::tiny(-1.0));
        let x = Array1::from_elem(n, S::tiny(1.0));
        check(&negative, &x, &on, &format!("{n} columns of -0"));
        let m = if n > 10_000 { 1 } else { 6 };
        let a = Array2::from_shape_simple_fn((m, n), || S::special(random));
        let x = Array1::from_shape_simple_fn(n, || S::special(random));
        check(&a, &x, &on, &format!("{n} columns of special numbers"));
        // Infinities one by one: a sum that is infinite, not NaN, in one row.
        let mut a = random.matrix::<S>(m, n);
        if n > 0 {
            a.row_mut(0)[n / 2] = S::from_parts(f64::INFINITY, 1.0);
            a.row_mut(m - 1)[n - 1] = S::from_parts(1.0, f64::NEG_INFINITY);
        }
        check(&a, &random.vector(n), &on, &format!("{n} columns, one infinite"));
    }
}

#[test]
fn single() {
    check_all::<f32>();
}

#[test]
fn double() {
    check_all::<f64>();
}

#[test]
fn pair() {
    check_all::<Complex<f32>>();
}

#[test]
fn double_pair() {
    check_all::<Complex<f64>>();
}

/// That there are sums of -0 at all.
#[test]
fn negative_zeros() {
    let device = &devices::<f32, f32>()[0];
    let (a, x) =
        (Array2::from_elem((1, 256), f32::tiny(-1.0)), Array1::from_elem(256, f32::tiny(1.0)));
    let mut y = [1.0f32];
    let sums = Partial::new(device, &a, &x, 0, 256).unwrap();
    sums.finish(device, 1.0, 0.0, &mut y).unwrap();
    assert_eq!(y[0].to_bits(), (-0.0f32).to_bits());
    let sums = Partial::merge([
        Partial::new(device, &a, &x, 0, 512).unwrap(),
        Partial::new(device, &a, &x, 256, 512).unwrap(),
    ]);
    sums.unwrap().finish(device, 1.0, 0.0, &mut y).unwrap();
    assert_eq!(y[0].to_bits(), 0.0f32.to_bits());
}
