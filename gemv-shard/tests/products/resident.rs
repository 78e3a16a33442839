//! Products with vectors that stay on the devices have the bits of the whole on one, and so has every copy.
use crate::common::{Random, devices, element, held, reference, same, whole};
use crate::sharded::{peers, sets, some_cases, splits, weights};
use gemv::half::{bf16, f16};
use gemv::ndarray::{Array1, Array2, Axis};
use gemv::num_complex::Complex;
use gemv::{Device, Element, GpuDot, Times};
use gemv_shard::{Sharded, ShardedVector, Split, SumElement};

/// The vector whole on each device, or in parts that have nothing to do with the matrix.
fn put<V: Element>(random: &mut Random, on: &[Device], x: &Array1<V>) -> ShardedVector<V> {
    let rows = Array2::<f32>::zeros((x.len(), 1));
    let by = weights(random, Split::Rows, on.len());
    let other = Sharded::weighted(&rows, on, Split::Rows, &by).unwrap();
    match random.below(2) {
        0 => other.broadcast(x).unwrap(),
        _ => other.scatter(x).unwrap(),
    }
}

/// Compares all that is on the devices.
#[track_caller]
fn same_parts<V: Element>(got: &ShardedVector<V>, want: &Array1<V>, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (range, part) in got.parts() {
        let want = want.slice_axis(Axis(0), range.clone().into()).to_owned();
        same(&part.download().unwrap(), &want, &format!("{what}, {range:?}"));
    }
    same(&got.gather().unwrap(), want, what);
}

#[track_caller]
fn check_one<T, V, S>(random: &mut Random, on: &[Device], split: Split, (m, n): (usize, usize))
where
    T: Element + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let (a, x): (Array2<T>, Array1<V>) = (random.matrix(m, n), random.vector(n));
    let by = weights(random, split, on.len());
    let shared = Sharded::weighted(&held(random, a.view()), on, split, &by).unwrap();
    let what = format!("{m} x {n}, {split:?} on {on:?} by {by:?}");
    let odd = S::from_parts(-0.7, 0.3);
    let (zero, one) = (S::ZERO, S::ONE);
    for (alpha, beta) in
        [(one, zero), (one, one), (odd, odd), (odd, zero), (zero, odd), (zero, zero)]
    {
        let before = match beta == zero {
            true => Array1::from_elem(m, element(f64::NAN, f64::NAN)),
            false => random.vector::<V>(m),
        };
        let want = whole(alpha, &a, &x, beta, &before);
        let there = put(random, on, &x);
        let scattered = shared.scatter(&before).unwrap();
        let entries: usize = scattered.parts().map(|(_, part)| part.len()).sum();
        assert_eq!(entries, m, "{what}: no entry is on two devices");
        let mut y = match random.below(2) {
            0 => scattered,
            _ => put(random, on, &before),
        };
        let ranges = |y: &ShardedVector<V>| y.parts().map(|(range, _)| range).collect::<Vec<_>>();
        let (kept, as_before) = (y.clone(), ranges(&y));
        shared.gemv_mixed_resident(alpha, &there, beta, &mut y).unwrap();
        let what = format!("{what}, {alpha:?} {beta:?}");
        assert_eq!(ranges(&y), as_before, "{what}");
        same_parts(&y, &want, &what);
        same_parts(&y.all_gather().unwrap(), &want, &what);
        // Neither x nor a copy of y is written.
        same_parts(&there, &x, &what);
        same_parts(&kept, &before, &what);
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
        let dims = [(0, 0), (0, 300), (5, 0), (1, 1), (2, 600), (9, 257), (130, 1500)];
        for (split, dim) in some_cases::<T>(seed, splits(on.len()), &dims) {
            check_one::<T, V, S>(random, &on, split, dim);
        }
    }
}

