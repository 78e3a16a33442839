//! The tuner's raw data: a CSV file, appended problem by problem, from which a stopped run
//! resumes.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::tuner::{Failure, Measurements, ProblemResult, Trial};
use anyhow::{Context, ensure};
use gemv::unstable::{Align, Desc, Layout, Params};
use gemv::{Dtype, Error};
use gemv_shard::npy::shown;
use serde::{Deserialize, Serialize};

use crate::files::{Output, read_found};

/// One line. Times are in microseconds. A problem is its `trial` and `failure` lines and an `end`;
/// lines without an `end` (the run was killed between them) are measured again.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Line {
    kind: String,
    dtype: String,
    layout: String,
    m: usize,
    n: usize,
    /// Older files have no such column.
    #[serde(default = "one")]
    rhs: usize,
    align: u8,
    params: String,
    us: Option<f64>,
    low_us: Option<f64>,
    high_us: Option<f64>,
    batches: Option<usize>,
    checked: Option<bool>,
    finalist: Option<bool>,
    /// On an `end`: how many candidates there were, whether one that reached the read bandwidth ended
    /// the search, and the time of only reading the operands.
    candidates: Option<usize>,
    #[serde(alias = "at_roof")]
    at_ceiling: Option<bool>,
    #[serde(alias = "floor_us")]
    read_us: Option<f64>,
    note: String,
}

/// The names of its fields, in order.
pub(crate) const HEADER: &str = "kind,dtype,layout,m,n,rhs,align,params,us,low_us,high_us,batches,checked,finalist,\
                                 candidates,at_ceiling,read_us,note";

fn one() -> usize {
    1
}

impl Line {
    fn new(kind: &str, desc: &Desc) -> Line {
        Line {
            kind: kind.into(),
            dtype: desc.dtype.name().into(),
            layout: desc.layout.name().into(),
            m: desc.m,
            n: desc.n,
            rhs: desc.rhs,
            align: desc.align,
            ..Line::default()
        }
    }

    fn desc(&self) -> anyhow::Result<Desc> {
        ensure!(can_be([self.m, self.n, self.rhs, 1]), "no problem has this shape");
        ensure!(self.align <= Align::WHOLE.high, "no alignment is 2^{}", self.align);
        let desc = Desc::of(
            Dtype::parse(&self.dtype).context("no element type")?,
            Layout::parse(&self.layout).context("no layout")?,
            (self.m, self.n),
            self.align,
        );
        Ok(Desc { rhs: self.rhs, ..desc })
    }

    fn trial(&self) -> anyhow::Result<Trial> {
        let seconds = |us: Option<f64>| {
            let us = us.context("a time is missing")?;
            ensure!(is_time(us), "{us} microseconds are no time");
            Ok::<_, anyhow::Error>(us / 1e6)
        };
        Ok(Trial {
            params: self.params.parse().map_err(anyhow::Error::msg)?,
            launch_id: 0,
            seconds: seconds(self.us)?,
            low: seconds(self.low_us)?,
            high: seconds(self.high_us)?,
            batches: self.batches.unwrap_or(0),
            checked: self.checked.unwrap_or(false),
            finalist: self.finalist.unwrap_or(false),
        })
    }
}

/// Whether so many microseconds can have been measured: at least a picosecond, at most some thirty years.
pub(crate) fn is_time(us: f64) -> bool {
    (1e-6..=1e15).contains(&us)
}

/// Whether rows, columns, right-hand sides and matrices can be those of a problem: no more products than any machine
/// computes.
pub(crate) fn can_be(counts: [usize; 4]) -> bool {
    counts.iter().map(|&c| c.max(1) as f64).product::<f64>() <= (1u64 << 60) as f64
        && counts[2..].iter().all(|&c| c > 0)
}

/// A file of measured problems.
pub(crate) struct Record {
    path: PathBuf,
    out: csv::Writer<File>,
}

