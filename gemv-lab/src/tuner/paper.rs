//! A device and a listener for the examples of this folder.

use std::ops::ControlFlow;

use gemv_core::{Desc, Params};

use super::search::{Failure, ProblemResult, Runner};
use super::sweep::Progress;

/// The device of the example of [`Runner`].
#[derive(Debug)]
pub struct Paper;

impl Runner for Paper {
    fn candidates(&mut self, _: &Desc) -> Vec<Params> {
        [1, 2, 4].map(|rows| Params::new("paper").with("rows", rows)).into()
    }

    fn measure(&mut self, desc: &Desc, params: &Params) -> Result<f64, Failure> {
        let rows = f64::from(params.get_or("rows", 1));
        Ok(1e-6 * rows + 1e-9 * desc.m as f64 / rows)
    }

    fn check(&mut self, _: &Desc, _: &Params) -> Result<(), Failure> {
        Ok(())
    }
}

/// Says nothing, and goes on.
#[derive(Debug)]
pub struct Silent;

impl Progress for Silent {
    fn done(&mut self, _: &ProblemResult, _: usize, _: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// These candidates for every problem, which take so many seconds, all with the right bits.
#[cfg(test)]
pub(crate) struct Timed<F> {
    pub(crate) candidates: Vec<Params>,
    pub(crate) seconds: F,
}

#[cfg(test)]
impl<F: FnMut(&Desc, &Params) -> f64> Runner for Timed<F> {
    fn candidates(&mut self, _: &Desc) -> Vec<Params> {
        self.candidates.clone()
    }

    fn measure(&mut self, desc: &Desc, params: &Params) -> Result<f64, Failure> {
        Ok((self.seconds)(desc, params))
    }

    fn check(&mut self, _: &Desc, _: &Params) -> Result<(), Failure> {
        Ok(())
    }
}
