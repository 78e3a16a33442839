//! Which operands are read, and what comes of special values, of rounding and of each place.

use gemv::ndarray::{Array1, Array2};
use gemv::unstable::{Job, Number};
use gemv::{Accumulator, Device, Dtype, MatrixRef};

use crate::common::{self, Check, Size, acc, elem, nan, same};
use crate::helpers::{Raw, SHAPES, expect, forms, one, oracle, pow2, real, some, text, zero};

const INF: f64 = f64::INFINITY;

pub fn beta_zero_never_reads_y<T: Raw>(device: &Device) -> Check {
    for (m, n) in SHAPES {
        let (a, x) = some::<T>(m, n);
        let want = oracle(one::<T>(), &a, &x, zero::<T>(), &vec![real(1.0); m]);
        for y in [nan(), elem(INF, -INF), T::odd_nan()] {
            // A minus zero is a zero.
            for beta in [zero::<T>(), acc::<T>(-0.0, 0.0)] {
                expect(device, (one::<T>(), &a, &x), (beta, &vec![y; m]), &want)?;
            }
        }
    }
    Ok(())
}

pub fn alpha_zero_never_uses_a_and_x<T: Raw>(device: &Device) -> Check {
    for (m, n) in SHAPES {
        let y: Vec<T> = (0..m).map(|i| real(i as f64 - 2.0)).collect();
        let halved: Vec<T> = (0..m).map(|i| real((i as f64 - 2.0) / 2.0)).collect();
        let zeros = vec![real(0.0); m];
        for poison in [nan::<T>(), elem(INF, INF)] {
            let (a, x) = (Array2::from_elem((m, n), poison), vec![poison; n]);
            for alpha in [zero::<T>(), acc::<T>(-0.0, 0.0)] {
                expect(device, (alpha, &a, &x), (acc::<T>(0.5, 0.0), &y), &halved)?;
                expect(device, (alpha, &a, &x), (zero::<T>(), &vec![nan(); m]), &zeros)?;
                // At the seam too, where the tuner and the tests enter.
                let x = Array1::from(x.clone());
                let mut out = Array1::from(y.clone());
                let job = Job {
                    alpha: Number::new(alpha),
                    a: a.view().into(),
                    conj: false,
                    x: x.view().into(),
                    beta: Number::new(acc::<T>(0.5, 0.0)),
                    y: out.view_mut().into(),
                };
                let params = device.choose(&job.desc()).map_err(text)?;
                let prepared = device.backend().prepare(&job.desc(), &params).map_err(text)?;
                let mut job = job.check().map_err(text)?;
                device.backend().product(&mut job, &prepared).map_err(text)?;
                same(out.as_slice().expect("owned"), &halved).map_err(|e| format!("seam: {e}"))?;
            }
        }
    }
    Ok(())
}

pub fn alpha_zero_beta_one_leaves_every_bit<T: Raw>(device: &Device) -> Check {
    let a = Array2::from_elem((4, 6), nan::<T>());
    let x = Array1::from_elem(6, nan::<T>());
    let y = [T::odd_nan(), real(-0.0), real(pow2(T::LEAST)), elem(-INF, INF)];
    let raw = |y: &Array1<T>| y.iter().map(|v| v.raw()).collect::<Vec<_>>();
    let before = Array1::from(y.to_vec());
    let mut host = before.clone();
    device.gemv(zero::<T>(), &a, &x, one::<T>(), &mut host).map_err(text)?;
    let (ra, rx) = (device.matrix(&a).map_err(text)?, device.vector(&x).map_err(text)?);
    let mut resident = device.vector(&before).map_err(text)?;
    device.gemv(zero::<T>(), &ra, &rx, one::<T>(), &mut resident).map_err(text)?;
    for (where_, after) in [("host", host), ("resident", resident.download().map_err(text)?)] {
        if raw(&after) != raw(&before) {
            return Err(format!("{where_}: {after:?} was {before:?}"));
        }
    }
    Ok(())
}

