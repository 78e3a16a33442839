//! What a product means, beside its bits: which operands are read, what NaN, infinities, zeros and
//! subnormals do. One body for every device and element type.
//!
//! The expected values follow from the definition and not from the reference, wherever numbers can
//! be chosen so that every rounding is exact.
#![deny(unsafe_code)]

#[macro_use]
#[path = "../common/mod.rs"]
mod common;
mod calls;
#[cfg(target_os = "linux")]
mod forks;
mod helpers;
mod laws;
mod modes;
mod seam;
mod values;

use std::process::ExitCode;

use calls::*;
use common::broken::{Broken, Bug};
use common::{Check, trial};
use gemv::{Device, Dtype};
use laws::*;
use libtest_mimic::Trial;
use modes::*;
use values::*;

type Body = fn(&Device, Dtype) -> Check;
type OnDevice = fn(&Device) -> Check;

macro_rules! checks {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), |device, dtype| with_type!(dtype, T => $name::<T>(device)))),*]
    };
}

const CHECKS: [(&str, Body); 22] = checks![
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
    small_integers_are_exact,
    no_term_is_dropped,
    resident_operands_may_be_shared,
    products_follow_each_other,
    long_vectors_come_and_go,
    anything_goes,
    no_mode_of_the_caller_changes_a_bit,
    concurrent_callers,
];

/// What any backend does with operands that do not fit, one type standing for all.
const SEAM: [(&str, OnDevice); 6] = [
    ("short operands", seam::short_operands),
    ("far operands", seam::far_operands),
    ("foreign operands", seam::foreign_operands),
    ("steps", seam::steps),
    ("copies", seam::copies),
    ("choices of others", seam::choices_of_others),
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

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(code) = forks::process() {
        return code;
    }
    let targets = common::targets();
    let mut trials = common::absences(&targets);
    checker(&mut trials);
    for target in &targets {
        let Ok(device) = &target.device else { continue };
        #[cfg(target_os = "linux")]
        trials.extend(forks::trials(&target.id));
        for (name, body) in SEAM {
            let device = device.clone();
            trials.push(trial(format!("{}/seam: {name}", target.id), move || body(&device)));
        }
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
            let odd: Option<OnDevice> = match dtype {
                Dtype::C32 => Some(pairs_at_an_odd_half::<f32>),
                Dtype::C64 => Some(pairs_at_an_odd_half::<f64>),
                _ => None,
            };
            if let Some(body) = odd {
                let device = device.clone();
                let name = format!("{}/{dtype}/pairs-at-an-odd-half", target.id);
                trials.push(trial(name, move || body(&device)));
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
    ExitCode::SUCCESS
}
