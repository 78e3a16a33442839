//! Many into one.

use std::ops::Range;

use crate::element::SumElement;
use crate::memory::reserve;
use crate::partial::{Cut, Partial};
use crate::{Error, Result, product};

impl<S: SumElement> Partial<S> {
    /// Puts parts of one product together, in any order: not an addition, so nothing is rounded.
    ///
    /// Parts may be merged in steps. What is merged may still lack columns.
    ///
    /// # Errors
    /// [`Error::Nothing`] without parts, [`Error::Differ`] if they are not of one product or not all of one
    /// form, [`Error::Overlap`] if a column came twice, and [`Error::Product`] without memory.
    pub fn merge(parts: impl IntoIterator<Item = Partial<S>>) -> Result<Partial<S>> {
        let mut parts = parts.into_iter();
        let first = parts.next().ok_or(Error::Nothing)?;
        let parts: Vec<_> = std::iter::once(first).chain(parts).collect();
        let [first, others @ ..] = &parts[..] else { return Err(Error::Nothing) };
        if others.is_empty() {
            return parts.into_iter().next().ok_or(Error::Nothing);
        }
        others.iter().try_for_each(|other| first.fits(other))?;

        // Each run, with the part that has it and its place there.
        let mut runs = Vec::new();
        reserve(&mut runs, parts.iter().map(|part| part.held.len()).sum())?;
        for part in &parts {
            let mut at = 0;
            for run in &part.held {
                runs.push((run.clone(), part, at));
                at += run.len();
            }
        }
        runs.sort_unstable_by_key(|(run, ..)| run.start);
        if let Some(pair) = runs.windows(2).find(|pair| pair[0].0.end > pair[1].0.start) {
            let twice = pair[1].0.start..pair[0].0.end.min(pair[1].0.end);
            return Err(Error::Overlap { part: first.name(twice) });
        }

        let units: usize = runs.iter().map(|(run, ..)| run.len()).sum();
        // Without units, there may be any number of rows.
        let each = if units == 0 { 0 } else { first.rows * first.width() };
        let mut sums = product::zeros::<S>(units, each)?;
        let (mut held, mut rest) = (Vec::<Range<usize>>::new(), &mut sums[..]);
        reserve(&mut held, runs.len())?;
        for (run, part, at) in runs {
            let to;
            (to, rest) = rest.split_at_mut(run.len() * each);
            to.copy_from_slice(&part.sums[at * each..][..run.len() * each]);
            match held.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => held.push(run),
            }
        }
        Ok(Partial { held, sums, ..*first })
    }

    /// Whether the other is of the same product, in the same form.
    fn fits(&self, other: &Partial<S>) -> Result<()> {
        let cut = |of: &Partial<S>| match of.cut {
            Cut::Segments => "sums of segments".to_owned(),
            Cut::Lanes(processes) => format!("sums reduced for {processes} processes"),
        };
        let differ = |left, right| Err(Error::Differ { left, right });
        if self.rows != other.rows {
            return differ(format!("{} rows", self.rows), format!("{} rows", other.rows));
        }
        if self.columns != other.columns {
            let of = |columns| format!("a matrix of {columns} columns");
            return differ(of(self.columns), of(other.columns));
        }
        if self.cut != other.cut {
            return differ(cut(self), cut(other));
        }
        Ok(())
    }
}