pub fn zeros_are_never_skipped<T: Raw>(device: &Device) -> Check {
    for (m, n) in SHAPES {
        for at in [0, n / 2, n - 1] {
            for poison in [real::<T>(f64::NAN), real(INF), real(-INF)] {
                // 0 * NaN and 0 * inf are NaN, whichever operand has the zero.
                let mut x = vec![real::<T>(1.0); n];
                x[at] = poison;
                let mut a = Array2::from_elem((m, n), real::<T>(1.0));
                a.column_mut(at).fill(real(0.0));
                let y = vec![real::<T>(0.0); m];
                let got = oracle(one::<T>(), &a, &x, zero::<T>(), &y);
                if got[0].widen().parts().0.is_finite() {
                    return Err("the reference itself skips a zero".into());
                }
                expect(device, (one::<T>(), &a, &x), (zero::<T>(), &y), &got)?;
                let mut a = Array2::from_elem((m, n), real::<T>(1.0));
                a.column_mut(at).fill(poison);
                x[at] = real(0.0);
                expect(device, (one::<T>(), &a, &x), (zero::<T>(), &y), &got)?;
            }
        }
    }
    Ok(())
}

pub fn nan_stays_in_its_row<T: Raw>(device: &Device) -> Check {
    for (m, n) in SHAPES {
        let (a, x) = some::<T>(m, n);
        let clean = oracle(one::<T>(), &a, &x, zero::<T>(), &vec![real(0.0); m]);
        for row in [0, m / 2, m - 1] {
            for column in [0, n / 2, n - 1] {
                let mut a = a.clone();
                a[[row, column]] = nan();
                let mut want = clean.clone();
                want[row] = nan();
                expect(device, (one::<T>(), &a, &x), (zero::<T>(), &vec![nan(); m]), &want)?;
            }
        }
    }
    Ok(())
}

pub fn empty_shapes<T: Raw>(device: &Device) -> Check {
    for m in [1, 5, 70] {
        let y: Vec<T> = (0..m).map(|i| real(i as f64 + 1.0)).collect();
        let doubled: Vec<T> = (0..m).map(|i| real(2.0 * (i as f64 + 1.0))).collect();
        let (a, zeros) = (Array2::default((m, 0)), vec![real::<T>(0.0); m]);
        let (one, zero, two) = (one::<T>(), zero::<T>(), acc::<T>(2.0, 0.0));
        expect(device, (one, &a, &[]), (two, &y), &doubled)?;
        expect(device, (one, &a, &[]), (one, &y), &y)?;
        expect(device, (one, &a, &[]), (zero, &vec![nan(); m]), &zeros)?;
        expect(device, (zero, &a, &[]), (zero, &vec![nan(); m]), &zeros)?;
    }
    for n in [0, 1, 300] {
        let (a, x) = some::<T>(0, n);
        expect(device, (one::<T>(), &a, &x), (one::<T>(), &[]), &[])?;
        let y = device.try_gpu_dot(&a, &Array1::from(x)).map_err(text)?;
        if !y.is_empty() {
            return Err(format!("{} results of a matrix without rows", y.len()));
        }
    }
    Ok(())
}

pub fn subnormals_are_kept<T: Raw>(device: &Device) -> Check {
    for (m, n) in SHAPES {
        let least = pow2(T::LEAST);
        let count = (n / 2 + 1).min(9);
        let want = vec![real::<T>(least * count as f64); m];
        if want[0].bits() == real::<T>(0.0).bits() {
            return Err("the test's own numbers are not subnormal".into());
        }
        let mut ones = vec![real::<T>(0.0); n];
        ones[n - count..].fill(real(1.0));
        let y = vec![real::<T>(0.0); m];
        // Subnormal elements; subnormal products of normal ones; subnormal y.
        let a = Array2::from_elem((m, n), real::<T>(least));
        expect(device, (one::<T>(), &a, &ones), (zero::<T>(), &y), &want)?;
        let a = Array2::from_elem((m, n), real::<T>(least * 1024.0));
        let x: Vec<T> =
            ones.iter().map(|&v| if v == real(0.0) { v } else { real(1.0 / 1024.0) }).collect();
        expect(device, (one::<T>(), &a, &x), (zero::<T>(), &y), &want)?;
        let x = vec![real::<T>(0.0); n];
        expect(device, (one::<T>(), &a, &x), (one::<T>(), &want), &want)?;
        let a = Array2::from_elem((m, n), real::<T>(least * 64.0));
        let alpha = acc::<T>(1.0 / 64.0, 0.0);
        expect(device, (alpha, &a, &ones), (zero::<T>(), &y), &want)?;
    }
    Ok(())
}

