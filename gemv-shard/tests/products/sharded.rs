//! A matrix over several devices has the bits of the whole on one: of every kind, cut anywhere.
use crate::common::{Random, devices, element, held, reference, reversed, same, whole};
use gemv::half::bf16;
use gemv::ndarray::{Array1, Array2, ArrayView1, Axis, Slice};
use gemv::num_complex::Complex;
use gemv::{Device, Dtype, Element, Engine, GpuDot, Times};
use gemv_core::order::SEGMENT;
use gemv_shard::{Sharded, Split, SumElement};
use gemv_testkit::Host;
use proptest::prelude::*;

/// Devices that copy from each other, and have a kernel for cyclic columns, all but one.
pub fn peers(count: usize, without: Option<usize>) -> Vec<Device> {
    let peers = (0..count).map(|which| {
        let mut host = Host::new(&format!("fake:{which}"));
        (host.info.peers, host.info.asynchronous) = (true, which > 0);
        host.cyclic = Some(which) != without;
        host.device()
    });
    peers.collect()
}

/// One device, several, one twice, of one kind and of all.
pub fn sets(on: &[Device]) -> Vec<Vec<Device>> {
    let reference = reference();
    let (first, last) = (&on[0], &on[on.len() - 1]);
    let back: Vec<Device> = on.iter().rev().cloned().collect();
    vec![
        peers(3, None),
        // Each has a kernel for cyclic columns, or all but one.
        peers(4, None),
        peers(4, Some(2)),
        vec![first.clone()],
        vec![first.clone(), first.clone()],
        vec![first.clone(), last.clone()],
        vec![reference.clone(), reference.clone(), reference],
        [on, &back].concat(),
    ]
}

/// Every split of so many devices.
pub fn splits(count: usize) -> Vec<Split> {
    let grids = (1..=count).filter(|rows| count.is_multiple_of(*rows));
    let grids = grids.map(|rows| Split::Grid { rows, columns: count / rows });
    let cyclic = count.is_power_of_two().then_some(Split::CyclicColumns);
    [Split::Rows, Split::Columns].into_iter().chain(grids).chain(cyclic).collect()
}

/// By chance, where the split takes such.
pub fn weights(random: &mut Random, split: Split, count: usize) -> Vec<f64> {
    match random.below(3) {
        _ if split == Split::CyclicColumns => vec![1.0; count],
        0 => vec![1.0; count],
        1 => (0..count).map(|_| 1.0 + random.below(100) as f64).collect(),
        _ => (0..count).map(|_| 1e-3f64.powi(random.below(3) as i32)).collect(),
    }
}

/// Of all entries, the matrix, x and y with strides by chance; what is between the entries of y stays.
#[track_caller]
fn check_one<T, V, S>(random: &mut Random, on: &[Device], split: Split, dim: (usize, usize))
where
    T: Element + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let (m, n) = dim;
    let (a, x): (Array2<T>, Array1<V>) = (random.matrix(m, n), random.vector(n));
    let weights = weights(random, split, on.len());
    let lying = held(random, a.view());
    let shared = Sharded::weighted(&lying, on, split, &weights).unwrap();
    let what = format!("{m} x {n}, {split:?} on {on:?} by {weights:?}");
    assert_eq!(shared.dim(), dim);
    let elements = shared.parts().map(|(_, rows, columns)| rows.len() * columns.len());
    // Cyclic columns lie between each other: all but the blocks of the processes before and behind.
    let processes = on.len();
    let want = match split {
        Split::CyclicColumns if processes > 1 && n > SEGMENT => {
            let blocks = n.div_ceil(SEGMENT);
            let span = |p: usize| {
                let last = p + (blocks - 1 - p) / processes * processes;
                ((last + 1) * SEGMENT).min(n) - p * SEGMENT
            };
            m * (0..processes.min(blocks)).map(span).sum::<usize>()
        }
        _ => m * n,
    };
    assert_eq!(elements.sum::<usize>(), want, "{what}");

    let odd = S::from_parts(-0.7, 0.3);
    let (zero, one) = (S::ZERO, S::ONE);
    for (alpha, beta) in
        [(one, zero), (one, one), (odd, odd), (odd, zero), (zero, odd), (zero, zero)]
    {
        let y = match beta == zero {
            true => Array1::from_elem(m, element(f64::NAN, f64::NAN)),
            false => random.vector::<V>(m),
        };
        let want = whole(alpha, &a, &x, beta, &y);
        let backwards = reversed(x.view());
        let x = if random.below(2) == 0 { x.view() } else { backwards.view() };
        let between = element::<V>(1234.0, 0.0);
        let mut memory = Array1::from_elem(3 * m + 1, between);
        let step = [1isize, -1, 2, -3][random.below(4)];
        let line = Slice::new(0, None, step);
        let mut to = memory.slice_axis_mut(Axis(0), line).split_at(Axis(0), m).0;
        to.assign(&y);
        shared.gemv_mixed(alpha, x, beta, to).unwrap();
        let (got, rest) = memory.slice_axis(Axis(0), line).split_at(Axis(0), m);
        same(&got.to_owned(), &want, &format!("{what}, {alpha:?} {beta:?}"));
        assert!(rest.iter().all(|v| v.bits() == between.bits()), "{what}");
        assert!(memory.iter().filter(|v| v.bits() == between.bits()).count() > 2 * m, "{what}");
    }
}

fn check<T, V, S>(seed: u64)
where
    T: Element + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let random = &mut Random(seed);
    for on in sets(&devices::<T, V>()) {
        let dims = [(0, 0), (0, 300), (5, 0), (1, 1), (2, 600), (9, 257), (300, 513)];
        for (split, dim) in some_cases::<T>(seed, splits(on.len()), &dims) {
            check_one::<T, V, S>(random, &on, split, dim);
        }
    }
}