/// x -> A x / |A x|, once on the devices and once on the reference: all copies are the same at every step.
fn iterate<T, S>(seed: u64)
where
    T: Element<Acc = S> + Times<T> + Times<S>,
    S: SumElement,
{
    fn normalized<T: Element>(x: &mut gemv::DeviceVector<T>) {
        let device = x.device();
        let number = |of| device.scalar(element::<T>(of, 0.0)).unwrap();
        let (mut norm, one) = (number(0.0), number(1.0));
        x.nrm2_into(&mut norm).unwrap();
        x.scal(&one / &norm).unwrap();
    }
    let random = &mut Random(seed);
    let on = devices::<T, T>();
    let reference = reference();
    let n = 530;
    let (a, first): (Array2<T>, Array1<T>) = (random.matrix(n, n), random.vector(n));
    let mut wants = vec![first.clone()];
    for _ in 0..4 {
        let last = wants.last().unwrap();
        let y = whole(S::ONE, &a, last, S::ZERO, &Array1::from_elem(n, element(0.0, 0.0)));
        let mut y = reference.vector(&y).unwrap();
        normalized(&mut y);
        wants.push(y.download().unwrap());
    }
    for on in sets(&on) {
        for split in splits(on.len()) {
            let by = weights(random, split, on.len());
            let shared = Sharded::weighted(&a, &on, split, &by).unwrap();
            let what = format!("{split:?} on {on:?} by {by:?}");
            let mut x = shared.broadcast(&first).unwrap();
            for want in &wants[1..] {
                x = shared.try_gpu_dot(&x).unwrap();
                assert!(x.is_whole(), "{what}");
                x.parts_mut().for_each(|(_, x)| normalized(x));
                same_parts(&x, want, &what);
            }
            // In parts, a product has each device's rows.
            let x = shared.scatter(&first).unwrap();
            let y = shared.try_gpu_dot(&&x).unwrap();
            assert!(y.parts().map(|(range, _)| range).eq(x.parts().map(|(range, _)| range)));
            let zero = Array1::from_elem(n, element(0.0, 0.0));
            same_parts(&y, &whole(S::ONE, &a, &first, S::ZERO, &zero), &what);
            // Its own operand is overwritten.
            let mut y = x.clone();
            shared.try_gemv(S::ONE, &x, S::ONE, &mut y).unwrap();
            same_parts(&y, &whole(S::ONE, &a, &first, S::ONE, &first), &what);
        }
    }
}

/// Of 1 to 8 places, that of one device or of several: an iteration in a plan has the bits of one device, however
/// often it is run, and its vectors stay where they are.
fn plan<T, S>(seed: u64)
where
    T: Element<Acc = S> + Times<T> + Times<S>,
    S: SumElement,
{
    let random = &mut Random(seed);
    let reference = reference();
    let n = 270;
    let (a, first): (Array2<T>, Array1<T>) = (random.matrix(n, n), random.vector(n));
    // x, y = A x / |A x| and so on, and then with 2 x + A y in the place of y.
    let zeros = Array1::from_elem(n, element(0.0, 0.0));
    let two = S::from_parts(2.0, 0.0);
    let next = |x: &Array1<T>, beta, y: &Array1<T>| {
        let mut y = reference.vector(&whole(S::ONE, &a, x, beta, y)).unwrap();
        let mut norm = reference.scalar(element::<T>(0.0, 0.0)).unwrap();
        y.nrm2_into(&mut norm).unwrap();
        y.scal(&reference.scalar(element::<T>(1.0, 0.0)).unwrap() / &norm).unwrap();
        y.download().unwrap()
    };
    let mut wants = vec![(first.clone(), zeros.clone())];
    for _ in 0..4 {
        let x = &wants.last().unwrap().0;
        let y = next(x, S::ZERO, &zeros);
        wants.push((next(&y, two, x), y));
    }

    let on = devices::<T, T>();
    for count in 1..=8 {
        let around = on.iter().cycle().take(count).cloned().collect();
        // All that copy from each other, if there are any.
        let real = on.iter().filter(|device| device.info().peers);
        let real: Vec<_> = real.cycle().take(count).cloned().collect();
        let sets = on.iter().map(|device| vec![device.clone(); count]);
        let several = [peers(count, None), around, real].into_iter().filter(|on| !on.is_empty());
        for on in sets.chain(several) {
            let split = splits(count);
            let split = split[random.below(split.len())];
            for split in [Split::Rows, split] {
                let by = weights(random, split, count);
                let shared = Sharded::weighted(&a, &on, split, &by).unwrap();
                let what = format!("{split:?} on {on:?} by {by:?}");
                let number = |of| {
                    let numbers = on.iter().map(|d| d.scalar(element::<T>(of, 0.0)));
                    numbers.collect::<gemv::Result<Vec<_>>>().unwrap()
                };
                let x = shared.broadcast(&first).unwrap();
                let state = (x.clone(), x, number(0.0), number(1.0));
                let mut plan = shared.plan(state, |(x, y, norms, ones)| {
                    let mut step = |x: &ShardedVector<T>, beta, y: &mut ShardedVector<T>| {
                        shared.try_gemv(S::ONE, x, beta, &mut *y)?;
                        let numbers = norms.iter_mut().zip(&*ones);
                        for ((_, y), (norm, one)) in y.parts_mut().zip(numbers) {
                            y.nrm2_into(&mut *norm)?;
                            y.scal(one / &*norm)?;
                        }
                        gemv::Result::Ok(())
                    };
                    step(x, S::ZERO, y)?;
                    step(y, two, x)
                });
                for _ in 0..2 {
                    for (run, want) in wants.iter().enumerate().skip(1) {
                        plan.run().unwrap();
                        let (x, y, ..) = plan.state();
                        same_parts(x, &want.0, &format!("{what}, run {run}"));
                        same_parts(y, &want.1, &format!("{what}, run {run}"));
                    }
                    // From the beginning, in the same memory.
                    for (_, x) in plan.state_mut().0.parts_mut() {
                        x.assign(&first).unwrap();
                    }
                }
            }
        }
    }
}

