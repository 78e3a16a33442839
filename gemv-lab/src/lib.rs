//! The laboratory of the command `gemv`: what measures products, and what is made of the measurements.
//!
//! | module | subcommand | |
//! |---|---|---|
//! | [`tune`] | `gemv tune` | finds parameters by the [`tuner`], and writes and installs a table |
//! | [`bench`](mod@bench) | `gemv bench` | times beside the read bandwidth and other libraries, as CSV |
//! | [`report`] | `gemv report` | one HTML page, with pictures, of what both have measured |
//! | [`share`] | `gemv share` | tests, tunes and times a device that the authors do not have, into one file |
//!
//! Each has its `Args`, as a person writes them, and a `run`. [`tuner`] is the part that decides: it reads and writes no file, and a
//! program may call it without the rest. [`files`], [`parse`], [`device`] and [`interrupt`] are what the other subcommands of the
//! command have too.
#![forbid(unsafe_code)]

pub mod bench;
pub mod device;
pub mod files;
pub mod interrupt;
pub mod parse;
mod record;
pub mod report;
pub mod share;
pub mod tune;
pub mod tuner;
