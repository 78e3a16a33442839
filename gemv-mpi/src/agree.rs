//! Agreement before ranks communicate: all go on, or all return an error.
//!
//! MPI has no time limit: a rank that waits for another in a collective waits for ever. So a rank that fails says so
//! before the next collective, and none enters it. The ranks' arguments are compared at the same time.

use gemv_core::float_mode::in_default;
use gemv_core::{Accumulator, Dtype};
use mpi::Count;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;

use crate::exchange::rank_and_size;
use crate::layout::{Layout, Split};
use crate::{Error, Result};

/// What a rank is about to do. Ranks that communicate do the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call([u64; CALL]);

const CALL: usize = 15;

/// What the numbers of a call are.
const MEANINGS: [(&str, Meaning); CALL] = [
    ("the function that is called", Meaning::Function),
    ("how the matrix is split", Meaning::Split),
    ("the rows of the grid", Meaning::Number),
    ("the columns of the grid", Meaning::Number),
    ("the most bytes of a message", Meaning::Number),
    ("the rows of the matrix", Meaning::Number),
    ("the columns of the matrix", Meaning::Number),
    ("the matrix's element type", Meaning::Type),
    ("the vectors' element type", Meaning::Type),
    ("the root", Meaning::Number),
    ("alpha", Meaning::Real),
    ("the imaginary part of alpha", Meaning::Real),
    ("beta", Meaning::Real),
    ("the imaginary part of beta", Meaning::Real),
    ("the step of the function", Meaning::Number),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Function,
    Split,
    Number,
    Type,
    Real,
}

/// The functions in which ranks communicate.
const FUNCTIONS: [&str; 8] = [
    "Grid::new",
    "Grid::device",
    "Grid::agree",
    "Distributed::new",
    "gemv",
    "gemv_local",
    "scatter_x",
    "gather_y",
];

impl Call {
    /// A call of one of [`FUNCTIONS`].
    pub fn of(function: &str) -> Call {
        let mut call = Call([0; CALL]);
        let index = FUNCTIONS.iter().position(|name| *name == function);
        debug_assert!(index.is_some(), "{function} is not listed");
        call.0[0] = index.unwrap_or(FUNCTIONS.len()) as u64;
        call
    }

    pub fn split(mut self, split: Split, limit: usize) -> Call {
        let (code, p, q) = match split {
            Split::Rows => (0, 0, 0),
            Split::Columns => (1, 0, 0),
            Split::Grid { p, q } => (2, p, q),
        };
        self.0[1..5].copy_from_slice(&[code, p as u64, q as u64, limit as u64]);
        self
    }

    pub fn matrix(mut self, layout: &Layout, dtype: Dtype) -> Call {
        self.0[5..8].copy_from_slice(&[layout.m as u64, layout.n as u64, code(dtype)]);
        self
    }

    pub fn vectors(mut self, dtype: Dtype) -> Call {
        self.0[8] = code(dtype);
        self
    }

    pub fn root(mut self, root: usize) -> Call {
        self.0[9] = root as u64;
        self
    }

    pub fn factors<S: Accumulator>(mut self, alpha: S, beta: S) -> Call {
        for (at, factor) in [(10, alpha), (12, beta)] {
            // In a mode of one rank's own its factor would be another one.
            let (re, im) = in_default(|| factor.parts());
            self.0[at..at + 2].copy_from_slice(&[re.to_bits(), im.to_bits()]);
        }
        self
    }

    /// One of the steps of a function.
    pub fn step(mut self, step: u64) -> Call {
        self.0[CALL - 1] = step;
        self
    }

    fn show(&self, at: usize) -> String {
        let number = self.0[at];
        match MEANINGS[at].1 {
            Meaning::Number => number.to_string(),
            Meaning::Real => f64::from_bits(number).to_string(),
            Meaning::Function => name(&FUNCTIONS, number, |name| name.to_string()),
            Meaning::Split => {
                name(&["by rows", "by columns", "over a grid"], number, |name| name.to_string())
            }
            Meaning::Type => name(&Dtype::ALL, number, |dtype| dtype.name().to_string()),
        }
    }
}

fn code(dtype: Dtype) -> u64 {
    dtype as u64
}

fn name<T>(of: &[T], index: u64, show: impl Fn(&T) -> String) -> String {
    usize::try_from(index).ok().and_then(|at| of.get(at)).map_or("unknown".into(), show)
}

/// The most bytes of an error that other ranks are told.
const MOST: usize = 4000;

/// All ranks return what is theirs, or all return an error.
pub(crate) fn agree<R>(comm: &SimpleCommunicator, call: Call, mine: Result<R>) -> Result<R> {
    Ok(agree_and_tell(comm, call, [0; TOLD], mine)?.0)
}

/// How many numbers a rank tells all others when it agrees.
pub(crate) const TOLD: usize = 2;

/// The same; with it come the numbers that each rank tells.
pub(crate) fn agree_and_tell<R>(
    comm: &SimpleCommunicator,
    call: Call,
    numbers: [usize; TOLD],
    mine: Result<R>,
) -> Result<(R, Vec<[usize; TOLD]>)> {
    const WORDS: usize = CALL + TOLD + 1;
    const FAILED: usize = WORDS - 1;
    let (rank, size) = rank_and_size(comm);
    let told = match &mine {
        Ok(_) => String::new(),
        // Of a step of the program's own.
        Err(Error::Rank { reason, .. }) => reason.clone(),
        Err(e) => e.to_string(),
    };
    let mut text = told.into_bytes();
    text.truncate(MOST);
    let mut words = [0u64; WORDS];
    words[..CALL].copy_from_slice(&call.0);
    words[CALL..FAILED].copy_from_slice(&numbers.map(|number| number as u64));
    // 0 where nothing failed, else one more than the length of the text.
    words[FAILED] = if mine.is_err() { 1 + text.len() as u64 } else { 0 };
    let mut all = vec![0u64; WORDS * size];
    comm.all_gather_into(&words[..], &mut all[..]);

    let words_of_all = || all.chunks_exact(WORDS);
    if let Some(failed) = words_of_all().position(|words| words[FAILED] > 0) {
        let length = all[failed * WORDS + FAILED] as usize - 1;
        if failed != rank {
            text.resize(length, 0);
        }
        comm.process_at_rank(failed as Count).broadcast_into(&mut text[..]);
        // Another rank that failed too has taken part, and keeps its own error.
        mine?;
        let reason = String::from_utf8_lossy(&text).into_owned();
        return Err(Error::Rank { rank: failed, reason });
    }
    let call_of = |words: &[u64]| {
        let mut call = Call([0; CALL]);
        call.0.copy_from_slice(&words[..CALL]);
        call
    };
    let first = call_of(&all);
    for (rank, other) in words_of_all().map(call_of).enumerate() {
        if let Some(at) = (0..CALL).find(|&at| first.0[at] != other.0[at]) {
            let (what, first, other) = (MEANINGS[at].0, first.show(at), other.show(at));
            return Err(Error::Disagree { what, first, rank, other });
        }
    }
    let told = words_of_all().map(|words| [CALL, CALL + 1].map(|at| words[at] as usize)).collect();
    Ok((mine?, told))
}
