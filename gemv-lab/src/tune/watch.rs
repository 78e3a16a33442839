//! Progress of a run: the bar, the raw data, and when to stop.

use std::io::{IsTerminal, stderr};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::tuner::{Failure, ProblemResult, Progress};
use gemv::unstable::Params;
use indicatif::{ProgressBar, ProgressStyle};

use crate::interrupt::is_stopped;
use crate::record::Record;

/// Shows progress, appends to the raw data, and knows when to stop.
pub(super) struct RunProgress {
    pub(super) bar: ProgressBar,
    /// Plain lines in place of a bar: when the last one was printed.
    plain: Option<Instant>,
    record: Record,
    deadline: Option<Instant>,
    pub(super) error: Option<anyhow::Error>,
    /// Failures that were printed: each kernel once.
    told: Vec<(Params, String)>,
}

impl RunProgress {
    pub(super) fn new(what: &str, record: Record, deadline: Option<Instant>) -> Self {
        let style = "{prefix} [{elapsed}] {wide_bar} {pos}/{len}, {eta} left";
        let style = ProgressStyle::with_template(style).expect("a constant template");
        let bar = ProgressBar::new(0).with_style(style).with_prefix(what.to_owned());
        let plain = (!stderr().is_terminal()).then(Instant::now);
        RunProgress { bar, plain, record, deadline, error: None, told: Vec::new() }
    }

    fn say(&self, line: &str) {
        if self.plain.is_some() { eprintln!("{line}") } else { self.bar.println(line) }
    }

    /// Begins the next part of the run.
    pub(super) fn next(&mut self, what: &str, deadline: Option<Instant>) {
        self.deadline = deadline;
        self.bar.set_prefix(what.to_owned());
        self.bar.reset();
    }
}

impl Progress for RunProgress {
    fn done(&mut self, result: &ProblemResult, done: usize, total: usize) -> ControlFlow<()> {
        let slow = |why: &Failure| matches!(why, Failure::Slow(_));
        for (params, why) in result.failures.iter().filter(|failure| !slow(&failure.1)) {
            // The raw data has every failure; here each kernel is named once.
            let why: String = why.to_string().lines().next().unwrap_or_default().into();
            let kernel: Params = params.kernel().as_str().parse().expect("a kernel's name");
            if self.told.len() < 20 && !self.told.iter().any(|t| t.0 == kernel) {
                self.say(&format!("skipped: {params} on {}: {why}", result.desc));
                self.told.push((kernel, why));
            }
        }
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        if let Some(last) = &mut self.plain
            && (last.elapsed() > Duration::from_secs(10) || done == total)
        {
            *last = Instant::now();
            let left = self.bar.eta().as_secs();
            let prefix = self.bar.prefix();
            eprintln!("{prefix}: {done} of {total} problems, about {left} s left");
        }
        if let Err(why) = self.record.write(result) {
            self.error = Some(why);
            return ControlFlow::Break(());
        }
        let late = self.deadline.is_some_and(|d| Instant::now() >= d);
        if late || is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
