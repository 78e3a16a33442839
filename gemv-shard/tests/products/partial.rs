//! Products in parts have the bits of the whole: on every device, of every type, cut anywhere.
use crate::common::{Random, blocks, devices, element, held, reversed, same, select, whole};
use gemv::half::{bf16, f16};
use gemv::ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis, Slice};
use gemv::num_complex::Complex;
use gemv::{Accumulator, Device, Element, MatrixRef, Times, VectorMut, VectorRef};
use gemv_shard::{Error, Partial, SumElement};

const SEGMENT: usize = gemv_core::order::SEGMENT;

/// The part that `make` makes of a matrix and a vector, each in a layout and a place by chance; as bytes and
/// back.
fn part<T, V, S>(
    random: &mut Random,
    device: &Device,
    a: ArrayView2<'_, T>,
    x: ArrayView1<'_, V>,
    make: impl Fn(MatrixRef<'_, T>, VectorRef<'_, V>) -> gemv_shard::Result<Partial<S>>,
) -> Partial<S>
where
    T: Element + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let a = held(random, a);
    let x = if random.below(2) == 0 { x.to_owned() } else { reversed(x) };
    let (there_a, there_x) = (device.matrix(&a).unwrap(), device.vector(&x).unwrap());
    let a = if random.below(2) == 0 { MatrixRef::from(&there_a) } else { MatrixRef::from(&a) };
    let x = if random.below(2) == 0 { VectorRef::from(&there_x) } else { VectorRef::from(&x) };
    let part = make(a, x).unwrap();
    Partial::from_bytes(&part.to_bytes().unwrap()).unwrap()
}

/// The product cut by chance, at multiples of 256.
fn cut<T, V, S>(random: &mut Random, a: &Array2<T>, x: &Array1<V>, on: &[Device]) -> Vec<Partial<S>>
where
    T: Element + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let n = x.len();
    let mut ends: Vec<usize> =
        (0..random.below(6)).map(|_| random.below(n / SEGMENT + 1) * SEGMENT).collect();
    ends.push(n);
    ends.sort_unstable();
    let (mut parts, mut first) = (Vec::new(), 0);
    for end in ends {
        let columns = Slice::from(first..end);
        let (a, x) = (a.slice_axis(Axis(1), columns), x.slice_axis(Axis(0), columns));
        let device = &on[random.below(on.len())];
        let make = |a: MatrixRef<'_, T>, x: VectorRef<'_, V>| Partial::new(device, a, x, first, n);
        parts.push(part(random, device, a, x, make));
        first = end;
    }
    random.shuffle(&mut parts);
    parts
}

fn cyclic<T, V, S>(
    random: &mut Random,
    a: &Array2<T>,
    x: &Array1<V>,
    processes: usize,
    on: &[Device],
) -> Vec<Partial<S>>
where
    T: Element + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let n = x.len();
    let mut parts: Vec<_> = (0..processes)
        .map(|process| {
            let columns = blocks(process, processes, n);
            let (a, x) = select(a, x, &columns);
            let device = &on[random.below(on.len())];
            part(random, device, a.view(), x.view(), |a, x| {
                Partial::cyclic(device, a, x, process, processes, n)
            })
        })
        .collect();
    random.shuffle(&mut parts);
    parts
}

/// Finishes on each device, with y on the host, resident, and a part of what is resident.
fn finished<V: Element<Acc = S>, S: SumElement>(
    sums: &Partial<S>,
    on: &[Device],
    factors: (S, S),
    y: &Array1<V>,
    want: &Array1<V>,
    what: &str,
) {
    let (alpha, beta) = factors;
    for device in on {
        let what = format!("{what}, {alpha:?} and {beta:?}, finished on {device}");
        let mut host = reversed(y.view());
        sums.finish(device, alpha, beta, &mut host).unwrap();
        same(&host, want, &what);
        let there = on.last().unwrap();
        let mut resident = there.vector(y).unwrap();
        sums.finish(device, alpha, beta, &mut resident).unwrap();
        same(&resident.download().unwrap(), want, &format!("{what}, resident"));
        let mut table = Array2::from_elem((y.len(), 3), element::<V>(7.0, 7.0));
        table.column_mut(1).assign(y);
        let mut table = there.matrix(&table).unwrap();
        sums.finish(device, alpha, beta, VectorMut::View(table.column_mut(1).unwrap())).unwrap();
        let table = table.download().unwrap();
        same(&table.column(1).to_owned(), want, &format!("{what}, a column"));
        assert!(table.column(0).iter().chain(table.column(2)).all(|&v| v == element(7.0, 7.0)));
    }
}

