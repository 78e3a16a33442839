//! The command `gemv`: matrix-vector products from the command line.
//!
//! One module a subcommand; each has its arguments and a `run`. `tune`, `bench`, `report` and `share` are modules of [`gemv_lab`].
//! What is public is for the binary and for the fuzzer of its parsers. Exit codes: 0 done, 1 failed (one sentence on
//! standard error), 2 wrong usage, 130 stopped by Ctrl-C.
#![forbid(unsafe_code)]

mod dot;
mod info;
mod manual;
mod npy;
pub mod npz;
mod warm;
mod weights;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use gemv::unstable::float_mode::in_default;
// Linked for its kernels, which enter the backends by name.
use gemv_baselines as _;
use gemv_lab::{bench, interrupt, parse, report, share, tune};

/// Matrix-vector products on CPU, OpenCL and CUDA, with the same bits everywhere.
#[derive(Parser)]
#[command(name = "gemv", version, max_term_width = 100, after_help = MORE)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What the list of commands leaves out.
const MORE: &str = "gemv completions SHELL prints completions for a shell, gemv man DIR writes manual pages.\n\
                    Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C.";

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant)] // one a process
enum Command {
    Info(info::Args),
    Dot(dot::Args),
    Tune(tune::Args),
    Bench(bench::Args),
    Report(report::Args),
    Share(share::Args),
    Warm(warm::Args),
    #[command(hide = true)]
    Completions(manual::Completions),
    #[command(hide = true)]
    Man(manual::Man),
}

/// Runs the command with the arguments of this process.
pub fn main() -> ExitCode {
    // The text of a number means the same in any mode; a library that was loaded first may have set another one.
    in_default(command)
}

fn command() -> ExitCode {
    // Warnings, such as a table that was left out, reach the user; RUST_LOG shows more or less.
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn"))
        .format(|out, record| {
            let level = record.level().as_str().to_lowercase();
            writeln!(out, "gemv: {level}: {}", record.args())
        })
        .init();
    let done = match parse().command {
        Command::Info(args) => info::run(args),
        Command::Dot(args) => dot::run(args),
        Command::Tune(args) => tune::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Report(args) => report::run(args),
        Command::Share(args) => share::run(args),
        Command::Warm(args) => warm::run(args),
        Command::Completions(args) => manual::completions(args, Cli::command()),
        Command::Man(args) => manual::man(args, Cli::command()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader closed the pipe, as in `gemv dot a.npy x.npy | head`.
        Err(e) if broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            // Standard error may be closed, too.
            let _ = writeln!(io::stderr(), "gemv: {e:#}");
            match e.is::<interrupt::Interrupted>() {
                true => ExitCode::from(interrupt::EXIT),
                false => ExitCode::FAILURE,
            }
        }
    }
}

/// The arguments of this process. Wrong ones end it.
fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|mut wrong| {
        let word = match wrong.get(ContextKind::InvalidSubcommand) {
            Some(ContextValue::String(word)) => word.clone(),
            _ => String::new(),
        };
        // clap's own measure finds none for a short word with two letters exchanged.
        if wrong.kind() == ErrorKind::InvalidSubcommand
            && wrong.get(ContextKind::SuggestedSubcommand).is_none()
        {
            let all = Cli::command();
            let names = all.get_subcommands().map(clap::Command::get_name);
            let near = parse::nearest(&word, names).map(str::to_owned);
            if let Some(near) = near {
                let near = ContextValue::Strings(vec![near]);
                wrong.insert(ContextKind::SuggestedSubcommand, near);
            }
        }
        wrong.exit()
    })
}

fn broken_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
