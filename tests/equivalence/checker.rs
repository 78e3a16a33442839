//! The checker must refuse what is wrong, else the other trials mean nothing.

use gemv::Dtype;
use gemv::ndarray::ArrayView1;
use gemv::unstable::Layout;
use libtest_mimic::Trial;

use super::common::broken::{Broken, Bug};
use super::common::operand::Strided;
use super::common::{self, Check, Size, trial};
use super::one::{What, body};

/// Its trials.
pub fn trials(trials: &mut Vec<Trial>) {
    fn refuses(name: &str, got: Check) -> Check {
        match got {
            Err(_) => Ok(()),
            Ok(()) => Err(format!("the checker accepted {name}")),
        }
    }
    trials.push(trial("checker/one-flipped-bit".into(), || {
        let want = [1.5f32, -2.0, 3.25];
        common::same(&want, &want)?;
        for i in 0..3 {
            for bit in 0..32 {
                let mut got = want;
                got[i] = f32::from_bits(got[i].to_bits() ^ 1 << bit);
                refuses("a flipped bit", common::same(&got, &want))?;
            }
        }
        Ok(())
    }));
    trials.push(trial("checker/zeros-have-signs".into(), || {
        refuses("-0 for +0", common::same(&[-0.0f64], &[0.0]))?;
        let (plus, minus) = (common::elem(0.0, 0.0), common::elem(0.0, -0.0));
        refuses(
            "0 - 0i for 0 + 0i",
            common::same::<gemv::num_complex::Complex<f32>>(&[minus], &[plus]),
        )?;
        // The payload of a NaN is not part of the promise.
        common::same(&[f32::from_bits(0xffc0_1234)], &[f32::NAN])?;
        refuses("a number for NaN", common::same(&[0.0f32], &[f32::NAN]))?;
        refuses("a short result", common::same(&[1.0f32], &[1.0, 2.0]))
    }));
    trials.push(trial("checker/touched-canary".into(), || {
        let want = [4.0f64, 5.0, 6.0];
        for stride in [1, 2, -3] {
            let mut y = Strided::writable(&[0.0; 3], stride, 3);
            y.view_mut().assign(&ArrayView1::from(&want));
            y.verify(&want)?;
            for at in 0..y.whole_mut().len() {
                let mut y = Strided::writable(&want, stride, 3);
                y.whole_mut()[at] += 1.0;
                refuses("a touched canary", y.verify(&want))?;
            }
        }
        Ok(())
    }));
    // Every planted bug is refused by the body of one vector, and the backend without one is not.
    let shapes = [(3usize, 65usize), (70, 300), (2, 1025), (3, 20_000)];
    let run_all = move |bug: Bug| {
        let device = Broken::device(bug);
        let mut results = Vec::new();
        for dtype in Dtype::ALL {
            let mut one = Ok(());
            for shape in shapes {
                for layout in Layout::ALL {
                    let got = with_type!(dtype, T => body::<T>(&device, shape, layout, What::Variants(None), Size::Normal));
                    one = one.and(got);
                }
            }
            results.push((dtype, one));
        }
        results
    };
    trials.push(trial("checker/no-bug".into(), move || {
        run_all(Bug::None).into_iter().try_for_each(|r| r.1)
    }));
    for bug in Bug::ALL {
        // These need inputs of their own: the semantics suite has them.
        if matches!(bug, Bug::AlphaMultiplies | Bug::SkipsZeros | Bug::Flushes | Bug::MinusZero) {
            continue;
        }
        trials.push(trial(format!("checker/{bug:?}"), move || {
            for (dtype, result) in run_all(bug) {
                let immune = match bug {
                    Bug::ForgetsConjugate => !dtype.is_complex(),
                    // Its accumulator is its own type, or its products are exact.
                    Bug::NarrowsEarly => !matches!(dtype, Dtype::F16 | Dtype::Bf16),
                    Bug::TwoRoundings => matches!(dtype, Dtype::F16 | Dtype::Bf16),
                    _ => false,
                };
                if result.is_ok() && !immune {
                    return Err(format!("{bug:?} was accepted for {dtype}"));
                }
            }
            Ok(())
        }));
    }
}