/// What a plan cannot do is an error, after which all goes on.
#[test]
fn an_error_in_a_plan() {
    let random = &mut Random(40);
    let (a, first): (Array2<f32>, Array1<f32>) = (random.matrix(300, 300), random.vector(300));
    for on in sets(&devices::<f32, f32>()) {
        let shared = Sharded::new(&a, &on, Split::Rows).unwrap();
        let x = shared.broadcast(&first).unwrap();
        let y = shared.broadcast(&Array1::zeros(300)).unwrap();
        let short = shared.broadcast(&Array1::zeros(299)).unwrap();
        let mut fails = 0;
        let mut plan = shared.plan((x, y, short), |(x, y, short)| {
            fails += 1;
            shared.try_gpu_dot_into(&*x, &mut *y)?;
            match fails {
                // In the first run, and in the middle of a record.
                1 | 3 => shared.try_gpu_dot_into(&*short, &mut *y),
                _ => Ok(()),
            }
        });
        let mut refused = 0;
        for _ in 0..6 {
            refused += usize::from(plan.run().is_err());
        }
        assert_eq!(refused, 2, "{on:?}");
        let want = whole(1.0, &a, &first, 0.0, &Array1::zeros(300));
        let (x, y, _) = plan.into_state();
        same_parts(&x, &first, "x");
        same_parts(&y, &want, "y");
        same_parts(&shared.try_gpu_dot(&x).unwrap(), &want, "after it");
    }
}

every_pair!(check, 21);

macro_rules! iterations {
    ($($name:ident: $t:ty, $seed:expr;)*) => { $(
        #[test]
        fn $name() {
            iterate::<$t, _>($seed);
            plan::<$t, _>($seed + 100);
        }
    )* };
}
iterations! {
    iterate_single: f32, 31;
    iterate_double: f64, 32;
    iterate_half: f16, 33;
    iterate_brain: bf16, 34;
    iterate_pair: Complex<f32>, 35;
    iterate_double_pair: Complex<f64>, 36;
}

/// Beyond 65,536 columns, sums of segments are summed twice.
#[test]
fn a_third_level() {
    let random = &mut Random(39);
    let on = sets(&devices::<f32, f32>()).pop().unwrap();
    for split in splits(on.len()) {
        check_one::<f32, f32, _>(random, &on, split, (2, 65_537));
        check_one::<Complex<f64>, Complex<f64>, _>(random, &on, split, (1, 70_000));
    }
}
