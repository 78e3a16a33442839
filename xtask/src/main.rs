//! The checks of this project: `cargo xtask test` installs what is missing and runs them all.
#![forbid(unsafe_code)]

mod bare;
mod house;
mod newcomer;
mod package;
mod programs;
mod setup;
mod steps;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use xshell::{Shell, cmd};

/// The checks of gemv, and what they need.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what is missing, then run every check; stops at the first that fails.
    Test {
        /// Only these steps (repeatable; see `cargo xtask steps`)
        #[arg(long = "only", value_name = "STEP")]
        only: Vec<String>,
    },
    /// Only the check of the architecture: circles, floors, unsafe, kernels' names, sizes.
    House,
    /// Compile the PTX that travels with gemv-cuda, where kernels or tables have changed.
    Ptx,
    /// List the steps of `test`.
    Steps,
    /// Only install what the checks need, and say what was found.
    Setup,
}

fn main() -> ExitCode {
    // One line, whatever RUST_BACKTRACE says: what failed has printed the rest.
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let sh = Shell::new()?;
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("a workspace")?;
    sh.change_dir(root);
    match Args::parse().command {
        Command::Steps => {
            steps::ALL.iter().for_each(|s| println!("{:<10} {}", s.name, s.about));
            Ok(())
        }
        Command::House => house::run(&sh),
        Command::Ptx => ptx(&sh),
        Command::Setup => setup::all(&sh).map(|_| ()),
        Command::Test { only } => test(&sh, &only),
    }
}

/// The example knows the format; here is where its compiler comes from.
fn ptx(sh: &Shell) -> Result<()> {
    let _nvrtc = sh.push_env("GEMV_NVRTC", setup::nvrtc_of_ptx(sh)?);
    Ok(cmd!(sh, "cargo run --locked --release -q -p gemv-cuda --example ptx").run()?)
}

fn test(sh: &Shell, only: &[String]) -> Result<()> {
    if let Some(unknown) = only.iter().find(|o| steps::ALL.iter().all(|s| s.name != **o)) {
        bail!("there is no step {unknown:?}; see `cargo xtask steps`");
    }
    let tools = setup::all(sh)?;
    let mut times = Vec::new();
    for step in steps::ALL {
        if !only.is_empty() && !only.iter().any(|o| o == step.name) {
            continue;
        }
        println!("\n=== {}: {}", step.name, step.about);
        let (start, before) = (Instant::now(), cpu_seconds());
        (step.run)(sh, &tools).with_context(|| format!("the step {} failed", step.name))?;
        let cpu = cpu_seconds().zip(before).map(|(now, before)| now - before);
        times.push((step.name, start.elapsed().as_secs_f64(), cpu));
    }
    let all = ("together", times.iter().map(|t| t.1).sum(), times.iter().map(|t| t.2).sum());
    println!("\nEvery step passed, in seconds of time and of the processors:");
    for (name, seconds, cpu) in times.iter().chain([&all]) {
        let cpu = cpu.map_or("not known".into(), |cpu| format!("{cpu:7.1}"));
        println!("  {name:<10} {seconds:7.1} {cpu}");
    }
    Ok(())
}

/// Seconds that the processors have spent on this program, on those that it started and that have ended,
/// and on those that these started. Linux alone says.
fn cpu_seconds() -> Option<f64> {
    // Fields 14 to 17 of proc(5), of which 3 is the first after the name; in ticks of 10 ms.
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let ticks = stat.rsplit_once(") ")?.1.split(' ').skip(11).take(4).map(str::parse::<u32>);
    Some(f64::from(ticks.sum::<Result<u32, _>>().ok()?) / 100.0)
}