/// All factors that rule 6 tells apart. NaN is in y where it is not read.
fn factors<V: Element>() -> Vec<(V::Acc, V::Acc, bool)> {
    let of = |re, im| V::Acc::from_parts(re, im);
    let (zero, one) = (V::Acc::ZERO, V::Acc::ONE);
    let (odd, other) = (of(-0.7, 0.3), of(11.0 / 9.0, -1.0 / 3.0));
    vec![
        (one, zero, true),
        (odd, zero, true),
        (one, one, false),
        (odd, one, false),
        (one, other, false),
        (odd, other, false),
        (zero, zero, true),
        (zero, one, false),
        (zero, odd, false),
    ]
}

fn check_cuts<T, V, S>(seed: u64)
where
    T: Element + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let on = devices::<T, V>();
    let random = &mut Random(seed);
    let shapes = [
        (3, 0),
        (0, 600),
        (2, 1),
        (5, 255),
        (1, 256),
        (4, 257),
        (3, 512),
        (7, 1000),
        (1, 5000),
        (33, 2300),
        (530, 600),
        (530, 900),
        (2, 64 * 257),
    ];
    for (m, n) in shapes {
        let (a, x): (Array2<T>, Array1<V>) = (random.matrix(m, n), random.vector(n));
        let parts = cut(random, &a, &x, &on);
        let count: usize = parts.iter().map(Partial::len).sum();
        assert_eq!(count, m * n.div_ceil(SEGMENT));
        let sums = Partial::merge(parts).unwrap();
        assert!(sums.is_complete());
        let all = factors::<V>();
        let some = if n > 5000 { &all[..2] } else { &all[..] };
        for &(alpha, beta, unread) in some {
            let y = match unread {
                true => Array1::from_elem(m, element(f64::NAN, f64::NAN)),
                false => random.vector(m),
            };
            let want = whole(alpha, &a, &x, beta, &y);
            finished(&sums, &on, (alpha, beta), &y, &want, &format!("{m} x {n}"));
            // Some rows alone, from the sums of all columns or of each part.
            let first = random.below(m + 1);
            let rows = first..first + random.below(m - first + 1);
            let of = |all: &Array1<V>| all.slice_axis(Axis(0), rows.clone().into()).to_owned();
            let sums = sums.slice_rows(rows.clone()).unwrap();
            let what = format!("rows {rows:?} of {m} x {n}");
            finished(&sums, &on, (alpha, beta), &of(&y), &of(&want), &what);
        }
    }
}

fn check_cyclic<T, V, S>(seed: u64)
where
    T: Element + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let on = devices::<T, V>();
    let random = &mut Random(seed);
    for (m, n) in [(2, 0), (3, 200), (2, 600), (0, 3000), (3, 5 * 256), (2, 17_000), (1, 65_537)] {
        let (a, x): (Array2<T>, Array1<V>) = (random.matrix(m, n), random.vector(n));
        let y = random.vector(m);
        let (alpha, beta, _) = factors::<V>()[random.below(6)];
        let want = whole(alpha, &a, &x, beta, &y);
        for processes in [1, 2, 3, 8, 64] {
            let parts = cyclic(random, &a, &x, processes, &on);
            let what = format!("{m} x {n} over {processes} processes");
            let sums = Partial::merge(parts.clone()).unwrap();
            finished(&sums, &on, (alpha, beta), &y, &want, &what);
            if processes == 3 {
                assert!(matches!(parts[0].clone().reduce(3), Err(Error::Reduce { .. })));
                continue;
            }
            let reduced = parts.into_iter().map(|part| {
                let part = part.reduce(processes).unwrap();
                assert!(part.len() <= m * n.div_ceil(65_536), "{what}: {} numbers", part.len());
                Partial::from_bytes(&part.to_bytes().unwrap()).unwrap()
            });
            let reduced: Vec<_> = reduced.collect();
            let last = reduced.iter().map(|part| part.slice_rows(m.saturating_sub(1)..m).unwrap());
            let of = |all: &Array1<V>| all.iter().skip(m.saturating_sub(1)).copied().collect();
            let last = Partial::merge(last).unwrap();
            finished(
                &last,
                &on,
                (alpha, beta),
                &of(&y),
                &of(&want),
                &format!("{what}, its last row"),
            );
            let sums = Partial::merge(reduced).unwrap();
            finished(&sums, &on, (alpha, beta), &y, &want, &format!("{what}, reduced"));
        }
    }
}

macro_rules! types {
    ($($name:ident: $t:ty, $v:ty, $seed:expr;)*) => { $(
        mod $name {
            use super::*;

            #[test]
            fn cuts() {
                check_cuts::<$t, $v, _>($seed);
            }

            #[test]
            fn block_cyclic() {
                check_cyclic::<$t, $v, _>($seed + 1);
            }
        }
    )* };
}
types! {
    single: f32, f32, 100;
    double: f64, f64, 200;
    half: f16, f16, 300;
    brain: bf16, bf16, 400;
    pair: Complex<f32>, Complex<f32>, 500;
    double_pair: Complex<f64>, Complex<f64>, 600;
    half_single: f16, f32, 700;
    brain_single: bf16, f32, 800;
    single_double: f32, f64, 900;
}
