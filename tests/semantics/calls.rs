//! Operands that are shared, products one after the other and at once.

use gemv::ndarray::{Array1, Array2, ArrayView2, ArrayViewMut2, ShapeBuilder, aview1, s};
use gemv::num_complex::Complex;
use gemv::unstable::Layout;
use gemv::{Accumulator, Device, Element, GpuDot, MatrixRef};

use crate::common::{Check, acc, random, same};
use crate::helpers::{Raw, forms, one, oracle, real, some, text, zero};

/// y and x may share memory on the device; clones never see a product.
pub fn resident_operands_may_be_shared<T: Raw>(device: &Device) -> Check {
    let n = 70;
    let (a, x) = some::<T>(n, n);
    let want = oracle(one::<T>(), &a, &x, one::<T>(), &x);
    let ra = device.matrix(&a).map_err(text)?;
    let rx = device.vector(&Array1::from(x.clone())).map_err(text)?;
    let mut y = rx.clone();
    device.gemv(one::<T>(), &ra, &rx, one::<T>(), &mut y).map_err(text)?;
    same(&y.download().map_err(text)?.to_vec(), &want)?;
    same(&rx.download().map_err(text)?.to_vec(), &x).map_err(|e| format!("x was changed: {e}"))?;
    // The result is an operand without a way over the host, and the old result stays.
    let y2 = ra.try_gpu_dot(&y).map_err(text)?;
    let want2 = oracle(one::<T>(), &a, &want, zero::<T>(), &want);
    same(&y2.download().map_err(text)?.to_vec(), &want2)?;
    let kept = y2.clone();
    let mut y3 = y2;
    device.gemv(one::<T>(), &ra, &rx, zero::<T>(), &mut y3).map_err(text)?;
    same(&kept.download().map_err(text)?.to_vec(), &want2).map_err(|e| format!("a clone: {e}"))?;
    // Views of views.
    let part = ra.rows(10..40).step_columns(5..65, -2).t();
    let host = a.slice(s![10..40, 5..65;-2]);
    let px = rx.step(20..50, 1);
    let want: Vec<T> =
        oracle(one::<T>(), &host.t().to_owned(), &x[20..50], zero::<T>(), &[real(0.0); 30]);
    same(&part.try_gpu_dot(&px).map_err(text)?.download().map_err(text)?.to_vec(), &want)?;
    let back = part.download().map_err(text)?;
    let host = host.t().to_owned();
    same(&back.iter().copied().collect::<Vec<_>>(), &host.iter().copied().collect::<Vec<_>>())
}

/// Products one right behind another, by every kernel in turn: each reads what the one before wrote, to
/// x or to a column of A. A device may begin the next one before the last has ended.
pub fn products_follow_each_other<T: Raw>(device: &Device) -> Check {
    let (n, rounds, alpha) = (600, 12, acc::<T>(0.0625, 0.0));
    let (a, x) = some::<T>(n, n);
    let (mut now, mut want) = (a.clone(), x.clone());
    for round in 0..rounds {
        want = oracle(alpha, &now, &want, zero::<T>(), &want);
        if round % 3 == 2 {
            now.column_mut(round).assign(&aview1(&want));
        }
    }
    for layout in Layout::ALL {
        let place = |a: &Array2<T>| match layout {
            Layout::Col => a.t().as_standard_layout().reversed_axes().to_owned(),
            _ => a.clone(),
        };
        let a = place(&a);
        let mut seen = Vec::new();
        for params in device.backend().candidates(&MatrixRef::from(&a).desc()) {
            if seen.contains(&params.kernel()) {
                continue;
            }
            seen.push(params.kernel());
            let mut there = device.matrix(&a).map_err(text)?;
            let mut from = device.vector(&x).map_err(text)?;
            let mut to = device.zeros(n).map_err(text)?;
            for round in 0..rounds {
                device
                    .product(&there, &from)
                    .with(&params)
                    .scaled(alpha, zero::<T>())
                    .to(&mut to)
                    .map_err(text)?;
                if round % 3 == 2 {
                    let mut column = there.column_mut(round).map_err(text)?;
                    column.assign(&to).map_err(text)?;
                }
                std::mem::swap(&mut from, &mut to);
            }
            let got = from.download().map_err(text)?;
            same(&got.to_vec(), &want).map_err(|e| format!("{layout} {params}: {e}"))?;
        }
    }
    Ok(())
}

