//! The tuner: which parameters for which problem, found by measuring.
//!
//! The search is apart from what it searches: [`search`] and [`sweep`] decide what to measure next
//! and see a device only through [`Runner`], so that a scripted one tests them; [`Lab`] is the
//! runner that measures a [`Device`](crate::Device). [`distil`] makes a [`Table`](crate::Table) of
//! what was found, and [`regret`](Regret) says what it is worth: on shapes that lie between those
//! of the mesh, how much slower its choice is than the best of all candidates.
//!
//! A time counts only if the bits are right: every candidate that stays in the search past its
//! first batch is compared with the [reference](gemv_core::reference), with canaries on both sides of
//! its `y` and NaN in it. Where a device is a library's guest, nothing here writes a file or a
//! table: the caller stores what [`Watch`] is shown.
#![forbid(unsafe_code)]

mod bench;
mod distil;
mod lab;
mod merge;
mod mesh;
mod present;
mod regret;
mod search;
mod sweep;

#[cfg(test)]
mod faulty;
#[cfg(test)]
mod scripted;

pub use distil::{Distilled, Distilling, distil, noise};
pub use lab::{Lab, LabSettings, Mode};
pub use mesh::{Mesh, Point};
pub use present::present;
pub use regret::{Holdout, Regret, holdout};
pub use search::{Cell, Failure, Runner, Settings, Trial, search};
pub use sweep::{Area, Known, Watch, refine, sweep};