/// Splits and shapes: all for f32, and every second for the other types, whose products are cut by the same code.
/// Types of neighbouring seeds see each other's rest.
pub fn some_cases<T: Element>(
    seed: u64,
    splits: Vec<Split>,
    dims: &[(usize, usize)],
) -> Vec<(Split, (usize, usize))> {
    let all = splits.into_iter().flat_map(|split| dims.iter().map(move |dim| (split, *dim)));
    let first = if T::DTYPE == Dtype::F32 { 0 } else { seed as usize % 2 };
    let step = if T::DTYPE == Dtype::F32 { 1 } else { 2 };
    all.skip(first).step_by(step).collect()
}

every_pair!(check, 1);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_shape(
        m in 0usize..90,
        n in prop_oneof![0usize..300, 0usize..4000],
        set in 0usize..7,
        split in any::<prop::sample::Index>(),
        seed in any::<u64>(),
    ) {
        let on = &sets(&devices::<f32, f32>())[set];
        let splits = splits(on.len());
        check_one::<f32, f32, _>(&mut Random(seed), on, splits[split.index(splits.len())], (m, n));
        check_one::<Complex<f64>, Complex<f64>, _>(
            &mut Random(seed), on, splits[split.index(splits.len())], (m, n),
        );
    }
}

/// Beyond 65,536 columns, sums of segments are summed twice.
#[test]
fn a_third_level() {
    let random = &mut Random(9);
    let on = devices::<f32, f32>();
    for on in [1, 4, 6].map(|set| sets(&on)[set].clone()) {
        for split in splits(on.len()) {
            for n in [65_536, 65_537, 66_000, 200_000] {
                check_one::<f32, f32, _>(random, &on, split, (2, n));
            }
        }
        let split = Split::Columns;
        check_one::<Complex<f32>, Complex<f32>, _>(random, &on, split, (1, 70_000));
    }
    // Of eight, some have no column in the last 65,536 of all.
    let on =
        if on[0].info().id.starts_with("cuda") { vec![on[0].clone(); 8] } else { peers(8, None) };
    for n in [40_000, 66_000, 200_000] {
        let split = Split::CyclicColumns;
        check_one::<f32, f32, _>(random, &on, split, (3, n));
        check_one::<f64, f64, _>(random, &on, split, (9, n));
        check_one::<bf16, f32, _>(random, &on, split, (2, n));
        check_one::<f32, f64, _>(random, &on, split, (2, n));
    }
}

/// The trait, with everything that is a vector on the host.
#[test]
fn products() {
    let random = &mut Random(11);
    let on = sets(&devices::<f64, f64>()).pop().unwrap();
    let (a, x): (Array2<f64>, Array1<f64>) = (random.matrix(12, 700), random.vector(700));
    let want = whole(1.0, &a, &x, 0.0, &Array1::zeros(12));
    fn dot<M: GpuDot<X, Output = Array1<f64>> + ?Sized, X: ?Sized>(a: &M, x: &X) -> Array1<f64> {
        a.try_gpu_dot(x).unwrap()
    }
    for split in splits(on.len()) {
        let shared = Sharded::new(&a, &on, split).unwrap();
        assert_eq!(shared.devices(), on);
        let (back, slice) = (reversed(x.view()), x.as_slice().unwrap());
        let fixed: [f64; 700] = slice.try_into().unwrap();
        let view: ArrayView1<'_, f64> = back.view();
        let all = [
            dot(&shared, &x),
            dot(&shared, &view),
            dot(&shared, &*x),
            dot(&shared, slice),
            dot(&shared, &slice.to_vec()),
            dot(&shared, &fixed),
            dot(&shared, &&x),
            shared.gpu_dot(&x),
        ];
        for got in all {
            same(&got, &want, &format!("{split:?}"));
        }
        let mut columns = Array2::from_elem((12, 2), f64::NAN);
        shared.gpu_dot_into(&x, columns.column_mut(1));
        same(&columns.column(1).to_owned(), &want, "a column");
        assert!(columns.column(0).iter().all(|v| v.is_nan()));
        let mut y = vec![1.0; 12];
        shared.gemv(-1.0, &x, 1.0, &mut y);
        same(&Array1::from(y), &whole(-1.0, &a, &x, 1.0, &Array1::ones(12)), "a Vec");
        // A copy of the value shares the memory on the devices.
        same(&shared.clone().gpu_dot(&x), &want, "a clone");
    }
}

/// The CPU's parts are computed on the pool whose workers call: no worker may wait for another one.
#[test]
fn products_by_workers_of_rayons_pool_end() {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let engine = Engine::new(None);
        let cpu = engine.device("cpu").unwrap();
        let mut random = Random(7);
        // So large that the CPU shares it among its threads.
        let (a, x): (Array2<f32>, Array1<f32>) = (random.matrix(1500, 1500), random.vector(1500));
        let want = cpu.try_gpu_dot(&a, &x).unwrap();
        let reference = engine.device("reference").unwrap();
        for on in [vec![cpu.clone(), cpu.clone()], vec![cpu, reference]] {
            for split in [Split::Rows, Split::Columns] {
                let shared = Sharded::new(&a, &on, split).unwrap();
                for _ in 0..8 {
                    let product = || shared.gpu_dot(&x);
                    let (y, z) = rayon::join(product, product);
                    assert_eq!((&y, &z), (&want, &want));
                }
            }
        }
        done.send(()).unwrap();
    });
    ended.recv_timeout(std::time::Duration::from_secs(120)).expect("an equal product, in time");
}