/// What takes several copies on its way to a device and back comes back whole, and in part.
pub fn long_vectors_come_and_go<T: Raw>(device: &Device) -> Check {
    let len = (9 << 20) / size_of::<T>() + 3;
    let x: Vec<T> = (0..len).map(|j| random(7, j, 0)).collect();
    let there = device.vector(&ndarray::aview1(&x)).map_err(text)?;
    same(&there.download().map_err(text)?.to_vec(), &x)?;
    let part = there.step(5..len - 1, 1).download().map_err(text)?;
    same(&part.to_vec(), &x[5..len - 1]).map_err(|e| format!("in part: {e}"))?;
    // A product as long: y = 0 A + 1 x is x.
    let (a, one_x) = (there.as_matrix((len, 1)), Array1::from_elem(1, real::<T>(1.0)));
    let mut y = Array1::from(x.clone());
    device.gemv(zero::<T>(), &a, &one_x, one::<T>(), &mut y).map_err(text)?;
    same(&y.to_vec(), &x).map_err(|e| format!("of the host: {e}"))?;
    // While time is taken, too, which a device may do by recording what it is asked for.
    let (mut came, mut back, mut dot) = (None, None, None);
    // Of the host, and longer than what scratch memory has room for until then.
    let mut long = Array2::from_elem((1, 2 * len), real::<T>(0.0));
    let ones = Array1::from_elem(2 * len, real::<T>(1.0));
    long[[0, len]] = real(3.0);
    let mut both = || {
        came = Some(there.download()?);
        back = Some(device.vector(&ndarray::aview1(&x))?);
        dot = Some(device.try_gpu_dot(&long, &ones)?);
        Ok(())
    };
    device.backend().timed(&mut both).map_err(text)?;
    let [came, back] =
        [came, back.map(|b| b.download()).transpose().map_err(text)?].map(Option::unwrap);
    same(&came.to_vec(), &x).map_err(|e| format!("timed: {e}"))?;
    same(&back.to_vec(), &x).map_err(|e| format!("timed on its way there: {e}"))?;
    let dot = dot.expect("timed");
    same(&dot.to_vec(), &[real::<T>(3.0)]).map_err(|e| format!("a timed product: {e}"))?;
    same(&there.download().map_err(text)?.to_vec(), &x).map_err(|e| format!("after that: {e}"))
}

