//! The caller's floating-point mode: no bit depends on it, and it is what it was afterwards.

use gemv::ndarray::{Array1, Array2, Array3, ArrayD};
use gemv::{Device, DeviceScalar, DeviceVector, Element, Error, GpuDot};
use gemv_testkit::{MODES, with_mode};

use crate::common::{Check, acc, random, same};
use crate::helpers::{Raw, one, pow2, text, zero};

/// Operands and factors, made before: what is computed here is not in the default mode.
struct Given<T: Element> {
    a: Array2<T>,
    x: Array1<T>,
    y: Array1<T>,
    sides: Array2<T>,
    batch: Array3<T>,
    /// A number, and a factor that is subnormal.
    alpha: T::Acc,
    tiny: T::Acc,
    /// On the device.
    long: [DeviceVector<T>; 3],
    numbers: [DeviceScalar<T>; 2],
}

/// Every other row has subnormal numbers.
fn numbers<T: Raw>(seed: u64, (m, n): (usize, usize)) -> Array2<T> {
    let small = T::narrow(acc::<T>(pow2(T::LEAST + 9), 0.0)).widen();
    Array2::from_shape_fn((m, n), |(i, j)| {
        let v: T = random(seed, i, j);
        if i % 2 == 0 { T::narrow(gemv::Accumulator::mul(v.widen(), small)) } else { v }
    })
}

impl<T: Raw> Given<T> {
    fn new(device: &Device, (m, n): (usize, usize)) -> Result<Given<T>, Error> {
        let line = |seed, len| numbers::<T>(seed, (2, len)).row(1).to_owned();
        let tiny_acc = match T::DTYPE.needs_f64() {
            true => pow2(-1060),
            false => pow2(-140),
        };
        // Some subnormal, none 0.
        let long = |seed| {
            let ones = Array1::from_shape_fn(5000, |k| match k % 3 {
                0 => T::narrow(acc::<T>(pow2(T::LEAST + 3) * (k % 7 + 1) as f64, 0.0)),
                _ => T::narrow(acc::<T>((k % 89 + seed) as f64 / 7.0, 0.1)),
            });
            device.vector(&ones)
        };
        Ok(Given {
            a: numbers(1, (m, n)),
            x: line(2, n),
            y: line(3, m),
            sides: Array2::from_shape_fn((n, 3), |(i, j)| random(4, i, j)),
            batch: Array3::from_shape_fn((2, m, n), |(b, i, j)| random(5 + b as u64, i, j)),
            alpha: acc::<T>(1.0 / 3.0, 0.7),
            tiny: acc::<T>(tiny_acc, 0.0),
            long: [long(1)?, long(2)?, long(3)?],
            numbers: [
                device.scalar(T::narrow(acc::<T>(0.3, 0.1)))?,
                device.scalar(T::narrow(acc::<T>(pow2(T::LEAST + 2), 0.0)))?,
            ],
        })
    }

    fn products(&self, device: &Device) -> Result<Vec<ArrayD<T>>, Error> {
        let Given { a, x, y, sides, batch, alpha, tiny, .. } = self;
        let (one, zero) = (one::<T>(), zero::<T>());
        let mut all = vec![device.try_gpu_dot(a, x)?.into_dyn()];
        let factors = [
            (*alpha, one),
            (*alpha, *alpha),
            (*tiny, zero),
            (one, *tiny),
            (zero, *tiny),
            (zero, *alpha),
        ];
        for (alpha, beta) in factors {
            let mut to = y.clone();
            device.gemv(alpha, a, x, beta, &mut to)?;
            let mut resident = device.vector(y)?;
            device.gemv(alpha, a, x, beta, &mut resident)?;
            let mut columns = Array2::default((a.nrows(), 3));
            device.product(a, sides).scaled(alpha, beta).to(&mut columns)?;
            all.extend([to.into_dyn(), resident.download()?.into_dyn(), columns.into_dyn()]);
        }
        let mut to = x.clone();
        device.product(a.t(), y).conj().scaled(*alpha, *alpha).to(&mut to)?;
        let mut many = Array3::default((2, a.nrows(), 3));
        let both = sides.broadcast((2, a.ncols(), 3)).expect("along a new axis");
        device.product(batch, both).scaled(*alpha, zero).to(&mut many)?;
        let there = device.matrix(a)?.try_gpu_dot(&device.vector(x)?)?.download()?;
        all.extend([to.into_dyn(), many.into_dyn(), there.into_dyn()]);
        Ok(all)
    }

    fn steps(&self, device: &Device) -> Result<Vec<ArrayD<T>>, Error> {
        let Given { alpha, tiny, long: [x, z, before], numbers: [over, under], .. } = self;
        let (alpha, tiny) = (*alpha, *tiny);
        let mut all = Vec::new();
        type Work<'a, T> = &'a dyn Fn(&mut DeviceVector<T>) -> Result<(), Error>;
        let steps: [Work<'_, T>; 12] = [
            &|y| y.scal(gemv::Factor::number(alpha)),
            &|y| y.scal(gemv::Factor::number(tiny)),
            &|y| y.axpy(gemv::Factor::number(alpha), x),
            &|y| y.xpay(gemv::Factor::number(alpha), x),
            &|y| y.axpy(over / under, x),
            &|y| y.axpy(-(under / over), x),
            &|y| y.axpy(under, x),
            &|y| y.assign_product(x, z),
            &|y| y.add_product(x, z),
            &|y| y.assign_quotient(x, z),
            &|y| y.assign_sqrt(x),
            &|y| y.fill(under / over),
        ];
        for step in steps {
            let mut y = before.clone();
            step(&mut y)?;
            all.push(y.download()?.into_dyn());
        }
        let mut to = device.scalar(T::default())?;
        x.dot_into(z, &mut to)?;
        all.push(to.download()?.into_dyn());
        x.dotc_into(z, &mut to)?;
        all.push(to.download()?.into_dyn());
        all.push(ArrayD::from_elem(vec![], x.nrm2()?));
        Ok(all)
    }
}

pub fn no_mode_of_the_caller_changes_a_bit<T: Raw>(device: &Device) -> Check {
    // Each further shape has programs of its own, where they are compiled.
    let dims = [(40, 700), (5, 7)];
    let compiles = !["cpu", "reference"].contains(&device.info().id.as_str());
    for dim in if compiles { &dims[..1] } else { &dims[..] } {
        let dim = *dim;
        let given = Given::<T>::new(device, dim).map_err(text)?;
        let all = || Ok([given.products(device)?, given.steps(device)?].concat());
        let want = all().map_err(text)?;
        for (name, mode) in MODES {
            let got = with_mode(mode, &all).map_err(|e: Error| format!("{name}: {e}"))?;
            for (k, (got, want)) in got.iter().zip(&want).enumerate() {
                let [got, want] = [got, want].map(|of| of.iter().copied().collect::<Vec<T>>());
                same(&got, &want).map_err(|e| format!("{name}: result {k} of {dim:?}: {e}"))?;
            }
            // Refused, before the backend is asked and by it.
            let refused = with_mode(mode, || {
                let nobody = gemv::unstable::Params::new("nobody");
                let mut y = given.y.clone();
                let y = &mut y;
                let one = one::<T>();
                device.try_gpu_dot(&given.a, &given.y).is_err()
                    && device
                        .product(&given.a, &given.x)
                        .with(&nobody)
                        .scaled(one, one)
                        .to(y)
                        .is_err()
            });
            if !refused {
                return Err(format!("{name}: not refused"));
            }
        }
    }
    Ok(())
}
