//! What a product means, beside its bits: which operands are read, what NaN, infinities, zeros and
//! subnormals do, what an error leaves behind. One body for every device and element type.
//!
//! The expected values follow from the definition and not from the reference, wherever numbers can
//! be chosen so that every rounding is exact.
#![deny(unsafe_code)]

#[macro_use]
mod common;

use common::broken::{Broken, Bug};
use common::operand::{VARIANTS, Variant};
use common::{Check, Size, acc, elem, nan, random, same, trial};
use gemv::half::{bf16, f16};
use gemv::ndarray::{Array1, Array2, Axis, aview1, s};
use gemv::num_complex::Complex;
use gemv::unstable::{Job, Layout, Params, reference};
use gemv::{Accumulator, Device, Dtype, Element, Error, GpuDot, MatrixRef, ShapeMismatch};
use libtest_mimic::Trial;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const INF: f64 = f64::INFINITY;

/// What the element type itself has, as bits and extremes.
trait Raw: Element {
    /// The bits, those of NaN included.
    fn raw(self) -> u128;
    /// A quiet NaN with a payload.
    fn odd_nan() -> Self;
    /// log2 of the smallest subnormal.
    const LEAST: i32;
}

macro_rules! raw {
    ($t:ty, $nan:expr, $least:expr) => {
        impl Raw for $t {
            fn raw(self) -> u128 {
                self.to_bits().into()
            }
            fn odd_nan() -> Self {
                <$t>::from_bits($nan)
            }
            const LEAST: i32 = $least;
        }
    };
}
raw!(f32, 0xffc1_2345, -149);
raw!(f64, 0x7ff8_0000_dead_beef, -1074);
raw!(f16, 0xfe57, -24);
raw!(bf16, 0x7fd3, -133);

impl<F: Raw> Raw for Complex<F>
where
    Complex<F>: Element,
{
    fn raw(self) -> u128 {
        self.re.raw() << 64 | self.im.raw()
    }
    fn odd_nan() -> Self {
        Complex { re: F::odd_nan(), im: F::odd_nan() }
    }
    const LEAST: i32 = F::LEAST;
}

fn pow2(k: i32) -> f64 {
    // powi rounds below 2^-1022.
    if k < -1000 { 2f64.powi(k + 500) * 2f64.powi(-500) } else { 2f64.powi(k) }
}

fn real<T: Element>(v: f64) -> T {
    elem(v, 0.0)
}

fn text(e: Error) -> String {
    e.to_string()
}

/// The ways to hold a matrix that the checks here go through: by rows, by columns, strided.
fn forms() -> [Variant; 3] {
    let named = |name| *VARIANTS.iter().find(|v| v.name == name).expect("a variant");
    [VARIANTS[0], VARIANTS[1], named("columns2")]
}

/// One product of every form, from the host and resident, each compared with `want`.
fn expect<T: Element>(
    device: &Device,
    (alpha, a, x): (T::Acc, &Array2<T>, &[T]),
    (beta, y): (T::Acc, &[T]),
    want: &[T],
) -> Check {
    let x = Array1::from(x.to_vec());
    for form in forms() {
        let held = form.hold(a);
        let label = |e: String| format!("{} {:?} {e}", form.name, a.dim());
        let mut out = Array1::from(y.to_vec());
        device.gemv(alpha, &held.view(), &x, beta, &mut out).map_err(text)?;
        same(out.as_slice().expect("owned"), want).map_err(label)?;

        let resident = held.sub_view(device).map_err(text)?;
        let (x, mut out) = (
            device.vector(&x).map_err(text)?,
            device.vector(&Array1::from(y.to_vec())).map_err(text)?,
        );
        device.gemv(alpha, &resident, &x, beta, &mut out).map_err(text)?;
        let out = out.download().map_err(text)?;
        same(out.as_slice().expect("owned"), want).map_err(|e| label(format!("resident {e}")))?;
    }
    Ok(())
}