impl Record {
    /// Reads the file, and opens it to append. Lines of an unfinished problem at the end
    /// are cut off; nothing else is. `launch_id` gives the identity of a trial, which is not recorded since
    /// kernels change. Trials that are not legal any more are left out.
    pub(crate) fn open(
        path: &Path,
        launch_id: &mut dyn FnMut(&Desc, &Params) -> Option<u64>,
    ) -> anyhow::Result<(Record, Measurements)> {
        let mut known = read(path)?;
        for result in known.values_mut() {
            let trials = std::mem::take(&mut result.trials);
            let legal =
                |t: Trial| Some(Trial { launch_id: launch_id(&result.desc, &t.params)?, ..t });
            result.trials = trials.into_iter().filter_map(legal).collect();
        }
        // Written aside and renamed: a reader never sees half a file.
        let mut all = csv::WriterBuilder::new().has_headers(false).from_writer(Output::open(path)?);
        all.write_record(HEADER.split(','))?;
        for result in known.values() {
            append(&mut all, result)?;
        }
        let whole = all.into_inner().map_err(|e| e.into_error())?;
        whole.finish().with_context(|| format!("cannot write {}", path.display()))?;
        let file = OpenOptions::new().append(true).open(path)?;
        let out = csv::WriterBuilder::new().has_headers(false).from_writer(file);
        Ok((Record { path: path.into(), out }, known))
    }