/// Products that underflow to -0 in every lane: lanes that are absent add +0, and the sum of all 64 stays -0.
pub fn sums_of_negative_zeros<T: Raw>(device: &Device) -> Check {
    for m in [3, 40, 200] {
        for n in [1, 4, 7, 8, 16, 32, 33, 64, 65, 256] {
            let a = Array2::from_elem((m, n), real::<T>(pow2(T::LEAST)));
            let x = vec![real::<T>(-0.25); n];
            let y = vec![nan::<T>(); m];
            let want = oracle(one::<T>(), &a, &x, zero::<T>(), &y);
            expect(device, (one::<T>(), &a, &x), (zero::<T>(), &y), &want)?;
        }
    }
    Ok(())
}

pub fn cancelling_sums_give_plus_zero<T: Raw>(device: &Device) -> Check {
    // Partners in one lane, in the halving, in different segments.
    for (n, apart) in [(2, 1), (65, 64), (40, 32), (300, 256), (300, 13)] {
        let mut a = Array2::from_elem((3, n), real::<T>(0.0));
        for (i, v) in [1.0, 0.75, 3.0].into_iter().enumerate() {
            a[[i, n - 1]] = elem(v, v);
            a[[i, n - 1 - apart]] = elem(-v, -v);
        }
        let x = vec![real::<T>(1.5); n];
        let plus = [elem::<T>(0.0, 0.0); 3];
        expect(device, (one::<T>(), &a, &x), (zero::<T>(), &[nan(); 3]), &plus)?;
        // Added to y = +0, and to a y that cancels it.
        expect(device, (one::<T>(), &a, &x), (one::<T>(), &plus), &plus)?;
        // A row of negative zeros: every lane starts at +0.
        let a = Array2::from_elem((3, n), elem::<T>(-0.0, -0.0));
        let got = oracle(one::<T>(), &a, &x, zero::<T>(), &plus);
        if got[0].widen().parts().0.is_sign_negative() {
            return Err("the reference has -0".into());
        }
        expect(device, (one::<T>(), &a, &x), (zero::<T>(), &[nan(); 3]), &got)?;
        // alpha < 0 turns the sign, since it multiplies the sum.
        let minus = acc::<T>(-1.0, 0.0);
        let got = oracle(minus, &a, &x, zero::<T>(), &plus);
        expect(device, (minus, &a, &x), (zero::<T>(), &[nan(); 3]), &got)?;
    }
    Ok(())
}

pub fn infinities<T: Raw>(device: &Device) -> Check {
    for (m, n) in SHAPES {
        for at in [0, n - 1] {
            // Real operands: a complex infinity times a complex number brings NaN along.
            let mut a = Array2::from_elem((m, n), real::<T>(1.0));
            let x = vec![real::<T>(1.0); n];
            a.column_mut(at).fill(real(-INF));
            let want = oracle(one::<T>(), &a, &x, zero::<T>(), &vec![real(0.0); m]);
            if want[0].widen().parts().0 != -INF {
                return Err("the reference has no infinity here".into());
            }
            expect(device, (one::<T>(), &a, &x), (zero::<T>(), &vec![nan(); m]), &want)?;
            if n > 1 {
                a.column_mut(n / 2).fill(real(INF));
                let want = oracle(one::<T>(), &a, &x, zero::<T>(), &vec![real(0.0); m]);
                if at != n / 2 && !want[0].widen().parts().0.is_nan() {
                    return Err("inf - inf is NaN".into());
                }
                expect(device, (one::<T>(), &a, &x), (zero::<T>(), &vec![nan(); m]), &want)?;
            }
        }
    }
    Ok(())
}

