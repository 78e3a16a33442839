//! What has been measured, by problem.

use std::collections::BTreeMap;

use super::search::{ProblemResult, Trial, median};
use gemv_core::Desc;

/// What has been measured, by problem.
///
/// ```
/// use gemv_lab::tuner::{ProblemResult, Measurements};
/// use gemv_core::{Desc, Dtype};
///
/// let desc = Desc::new(Dtype::F32, 64, 64, (64, 1), 0);
/// let mut known = Measurements::new(); // or what is read back from files, to go on from there
/// known.insert(desc, ProblemResult::new(desc, vec![]));
/// assert!(known[&desc].best().is_none());
/// ```
pub type Measurements = BTreeMap<Desc, ProblemResult>;

/// The relative error of a median of as many batches as there were, at most problems.
///
/// A difference that is not much larger means nothing. It is some thousandths on a GPU of one's
/// own, some hundredths on a shared machine.
///
/// ```
/// use gemv_lab::tuner::{ProblemResult, Measurements, Trial, noise};
/// use gemv_core::{Desc, Dtype, Params};
///
/// let desc = Desc::new(Dtype::F32, 64, 64, (64, 1), 0);
/// let (seconds, low, high) = (1.0e-6, 0.9e-6, 1.17e-6); // from nine batches
/// let (params, launch_id) = (Params::new("row"), 0);
/// let trial = Trial { params, launch_id, seconds, low, high, batches: 9, checked: true, finalist: true };
/// let result = ProblemResult::new(desc, vec![trial]);
/// assert!((noise(&Measurements::from([(desc, result)])) - 0.05).abs() < 1e-9);
/// assert_eq!(noise(&Measurements::new()), 0.0);
/// ```
pub fn noise(known: &Measurements) -> f64 {
    let of = |t: &Trial| 0.5 * (t.high / t.low - 1.0) / (t.batches.max(1) as f64).sqrt();
    let all: Vec<f64> = known.values().filter_map(|result| result.best().map(of)).collect();
    if all.is_empty() { 0.0 } else { median(&all) }
}

/// The least time of a candidate with the right bits.
pub(super) fn fastest(result: &ProblemResult) -> f64 {
    let checked = result.trials.iter().filter(|t| t.checked);
    checked.map(|t| t.seconds).fold(f64::INFINITY, f64::min)
}