    /// Appends one problem.
    pub(crate) fn write(&mut self, result: &ProblemResult) -> anyhow::Result<()> {
        append(&mut self.out, result)
            .and_then(|()| Ok(self.out.flush()?))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn append(out: &mut csv::Writer<impl Write>, result: &ProblemResult) -> anyhow::Result<()> {
    for (params, why) in &result.failures {
        // That nothing was measured says nothing.
        if matches!(why, Failure::Slow(_)) {
            continue;
        }
        let mut line = Line::new("failure", &result.desc);
        (line.params, line.note) = (params.to_string(), why.to_string());
        out.serialize(line)?;
    }
    for t in &result.trials {
        let mut line = Line::new("trial", &result.desc);
        line.params = t.params.to_string();
        // Whole nanoseconds, and at least one: no time is 0.
        let us = |seconds: f64| Some((seconds * 1e9).round().max(1.0) / 1e3);
        (line.us, line.low_us, line.high_us) = (us(t.seconds), us(t.low), us(t.high));
        line.batches = Some(t.batches);
        (line.checked, line.finalist) = (Some(t.checked), Some(t.finalist));
        out.serialize(line)?;
    }
    let mut line = Line::new("end", &result.desc);
    (line.candidates, line.at_ceiling) = (Some(result.candidates), Some(result.at_ceiling));
    line.read_us = result.read_seconds.map(|s| s * 1e6);
    out.serialize(line)?;
    Ok(())
}

/// The complete problems of a file, if it is there, without the identities of their trials.
fn read(path: &Path) -> anyhow::Result<Measurements> {
    read_found(path)
        .and_then(|text| text.map_or(Ok(Measurements::new()), |text| parse(path, &text)))
        .with_context(|| format!("cannot read {}", path.display()))
}

/// As [`read`], of the text of a file of this name.
///
/// # Errors
/// With its number, if a line cannot be read: but the last one of a run that was killed in the middle of it.
pub(crate) fn parse(path: &Path, text: &str) -> anyhow::Result<Measurements> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header = reader.headers()?.clone();
    let mut known = Measurements::new();
    let mut open: Option<ProblemResult> = None;
    let mut records = reader.records();
    while let Some(record) = records.next() {
        let at = match &record {
            Ok(record) => record.position(),
            Err(why) => why.position(),
        };
        let (at, number) = at.map_or((0, 0), |at| (at.byte() as usize, at.line()));
        let line = record.and_then(|record| record.deserialize::<Line>(Some(&header)));
        match line.map_err(anyhow::Error::from).and_then(|line| add(&mut known, &mut open, line)) {
            Ok(()) => {}
            Err(_) if is_cut(text.get(at..).unwrap_or_default()) && records.next().is_none() => {
                log::warn!("{}: the last problem is cut, and left out", path.display());
            }
            Err(why) => return Err(why.context(format!("line {number}"))),
        }
    }
    Ok(known)
}

/// Whether a file ends in the middle of this record. Of a quote that is never closed too, but not where it has swallowed
/// a problem that was finished.
fn is_cut(rest: &str) -> bool {
    let is_open = !rest.ends_with('\n') || rest.matches('"').count() % 2 == 1;
    is_open && !rest.lines().skip(1).any(|line| line.starts_with("end,"))
}

/// Takes a line. `open` is the problem whose lines are being read.
fn add(
    known: &mut Measurements,
    open: &mut Option<ProblemResult>,
    line: Line,
) -> anyhow::Result<()> {
    let desc = line.desc()?;
    let mut result = match open.take() {
        Some(result) if result.desc == desc => result,
        _ => ProblemResult::new(desc, vec![]),
    };
    match &*line.kind {
        "trial" => result.trials.push(line.trial()?),
        "failure" => {
            let params = line.params.parse().map_err(anyhow::Error::msg)?;
            let why = Error::Device {
                device: "an earlier run".into(),
                call: "a trial",
                reason: line.note,
            };
            result.failures.push((params, Failure::Refused(why)));
        }
        "end" => {
            result.candidates = line.candidates.unwrap_or(0);
            result.at_ceiling = line.at_ceiling.unwrap_or(false);
            if let Some(us) = line.read_us {
                ensure!(is_time(us), "{us} microseconds are no time");
            }
            result.read_seconds = line.read_us.map(|us| us / 1e6);
            known.insert(desc, result);
            return Ok(());
        }
        other => anyhow::bail!("\"{}\" is no kind of line", shown(other)),
    }
    *open = Some(result);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(m: usize) -> ProblemResult {
        let trial = |name: &str, seconds: f64, finalist| Trial {
            params: name.parse().unwrap(),
            launch_id: 0,
            seconds,
            low: seconds,
            high: 2.0 * seconds,
            batches: 5,
            checked: finalist,
            finalist,
        };
        let desc = Desc::of(Dtype::F64, Layout::Col, (m, 3), 3);
        let refused = Error::Device {
            device: "an earlier run".into(),
            call: "a trial",
            reason: "a, \"b\"\nc".into(),
        };
        ProblemResult {
            desc,
            trials: vec![
                trial("row threads=32 rows=2", 1.5e-6, true),
                trial("col", 2.25e-3, false),
            ],
            failures: vec![("bad".parse().unwrap(), Failure::Refused(refused))],
            candidates: 9,
            at_ceiling: true,
            read_seconds: Some(1e-6),
        }
    }

    /// The file stays as it is, whatever follows the line.
    #[test]
    fn a_bad_line_in_the_middle_is_refused_with_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.csv");
        let (mut record, _) = Record::open(&path, &mut |_, _| Some(0)).unwrap();
        record.write(&result(1)).unwrap();
        record.write(&result(2)).unwrap();
        drop(record);
        let whole = std::fs::read_to_string(&path).unwrap();
        let trial = "\ntrial,f64,col,1,3,";
        for (bad, line) in [
            ("\ntrial,f64,col,1,", 4),
            ("\nf64,col,1,3,", 4),
            ("\ntrial,f65,col,1,3,", 4),
            ("\ntrial,f64,col,1,\"3,", 4),
        ] {
            let text = whole.replacen(trial, bad, 1);
            assert_ne!(text, whole);
            std::fs::write(&path, &text).unwrap();
            let e = Record::open(&path, &mut |_, _| Some(0)).err().unwrap();
            let e = format!("{e:#}");
            let start = format!("cannot read {}: line {line}: ", path.display());
            assert!(e.starts_with(&start) && !e.contains('\n'), "{bad:?}: {e}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    /// What rounds to no time at all could not be read again.
    #[test]
    fn the_shortest_time_is_read_back() {
        let mut short = result(1);
        short.trials[0].seconds = 1e-12;
        let mut out = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
        out.write_record(HEADER.split(',')).unwrap();
        append(&mut out, &short).unwrap();
        let text = String::from_utf8(out.into_inner().unwrap()).unwrap();
        let back = parse("results.csv".as_ref(), &text).unwrap();
        assert_eq!(back[&short.desc].trials[0].seconds, 1e-9);
    }

    #[test]
    fn what_was_written_is_read_and_half_a_problem_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.csv");
        let (mut record, known) = Record::open(&path, &mut |_, _| Some(0)).unwrap();
        assert!(known.is_empty());
        record.write(&result(1)).unwrap();
        record.write(&result(2)).unwrap();
        drop(record);
        let whole = std::fs::read_to_string(&path).unwrap();
        let known = read(&path).unwrap();
        assert_eq!(known.len(), 2);
        let back = &known[&result(2).desc];
        assert_eq!((&back.trials, back.candidates, back.at_ceiling), (&result(2).trials, 9, true));
        assert!(back.failures[0].1.to_string().contains("a, \"b\"\nc"));

        // Killed at any byte: the first problem stays, and the run goes on behind it.
        for cut in [whole.len() - 5, whole.len() - 60, whole.len() - 150] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (mut record, known) = Record::open(&path, &mut |_, _| Some(0)).unwrap();
            assert_eq!(known.keys().map(|d| d.m).collect::<Vec<_>>(), [1]);
            record.write(&result(7)).unwrap();
            drop(record);
            assert_eq!(read(&path).unwrap().keys().map(|d| d.m).collect::<Vec<_>>(), [1, 7]);
        }
    }
}