/// Pairs of which each begins where the second half of one would: at an address that is no multiple of their size. Devices
/// that read memory of the host in place take whole elements.
pub fn pairs_at_an_odd_half<F>(device: &Device) -> Check
where
    F: Copy + Default,
    Complex<F>: Raw,
{
    #[repr(C)]
    struct Odd<F, const N: usize> {
        half: F,
        pairs: [Complex<F>; N],
    }
    fn held<F: Copy + Default, const N: usize>(
        of: impl Fn(usize) -> Complex<F>,
    ) -> Result<Box<Odd<F, N>>, String> {
        let held = Box::new(Odd { half: F::default(), pairs: std::array::from_fn(of) });
        match held.pairs.as_ptr().addr() % size_of::<Complex<F>>() {
            half if half == size_of_val(&held.half) => Ok(held),
            other => Err(format!("the allocator gives no odd half, but {other}")),
        }
    }
    let (m, n, k) = (5, 300, 3);
    let entry = |seed, i| random::<Complex<F>>(seed, i, 0);
    let a = held::<F, 1500>(|i| entry(1, i))?;
    let x = held::<F, 900>(|i| entry(2, i))?;
    let before: [Complex<F>; 15] = std::array::from_fn(|i| entry(3, i));
    let (alpha, beta) = (acc::<Complex<F>>(0.5, -1.0), one::<Complex<F>>());
    // Each layout, and each of the rest once: programs take long to compile.
    let wide = Complex::<F>::DTYPE.needs_f64();
    for by_columns in [false, true].into_iter().filter(|by_columns| !(wide && *by_columns)) {
        let a = match by_columns {
            false => ArrayView2::from_shape((m, n), &a.pairs[..]),
            true => ArrayView2::from_shape((m, n).f(), &a.pairs[..]),
        };
        let a = a.expect("as many");
        let x = ArrayView2::from_shape((n, k), &x.pairs[..]).expect("as many");
        let want: Vec<_> = (0..k)
            .map(|c| {
                let y: Vec<_> = (0..m).map(|i| before[i * k + c]).collect();
                oracle(alpha, &a.to_owned(), &x.column(c).to_vec(), beta, &y)
            })
            .collect();
        let mut y = held::<F, 15>(|i| before[i])?;
        // One vector without gaps, and one with.
        for c in 0..k {
            let column = x.column(c).to_vec();
            let odd = held::<F, 300>(|i| column[i])?;
            let mut y = held::<F, 5>(|i| before[i * k + c])?;
            device.gemv(alpha, a, &odd.pairs[..], beta, &mut y.pairs[..]).map_err(text)?;
            same(&y.pairs, &want[c]).map_err(|e| format!("by columns: {by_columns}, {e}"))?;
            let mut y: Vec<_> = (0..m).map(|i| before[i * k + c]).collect();
            device.gemv(alpha, a, x.column(c), beta, &mut y).map_err(text)?;
            same(&y, &want[c]).map_err(|e| format!("a column, by columns: {by_columns}, {e}"))?;
        }
        if wide || by_columns {
            continue;
        }
        let mut whole = ArrayViewMut2::from_shape((m, k), &mut y.pairs[..]).expect("as many");
        device.product(a, x).scaled(alpha, beta).to(whole.view_mut()).map_err(text)?;
        for (c, want) in want.iter().enumerate() {
            let what = |e| format!("X, by columns: {by_columns}, {e}");
            same(&whole.column(c).to_vec(), want).map_err(what)?;
        }
        // On its way to the device, and as the operand of a step.
        let mut there = device.matrix(a).map_err(text)?;
        let back = there.download().map_err(text)?;
        same(&entries(&back.view()), &entries(&a)).map_err(|e| format!("a copy: {e}"))?;
        there.assign_product(a, a).map_err(text)?;
        let square = |v: Complex<F>| Complex::<F>::narrow(v.widen().mul(v.widen()));
        let want: Vec<_> = a.iter().map(|v| square(*v)).collect();
        let got = entries(&there.download().map_err(text)?.view());
        same(&got, &want).map_err(|e| format!("a step: {e}"))?;
    }
    Ok(())
}

fn entries<T: Copy>(of: &ArrayView2<'_, T>) -> Vec<T> {
    of.iter().copied().collect()
}

/// Threads share the work and change no bit; the caller's pool is the one that is used.
pub fn threads_change_nothing<T: Raw>(device: &Device) -> Check {
    for (m, n) in [(300, 300), (3, 70_000), (5_000, 9)] {
        let (a, x) = some::<T>(m, n);
        let x = Array1::from(x);
        for form in forms() {
            let held = form.hold(&a);
            let mut first: Option<Vec<T>> = None;
            for threads in [1, 2, 3, 7] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                let pool = pool.map_err(|e| e.to_string())?;
                let y =
                    pool.install(|| device.try_gpu_dot(&held.view(), &x)).map_err(text)?.to_vec();
                match &first {
                    None => first = Some(y),
                    Some(first) => same(&y, first)
                        .map_err(|e| format!("{} {m}x{n}, {threads} threads: {e}", form.name))?,
                }
            }
        }
    }
    Ok(())
}

/// Many callers at once get what one gets.
pub fn concurrent_callers<T: Raw>(device: &Device) -> Check {
    let (a, x) = some::<T>(33, 300);
    let x = Array1::from(x);
    let want = oracle(one::<T>(), &a, &x.to_vec(), zero::<T>(), &[real(0.0); 33]);
    let resident = device.matrix(&a).map_err(text)?;
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..8)
            .map(|caller| {
                let (a, x, want, resident) = (&a, &x, &want, resident.clone());
                scope.spawn(move || {
                    for turn in 0..12 {
                        let y = match (caller + turn) % 3 {
                            0 => device.try_gpu_dot(a, x),
                            1 => device.try_gpu_dot(&resident, x),
                            // Uploaded, and dropped at once.
                            _ => device.matrix(a).and_then(|a| device.try_gpu_dot(&a, x)),
                        };
                        same(&y.map_err(text)?.to_vec(), want)?;
                    }
                    Ok(())
                })
            })
            .collect();
        callers.into_iter().try_for_each(|c| c.join().map_err(|_| "a caller panicked")?)
    })
}