fn oracle<T: Element>(alpha: T::Acc, a: &Array2<T>, x: &[T], beta: T::Acc, y: &[T]) -> Vec<T> {
    let (x, mut y) = (Array1::from(x.to_vec()), Array1::from(y.to_vec()));
    reference::gemv(alpha, a.view(), false, x.view(), beta, y.view_mut());
    y.to_vec()
}

fn some<T: Element>(m: usize, n: usize) -> (Array2<T>, Vec<T>) {
    let a = Array2::from_shape_fn((m, n), |(i, j)| random(5, i, j));
    (a, (0..n).map(|j| random(6, 0, j)).collect())
}

const SHAPES: [(usize, usize); 4] = [(3, 5), (66, 17), (2, 70), (5, 300)];

fn one<T: Element>() -> T::Acc {
    T::Acc::ONE
}

fn zero<T: Element>() -> T::Acc {
    T::Acc::ZERO
}

fn beta_zero_never_reads_y<T: Raw>(device: &Device) -> Check {
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

fn alpha_zero_never_uses_a_and_x<T: Raw>(device: &Device) -> Check {
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
                    alpha,
                    a: a.view().into(),
                    conj: false,
                    x: x.view().into(),
                    beta: acc::<T>(0.5, 0.0),
                    y: out.view_mut().into(),
                };
                let params = device.choose(&job.desc()).map_err(text)?;
                let prepared = device.backend().prepare(&job.desc(), &params).map_err(text)?;
                device.backend().gemv(job.erase(), &prepared).map_err(text)?;
                same(out.as_slice().expect("owned"), &halved).map_err(|e| format!("seam: {e}"))?;
            }
        }
    }
    Ok(())
}