/// f16 and bf16 are summed in f32 and rounded once, after alpha and beta.
pub fn narrow_types_round_once<T: Raw>(device: &Device) -> Check {
    // 2^digits + 1 is the first whole number that the type does not have.
    let digits = match T::DTYPE {
        Dtype::F16 => 11,
        Dtype::Bf16 => 8,
        _ => return Ok(()),
    };
    let big = pow2(digits);
    for n in [2, 70, 300] {
        let mut a = Array2::from_elem((3, n), real::<T>(0.0));
        a.column_mut(0).fill(real(big));
        a.column_mut(n - 1).fill(real(1.0));
        let x = vec![real::<T>(1.0); n];
        let y = [real::<T>(-big); 3];
        let (one, zero) = (one::<T>(), zero::<T>());
        expect(device, (one, &a, &x), (one, &y), &[real(1.0); 3])?;
        // (2^digits + 1) * 2 - 2^digits * 2: alpha is applied to the unrounded sum.
        let two = acc::<T>(2.0, 0.0);
        expect(device, (two, &a, &x), (two, &y), &[real(2.0); 3])?;
        // Half way between two neighbours: to the even one.
        expect(device, (one, &a, &x), (zero, &y), &[real(big); 3])?;
        a.column_mut(n / 2).fill(real(2.0));
        if n > 2 {
            expect(device, (one, &a, &x), (zero, &y), &[real(big + 4.0); 3])?;
        }
    }
    if T::DTYPE == Dtype::F16 {
        // 65,504 is the largest; 65,520 and beyond round to infinity, and only at the end.
        for (last, want) in [(0.0, 65_504.0), (15.0, 65_504.0), (16.0, INF), (32.0, INF)] {
            let a = Array2::from_shape_fn((2, 3), |(_, j)| real::<T>([65_504.0, last, 0.0][j]));
            let x = vec![real::<T>(1.0); 3];
            let (one, zero) = (one::<T>(), zero::<T>());
            expect(device, (one, &a, &x), (zero, &[nan(); 2]), &[real(want); 2])?;
            expect(device, (acc::<T>(-1.0, 0.0), &a, &x), (zero, &[nan(); 2]), &[real(-want); 2])?;
        }
        let a =
            Array2::from_shape_fn((2, 3), |(_, j)| real::<T>([60_000.0, 60_000.0, -60_000.0][j]));
        let x = vec![real::<T>(1.0); 3];
        let want = [real::<T>(60_000.0); 2];
        expect(device, (one::<T>(), &a, &x), (zero::<T>(), &[nan(); 2]), &want)?;
    }
    Ok(())
}

pub fn alpha_multiplies_the_sum<T: Raw>(device: &Device) -> Check {
    if size_of::<T>() < size_of::<T::Acc>() {
        return Ok(()); // alpha times an element is exact there; rounding once covers it
    }
    // Half the least subnormal is lost (a tie, to even); half of twice as much is not.
    let least = pow2(T::LEAST);
    for n in [2, 66, 300] {
        let mut a = Array2::from_elem((3, n), real::<T>(0.0));
        a.column_mut(0).fill(real(1.0));
        a.column_mut(n - 1).fill(real(1.0));
        let x = vec![real::<T>(least); n];
        let half = acc::<T>(0.5, 0.0);
        expect(device, (half, &a, &x), (zero::<T>(), &[nan(); 3]), &[real(least); 3])?;
    }
    Ok(())
}

/// Of a pair times the pair 1 + 0i, 0 * inf would be NaN.
pub fn factors_of_one_are_not_multiplied<T: Raw>(device: &Device) -> Check {
    let imaginary = if T::DTYPE.is_complex() { 2.0 } else { 0.0 };
    let y = [elem::<T>(INF, imaginary), elem(-INF, imaginary), elem(1.0, imaginary)];
    let (a, x) = (Array2::from_elem((3, 4), real::<T>(0.0)), vec![real::<T>(1.0); 4]);
    expect(device, (one::<T>(), &a, &x), (one::<T>(), &y), &y)?;
    // A sum that is (inf, 2): the two parts come from different columns.
    let mut a = Array2::from_elem((3, 4), real::<T>(0.0));
    a.column_mut(1).fill(elem(0.0, imaginary));
    let x = vec![real::<T>(1.0); 4];
    let old = [real::<T>(INF); 3];
    let want = [elem::<T>(INF, imaginary); 3];
    expect(device, (one::<T>(), &a, &x), (one::<T>(), &old), &want)
}

