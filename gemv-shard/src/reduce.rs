//! Fewer numbers to send: whole lanes of the second level.

use std::ops::Range;

use gemv_core::Accumulator;
use gemv_core::float_mode::in_default;
use gemv_core::order::{LANES, SEGMENT};

use crate::element::SumElement;
use crate::partial::{Cut, Partial};
use crate::{Error, Result, product};

impl<S: SumElement> Partial<S> {
    /// Adds up what this part has of the second level, so that it sends one number for each row and 65,536
    /// columns of the whole, whatever its own columns are.
    ///
    /// For the parts of a [block-cyclic](Self::cyclic) distribution over `processes`, a power of two up to 64:
    /// 1, 2, 4, 8, 16, 32 or 64. Segment s is a term of lane s modulo 64 of the second level, so each process
    /// has all terms of its lanes, and each step of the halving down to `processes` lanes adds two lanes of one
    /// process. Every part of the product has to be reduced for the same number.
    ///
    /// The condition on the number of columns is n > 256. With 256 or fewer there is no second level: the
    /// part has one number a row at most, and comes back as it is. In both cases the bits stay.
    ///
    /// ```
    /// use gemv::device;
    /// use gemv_shard::Partial;
    /// use ndarray::{Array1, Array2};
    ///
    /// let here = device("reference")?;
    /// let (a, x) = (Array2::<f32>::ones((10, 8192)), Array1::<f32>::ones(8192));
    /// let parts = [0, 1, 2, 3].map(|process| {
    ///     let part = Partial::cyclic(&here, &a, &x, process, 4, 4 * 8192)?;
    ///     assert_eq!(part.len(), 10 * 32); // segments
    ///     part.reduce(4)
    /// });
    /// let parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// assert!(parts.iter().all(|part| part.len() == 10));
    /// let mut y = [0.0f32; 10];
    /// Partial::merge(parts)?.finish(&here, 1.0, 0.0, &mut y)?;
    /// assert_eq!(y, [32768.0; 10]);
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Reduce`] for another number of processes, for a part that has some but not all columns of a
    /// process, and for one that is reduced already; [`Error::Product`] without memory.
    pub fn reduce(self, processes: usize) -> Result<Partial<S>> {
        let refused = |reason: String| Err(Error::Reduce { processes, reason });
        if !processes.is_power_of_two() || processes > LANES {
            return refused(format!("their number must be a power of two up to {LANES}"));
        }
        if let Cut::Lanes(before) = self.cut {
            return refused(format!("they are reduced for {before} already"));
        }
        let segments = self.segments();
        if segments < 2 {
            return Ok(self);
        }
        // How many segments below `end` the process has.
        let below = |end: usize, process: usize| end.saturating_sub(process).div_ceil(processes);
        let mut held = Vec::<Range<usize>>::new();
        for process in 0..processes.min(segments) {
            let in_run = |run: &Range<usize>| below(run.end, process) - below(run.start, process);
            match self.held.iter().map(in_run).sum::<usize>() {
                0 => continue,
                some if some < below(segments, process) => {
                    let all = below(segments, process);
                    return refused(format!(
                        "the part has {some} of the {all} blocks of 256 columns of process {process}"
                    ));
                }
                _ => {}
            }
            match held.last_mut() {
                Some(last) if last.end == process => last.end += 1,
                _ => held.push(process..process + 1),
            }
        }

        let reduced = Partial { cut: Cut::Lanes(processes), held, sums: Vec::new(), ..self };
        let (rows, groups) = (self.rows, reduced.width());
        let mine: Vec<usize> = reduced.held.iter().cloned().flatten().collect();
        if rows == 0 || mine.is_empty() {
            return Ok(reduced);
        }
        let mut sums = product::zeros::<S>(mine.len() * groups, rows)?;
        let mut lanes = product::zeros::<S>(LANES, rows)?;
        let mut segments =
            self.held.iter().cloned().flatten().zip(self.sums.chunks(rows)).peekable();
        for group in 0..groups {
            // Rule 2, with an addition in place of the fma. In ascending order, as they are held.
            lanes.fill(S::ZERO);
            while let Some((s, terms)) = segments.next_if(|(s, _)| s / SEGMENT == group) {
                add(&mut lanes[s % LANES * rows..][..rows], terms);
            }
            // Rule 3, as far as both lanes of a step are here.
            let mut h = LANES / 2;
            while h >= processes {
                let (low, high) = lanes.split_at_mut(h * rows);
                for lane in mine.iter().flat_map(|&process| (process..h).step_by(processes)) {
                    add(&mut low[lane * rows..][..rows], &high[lane * rows..][..rows]);
                }
                h /= 2;
            }
            for (unit, &process) in mine.iter().enumerate() {
                let to = (unit * groups + group) * rows;
                sums[to..to + rows].copy_from_slice(&lanes[process * rows..][..rows]);
            }
        }
        Ok(Partial { sums, ..reduced })
    }
}

/// Adds to each lane, of one row each, a term.
fn add<S: SumElement>(lanes: &mut [S], terms: &[S]) {
    let both = lanes.iter_mut().zip(terms);
    in_default(|| both.for_each(|(lane, &term)| *lane = Accumulator::add(*lane, term)));
}
