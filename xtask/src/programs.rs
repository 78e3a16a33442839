//! Runs test programs, several at once.
//!
//! `cargo test` runs one after the other, and some keep one core busy alone: a driver compiles OpenCL
//! programs under one lock, a simulator runs on one thread.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// A test program, and how it is started.
pub struct Program {
    /// What is shown.
    pub name: String,
    pub path: PathBuf,
    /// Where it is started: the folder of its crate, as `cargo test` does.
    pub folder: PathBuf,
    pub args: Vec<&'static str>,
    pub variables: Vec<(&'static str, String)>,
}

impl Program {
    fn output(&self) -> Result<Output> {
        let variables = self.variables.iter().map(|(name, value)| (name, value));
        Command::new(&self.path)
            .args(&self.args)
            .current_dir(&self.folder)
            .envs(variables)
            .output()
            .with_context(|| format!("{} cannot be started", self.path.display()))
    }
}

/// Runs programs, as many at once as there are processors, in this order. Shows what each has written when
/// it has ended. After the first that fails no other is started.
///
/// # Errors
/// The first that failed, by its name.
pub fn run(programs: Vec<Program>) -> Result<()> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(programs.len());
    let waiting = Mutex::new(VecDeque::from(programs));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let stop = || waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let mut failed = None;
    thread::scope(|scope| {
        let (ended, endings) = channel();
        for _ in 0..workers {
            let (ended, next) = (ended.clone(), &next);
            scope.spawn(move || {
                while let Some(program) = next() {
                    let start = Instant::now();
                    let output = program.output();
                    // The other end is there as long as any program runs.
                    let _ = ended.send((program.name, start.elapsed(), output));
                }
            });
        }
        drop(ended);
        for (name, took, output) in endings {
            let why = match output {
                Ok(output) => {
                    print!("{}", String::from_utf8_lossy(&output.stdout));
                    eprint!("{}", String::from_utf8_lossy(&output.stderr));
                    (!output.status.success()).then(|| output.status.to_string())
                }
                Err(why) => Some(format!("{why:#}")),
            };
            println!("--- {name}: {:.1} s\n", took.as_secs_f64());
            if let Some(why) = why {
                stop();
                failed.get_or_insert((name, why));
            }
        }
    });
    match failed {
        Some((name, why)) => bail!("{name} failed: {why}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &'static str) -> Program {
        Program {
            name: text.into(),
            path: "/bin/sh".into(),
            folder: "/".into(),
            args: vec!["-c", text],
            variables: vec![("WORD", "there".into())],
        }
    }

    #[test]
    fn programs_run_with_their_variables_and_a_failure_is_named() {
        run(vec![shell("test $WORD = there"), shell("true")]).unwrap();
        let why = run(vec![shell("true"), shell("exit 3"), shell("true")]).unwrap_err();
        assert!(why.to_string().contains("exit 3 failed: exit status: 3"), "{why}");
        let missing = Program { path: "/no/such/file".into(), ..shell("true") };
        assert!(run(vec![missing]).unwrap_err().to_string().contains("cannot be started"));
    }
}