fn alpha_zero_beta_one_leaves_every_bit<T: Raw>(device: &Device) -> Check {
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

fn zeros_are_never_skipped<T: Raw>(device: &Device) -> Check {
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

fn nan_stays_in_its_row<T: Raw>(device: &Device) -> Check {
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

fn empty_shapes<T: Raw>(device: &Device) -> Check {
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

fn subnormals_are_kept<T: Raw>(device: &Device) -> Check {
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
fn sums_of_negative_zeros<T: Raw>(device: &Device) -> Check {
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

fn cancelling_sums_give_plus_zero<T: Raw>(device: &Device) -> Check {
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

fn infinities<T: Raw>(device: &Device) -> Check {
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
fn narrow_types_round_once<T: Raw>(device: &Device) -> Check {
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

fn alpha_multiplies_the_sum<T: Raw>(device: &Device) -> Check {
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
fn factors_of_one_are_not_multiplied<T: Raw>(device: &Device) -> Check {
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

fn conjugate<T: Raw>(device: &Device) -> Check {
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
            device.gemv_conj(one::<T>(), a, &x, zero::<T>(), &mut y).map_err(text)?;
            same(y.as_slice().expect("owned"), &vec![want; m])?;
            device.gemv(one::<T>(), a, &x, zero::<T>(), &mut y).map_err(text)?;
            same(y.as_slice().expect("owned"), &vec![plain; m])?;
        }
    }
    Ok(())
}

/// A row's sum depends on that row and x alone.
fn rows_are_independent<T: Raw>(device: &Device) -> Check {
    for (m, n) in [(70, 33), (9, 300), (5, 1030)] {
        let (a, x) = some::<T>(m, n);
        let x = Array1::from(x);
        for form in forms() {
            let held = form.hold(&a);
            let view = held.view();
            let all = device.try_gpu_dot(&view, &x).map_err(text)?;
            let all = all.as_slice().expect("new");
            for (from, to) in [(0, 1), (1, m), (m / 2, m - 1), (m - 1, m)] {
                let part = device.try_gpu_dot(&view.slice(s![from..to, ..]), &x).map_err(text)?;
                same(part.as_slice().expect("new"), &all[from..to])?;
                let resident = held.upload(device).map_err(text)?.rows(from..to);
                let part = device.try_gpu_dot(&resident, &x).map_err(text)?;
                same(part.as_slice().expect("new"), &all[from..to])?;
            }
            let mut back = device.try_gpu_dot(&view.slice(s![..;-1, ..]), &x).map_err(text)?;
            back.invert_axis(Axis(0));
            same(&back.to_vec(), all).map_err(|e| format!("reversed rows: {e}"))?;
            // The transpose, stored, is the matrix.
            let stored = view.t().to_owned();
            let again = device.try_gpu_dot(&stored.t(), &x).map_err(text)?;
            same(again.as_slice().expect("new"), all).map_err(|e| format!("stored A.t(): {e}"))?;
        }
    }
    Ok(())
}

fn small_integers_are_exact<T: Raw>(device: &Device) -> Check {
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

/// Each row picks one entry of x, whose value says where it stood.
fn position_codes<T: Raw>(device: &Device) -> Check {
    // Whole numbers that every type has.
    for (m, n) in [(7, 70), (70, 250), (250, 3)] {
        let at = |i: usize| (i * 37 + 11) % n;
        let a = Array2::from_shape_fn((m, n), |(i, j)| real::<T>(f64::from(u8::from(j == at(i)))));
        let x: Vec<T> = (0..n).map(|j| real(j as f64 + 1.0)).collect();
        let want: Vec<T> = (0..m).map(|i| real(at(i) as f64 + 1.0)).collect();
        expect(device, (one::<T>(), &a, &x), (zero::<T>(), &vec![nan(); m]), &want)?;
    }
    Ok(())
}

/// Only one column counts: first each in turn, then the last one of every critical length.
fn no_term_is_dropped<T: Raw>(device: &Device) -> Check {
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

/// y and x may share memory on the device; clones never see a product.
fn resident_operands_may_be_shared<T: Raw>(device: &Device) -> Check {
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
fn products_follow_each_other<T: Raw>(device: &Device) -> Check {
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
                    .gemv_as(&params, alpha, &there, &from, zero::<T>(), &mut to)
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
fn long_vectors_come_and_go<T: Raw>(device: &Device) -> Check {
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

/// An error names both shapes, or both devices, and leaves y as it was.
fn errors_leave_y<T: Raw>(device: &Device) -> Check {
    let (a, x) = some::<T>(4, 6);
    let x = Array1::from(x);
    let before = Array1::from_elem(4, real::<T>(7.0));
    let mut y = before.clone();
    let is = |what: &str, ok: bool, e: &Error| {
        if ok { Ok(()) } else { Err(format!("{what}: {e:?}")) }
    };
    let (one, zero) = (one::<T>(), zero::<T>());

    let short = x.slice(s![..5]);
    let e = device.gemv(one, &a, &short, zero, &mut y).expect_err("x is short");
    let text_ = e.to_string();
    is("4 × 6 and 5", text_.contains("4 × 6") && text_.contains('5'), &e)?;
    is(
        "a shape",
        matches!(e, Error::Shape(ShapeMismatch::MatrixVector { matrix: (4, 6), x: 5, .. })),
        &e,
    )?;
    let e = device.gemv(one, &a, &x, zero, y.slice_mut(s![..3])).expect_err("y is short");
    is("a shape", matches!(e, Error::Shape(ShapeMismatch::MatrixVector { y: Some(3), .. })), &e)?;
    let e = device.gemv(zero, &a, &short, one, &mut y).expect_err("checked even for alpha = 0");
    is("a shape", matches!(e, Error::Shape(_)), &e)?;
    let e = device.try_gpu_dot(&a, &short).expect_err("x is short");
    is("a shape", matches!(e, Error::Shape(ShapeMismatch::MatrixVector { y: None, .. })), &e)?;
    // Also where there is nothing to compute.
    let e = device.try_gpu_dot(&Array2::<T>::default((0, 6)), &short).expect_err("x is short");
    is("a shape", matches!(e, Error::Shape(_)), &e)?;

    let nonsense = Params::new("no-such-kernel").with("threads", 3);
    let e = device.gemv_as(&nonsense, one, &a, &x, zero, &mut y).expect_err("no such kernel");
    is("parameters", matches!(e, Error::Params { .. }), &e)?;
    is("named", e.to_string().contains("no-such-kernel threads=3"), &e)?;

    let elsewhere = Broken::device(Bug::None);
    let (fa, fx) = (elsewhere.matrix(&a).map_err(text)?, elsewhere.vector(&x).map_err(text)?);
    let e = device.gemv(one, &fa, &x, zero, &mut y).expect_err("A lives elsewhere");
    is("a device", matches!(e, Error::WrongDevice { .. }), &e)?;
    let e = device.gemv(one, &a, &fx, zero, &mut y).expect_err("x lives elsewhere");
    is("a device", matches!(e, Error::WrongDevice { .. }), &e)?;
    let mut fy = elsewhere.vector(&before).map_err(text)?;
    let e = device.gemv(one, &a, &x, zero, &mut fy).expect_err("y lives elsewhere");
    is("a device", matches!(e, Error::WrongDevice { .. }), &e)?;
    same(&fy.download().map_err(text)?.to_vec(), &before.to_vec())?;

    // A resident y too, whether it is the only owner of its memory or not.
    let mut ry = device.vector(&before).map_err(text)?;
    let shared = ry.clone();
    device.gemv_as(&nonsense, one, &a, &x, zero, &mut ry).expect_err("no such kernel");
    same(&ry.download().map_err(text)?.to_vec(), &before.to_vec())
        .map_err(|e| format!("a resident y after an error: {e}"))?;
    drop(shared);
    device.gemv(one, &a, &short, zero, &mut ry).expect_err("x is short");
    same(&ry.download().map_err(text)?.to_vec(), &before.to_vec())?;
    same(&y.to_vec(), &before.to_vec())
}

fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

fn cases(device: &Device) -> u32 {
    match (common::size(), device.info().host) {
        (Size::Tiny, _) => 4,
        (Size::Full, _) => 256,
        (_, true) => 48,
        _ => 24,
    }
}

/// Rows in another order give results in that order.
fn rows_permute<T: Raw>(device: &Device) -> Check {
    let strategy = (1usize..40, 1usize..300, any::<u64>(), 0usize..3);
    runner(cases(device))
        .run(&strategy, |(m, n, seed, form)| {
            let a = Array2::from_shape_fn((m, n), |(i, j)| random::<T>(seed, i, j));
            let x = Array1::from_shape_fn(n, |j| random::<T>(!seed, 0, j));
            let mut order: Vec<usize> = (0..m).collect();
            order.sort_by_key(|&i| common::hash(seed, 77, i as u64));
            let moved = a.select(Axis(0), &order);
            let y = device.try_gpu_dot(&a, &x).unwrap();
            let got = device.try_gpu_dot(&forms()[form].hold(&moved).view(), &x).unwrap();
            let want: Vec<T> = order.iter().map(|&i| y[i]).collect();
            same(&got.to_vec(), &want).map_err(TestCaseError::fail)
        })
        .map_err(|e| e.to_string())
}

/// Columns in another order, of both operands, give the same sum where it is exact.
fn columns_permute_exactly<T: Raw>(device: &Device) -> Check {
    let strategy = (1usize..20, 1usize..300, any::<u64>(), 0usize..3);
    runner(cases(device))
        .run(&strategy, |(m, n, seed, form)| {
            let int = |s, i, j| real::<T>((common::hash(s, i as u64, j as u64) % 5) as f64 - 2.0);
            let a = Array2::from_shape_fn((m, n), |(i, j)| int(seed, i, j));
            let x = Array1::from_shape_fn(n, |j| int(!seed, 0, j));
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by_key(|&j| common::hash(seed, 78, j as u64));
            let (moved, mx) = (a.select(Axis(1), &order), x.select(Axis(0), &order));
            let y = device.try_gpu_dot(&a, &x).unwrap();
            let got = device.try_gpu_dot(&forms()[form].hold(&moved).view(), &mx).unwrap();
            same(&got.to_vec(), &y.to_vec()).map_err(TestCaseError::fail)
        })
        .map_err(|e| e.to_string())
}

/// A one-hot row picks an entry of x, a one-hot x a column.
fn one_hot<T: Raw>(device: &Device) -> Check {
    let strategy = (1usize..40, 1usize..700, any::<u64>(), 0usize..3);
    runner(cases(device))
        .run(&strategy, |(m, n, seed, form)| {
            let at = |i: usize| common::hash(seed, 79, i as u64) as usize % n;
            let unit = |yes| real::<T>(if yes { 1.0 } else { 0.0 });
            let plus_zero = |v: T| T::narrow(T::Acc::ZERO.add(v.widen()));
            let a = Array2::from_shape_fn((m, n), |(i, j)| unit(j == at(i)));
            let x = Array1::from_shape_fn(n, |j| elem::<T>(random::<f64>(seed, 1, j), 0.0));
            let got = device.try_gpu_dot(&forms()[form].hold(&a).view(), &x).unwrap();
            let want: Vec<T> = (0..m).map(|i| plus_zero(x[at(i)])).collect();
            same(&got.to_vec(), &want).map_err(TestCaseError::fail)?;
            let a =
                Array2::from_shape_fn((m, n), |(i, j)| elem::<T>(random::<f64>(seed, i, j), 0.0));
            let x = Array1::from_shape_fn(n, |j| unit(j == at(m)));
            let got = device.try_gpu_dot(&forms()[form].hold(&a).view(), &x).unwrap();
            let want: Vec<T> = a.column(at(m)).iter().map(|&v| plus_zero(v)).collect();
            same(&got.to_vec(), &want).map_err(TestCaseError::fail)
        })
        .map_err(|e| e.to_string())
}

/// Any shape, any layout, any scaling: the reference's bits.
fn anything_goes<T: Raw>(device: &Device) -> Check {
    let strategy = (
        0usize..90,
        0usize..600,
        any::<u64>(),
        0usize..VARIANTS.len(),
        0usize..32,
        -2i8..3,
        -2i8..3,
    );
    runner(cases(device))
        .run(&strategy, |(m, n, seed, variant, offset, alpha, beta)| {
            let variant = VARIANTS[variant].at(offset);
            prop_assume!(variant.repeat == common::operand::Repeat::None);
            let a = Array2::from_shape_fn((m, n), |(i, j)| random::<T>(seed, i, j));
            let x: Vec<T> = (0..n).map(|j| random(!seed, 0, j)).collect();
            let y: Vec<T> = (0..m).map(|i| random(!seed, 1, i)).collect();
            let (alpha, beta) = (acc::<T>(alpha.into(), 0.0), acc::<T>(beta.into(), 0.5));
            let want = oracle(alpha, &a, &x, beta, &y);
            let mut got = Array1::from(y);
            let held = variant.hold(&a);
            device.gemv(alpha, &held.view(), &Array1::from(x), beta, &mut got).unwrap();
            same(&got.to_vec(), &want)
                .map_err(|e| TestCaseError::fail(format!("{}: {e}", variant.name)))
        })
        .map_err(|e| e.to_string())
}

/// Threads share the work and change no bit; the caller's pool is the one that is used.
fn threads_change_nothing<T: Raw>(device: &Device) -> Check {
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
fn concurrent_callers<T: Raw>(device: &Device) -> Check {
    let (a, x) = some::<T>(33, 300);
    let x = Array1::from(x);
    let want = oracle(one::<T>(), &a, &x.to_vec(), zero::<T>(), &[real(0.0); 33]);
    let resident = device.matrix(&a).map_err(text)?;
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|caller| {
                let (a, x, want, resident) = (&a, &x, &want, resident.clone());
                scope.spawn(move || {
                    for turn in 0..8 {
                        let y = match (caller + turn) % 2 {
                            0 => device.try_gpu_dot(a, x),
                            _ => device.try_gpu_dot(&resident, x),
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

type Body = fn(&Device, Dtype) -> Check;

macro_rules! checks {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), |device, dtype| with_type!(dtype, T => $name::<T>(device)))),*]
    };
}

const CHECKS: [(&str, Body); 27] = checks![
    beta_zero_never_reads_y,
    alpha_zero_never_uses_a_and_x,
    alpha_zero_beta_one_leaves_every_bit,
    zeros_are_never_skipped,
    nan_stays_in_its_row,
    empty_shapes,
    subnormals_are_kept,
    sums_of_negative_zeros,
    cancelling_sums_give_plus_zero,
    infinities,
    narrow_types_round_once,
    alpha_multiplies_the_sum,
    factors_of_one_are_not_multiplied,
    conjugate,
    rows_are_independent,
    small_integers_are_exact,
    position_codes,
    no_term_is_dropped,
    resident_operands_may_be_shared,
    products_follow_each_other,
    long_vectors_come_and_go,
    errors_leave_y,
    rows_permute,
    columns_permute_exactly,
    one_hot,
    anything_goes,
    concurrent_callers,
];

/// Every planted bug that has to do with meaning is refused by the check that is about it.
fn checker(trials: &mut Vec<Trial>) {
    let planted: [(Bug, Body, &[Dtype]); 11] = {
        let [a, b, .., _] = CHECKS;
        let named = |name: &str| CHECKS.iter().find(|c| c.0 == name).expect("a check").1;
        [
            (Bug::BetaReadsY, a.1, &Dtype::ALL),
            (Bug::AlphaMultiplies, b.1, &Dtype::ALL),
            (Bug::SkipsZeros, named("zeros_are_never_skipped"), &Dtype::ALL),
            (Bug::Flushes, named("subnormals_are_kept"), &[Dtype::F32, Dtype::F64, Dtype::C32]),
            (Bug::MinusZero, named("cancelling_sums_give_plus_zero"), &Dtype::ALL),
            (Bug::DropsLastTerm, named("no_term_is_dropped"), &Dtype::ALL),
            (Bug::DropsLastTerm, named("small_integers_are_exact"), &Dtype::ALL),
            (Bug::DropsLastRow, named("nan_stays_in_its_row"), &Dtype::ALL),
            (Bug::ForgetsConjugate, named("conjugate"), &[Dtype::C32, Dtype::C64]),
            (Bug::AlphaFirst, named("alpha_multiplies_the_sum"), &[Dtype::F32, Dtype::F64]),
            (Bug::NarrowsEarly, named("narrow_types_round_once"), &[Dtype::F16, Dtype::Bf16]),
        ]
    };
    for (k, (bug, body, dtypes)) in planted.into_iter().enumerate() {
        trials.push(trial(format!("checker/{k}/{bug:?}"), move || {
            let device = Broken::device(bug);
            match dtypes.iter().find(|&&d| body(&device, d).is_ok()) {
                None => Ok(()),
                Some(dtype) => Err(format!("{bug:?} was accepted for {dtype}")),
            }
        }));
    }
}

fn main() {
    let targets = common::targets();
    let mut trials = common::absences(&targets);
    checker(&mut trials);
    for target in &targets {
        let Ok(device) = &target.device else { continue };
        for dtype in Dtype::ALL {
            if let Err(why) = common::supported(device, dtype) {
                let name = format!("{}/{dtype}/unsupported: {why}", target.id);
                trials.push(Trial::test(name, move || Err(why.into())).with_ignored_flag(true));
                continue;
            }
            for (name, body) in CHECKS {
                let device = device.clone();
                let name = format!("{}/{dtype}/{}", target.id, name.replace('_', "-"));
                trials.push(trial(name, move || body(&device, dtype)));
            }
            if target.id == "cpu" {
                let device = device.clone();
                trials.push(trial(
                    format!("cpu/{dtype}/threads-change-nothing"),
                    move || with_type!(dtype, T => threads_change_nothing::<T>(&device)),
                ));
            }
        }
    }
    common::main(trials);
}
