//! The tuner: finds by measuring which parameters are best for which problem.
//!
//! The search is separate from the device. [`search`] and [`sweep`] decide what to measure next and
//! see a device only through [`Runner`], so a scripted one tests them. [`DeviceRunner`] measures a
//! [`Device`](gemv_core::Device). [`fit`] makes rows of a [`Table`](gemv_core::Table) from the
//! measurements. [`Regret`] says how much slower a table's choices are than the best of all candidates,
//! on shapes that lie between those of the mesh.
//!
//! A time counts only if the bits are right. Every candidate that passes its first batch is compared
//! with the [reference](gemv_core::reference). Its `y` is filled with NaN and stands between canaries.
//! The tuner writes no file: the caller stores what [`Progress`] receives.

mod class;
mod decision_list;
mod fit;
mod grid;
mod incumbent;
mod measurements;
mod merge;
mod mesh;
#[doc(hidden)]
pub mod paper;
mod presets;
mod problem;
mod regret;
mod rows;
mod runner;
mod search;
mod settings;
mod speed;
mod stamp;
mod sweep;
mod workload;

#[cfg(test)]
mod faulty;
#[cfg(test)]
mod scripted;

pub use class::ProblemClass;
pub use decision_list::decision_list;
pub use fit::{Fit, fit};
pub use incumbent::present_rows;
pub use measurements::{Measurements, noise};
pub use mesh::Mesh;
pub(crate) use mesh::packed;
pub(crate) use problem::largest;
pub use problem::many;
pub use regret::{Holdout, Regret, holdout};
pub use runner::DeviceRunner;
pub use search::{Failure, ProblemResult, Runner, SearchSettings, Trial, search};
pub use settings::{FitSettings, Mode, RunnerSettings};
pub use speed::{DeviceSpeed, Link, ReadBandwidth, ReadPoint};
pub use stamp::{kernel_key, kernel_lines, stamped};
pub use sweep::{Progress, refine, sweep};