pub fn conjugate<T: Raw>(device: &Device) -> Check {
    // (2 + 3i)* (5 + 7i) = (10 + 21) + (14 - 15)i.
    let (m, n) = (3, 70);
    let mut a = Array2::from_elem((m, n), real::<T>(0.0));
    let mut x = Array1::from_elem(n, real::<T>(0.0));
    a.column_mut(69).fill(elem(2.0, 3.0));
    x[69] = elem(5.0, 7.0);
    let complex = T::DTYPE.is_complex();
    let want = if complex { elem::<T>(31.0, -1.0) } else { real(10.0) };
    let plain = if complex { elem::<T>(-11.0, 29.0) } else { real(10.0) };
    for form in forms() {
        let held = form.hold(&a);
        let resident = held.upload(device).map_err(text)?;
        for a in [MatrixRef::Host(held.view()), MatrixRef::Device(&resident)] {
            let mut y = Array1::from_elem(m, nan::<T>());
            // A choice that is known may take another way.
            for _ in 0..2 {
                y.fill(nan());
                device.product(a, &x).conj().to(&mut y).map_err(text)?;
                same(y.as_slice().expect("owned"), &vec![want; m])?;
            }
            device.gemv(one::<T>(), a, &x, zero::<T>(), &mut y).map_err(text)?;
            same(y.as_slice().expect("owned"), &vec![plain; m])?;
        }
    }
    Ok(())
}

pub fn small_integers_are_exact<T: Raw>(device: &Device) -> Check {
    for (m, n) in [(5, 63), (66, 65), (3, 257), (2, 1025)] {
        let int =
            |seed, i: usize, j: usize| (common::hash(seed, i as u64, j as u64) % 7) as i64 - 3;
        let a = Array2::from_shape_fn((m, n), |(i, j)| real::<T>(int(1, i, j) as f64));
        let x: Vec<T> = (0..n).map(|j| real(int(2, 0, j) as f64)).collect();
        let y: Vec<T> = (0..m).map(|i| real(int(3, i, 0) as f64)).collect();
        let want: Vec<T> = (0..m)
            .map(|i| {
                let sum: i64 = (0..n).map(|j| int(1, i, j) * int(2, 0, j)).sum();
                // Rounded once: the narrow types have fewer whole numbers.
                real((2 * sum - 3 * int(3, i, 0)) as f64)
            })
            .collect();
        expect(device, (acc::<T>(2.0, 0.0), &a, &x), (acc::<T>(-3.0, 0.0), &y), &want)?;
    }
    Ok(())
}

/// Only one column counts: first each in turn, then the last one of every critical length.
pub fn no_term_is_dropped<T: Raw>(device: &Device) -> Check {
    let longest: &[usize] = match common::size() {
        Size::Tiny => &[17],
        _ => &[17, 65, 257],
    };
    for &n in longest {
        let (a, _) = some::<T>(3, n);
        let held = forms().map(|f| f.hold(&a));
        for j in 0..n {
            let mut x = Array1::from_elem(n, real::<T>(0.0));
            x[j] = real(1.0);
            // + 0 turns the sign of a zero.
            let want: Vec<T> = (0..3)
                .map(|i| T::narrow(T::Acc::ZERO.fma(a[[i, j]].widen(), one::<T>())))
                .collect();
            let got = device.try_gpu_dot(&held[j % 3].view(), &x).map_err(text)?;
            same(got.as_slice().expect("new"), &want)
                .map_err(|e| format!("column {j} of {n}: {e}"))?;
        }
    }
    let lengths: &[usize] = match common::size() {
        Size::Tiny => &[15, 16, 63, 64],
        _ => {
            &[1, 2, 15, 16, 31, 63, 64, 127, 128, 129, 255, 256, 511, 512, 1023, 1024, 4097, 65_537]
        }
    };
    for (k, &n) in lengths.iter().enumerate() {
        let m = 2 + k % 3;
        let mut a = Array2::from_elem((m, n), real::<T>(0.0));
        a.column_mut(n - 1).fill(real(3.0));
        let x = Array1::from_elem(n, real::<T>(2.0));
        for form in forms() {
            let got = device.try_gpu_dot(&form.hold(&a).view(), &x).map_err(text)?;
            same(got.as_slice().expect("new"), &vec![real(6.0); m])
                .map_err(|e| format!("the last of {n} columns, {}: {e}", form.name))?;
        }
    }
    Ok(())
}
