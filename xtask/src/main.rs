//! The checks of this project: `cargo xtask test` installs what is missing and runs them all.
#![forbid(unsafe_code)]

mod archive;
mod bare;
mod c;
mod candle;
mod house;
mod links;
mod mistakes;
mod newcomer;
mod package;
mod programs;
mod python;
mod release;
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
    /// The tests of products on the CPU under AddressSanitizer; needs a nightly toolchain.
    Asan,
    /// Look for inputs that the parsers answer with a panic, with libFuzzer; what it keeps goes to `fuzz/corpus`.
    Fuzz {
        /// Only these targets (repeatable); all by default
        #[arg(long = "target", value_name = "NAME")]
        targets: Vec<String>,
        /// For each target
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Build the libraries for C and install them: headers, libraries, files for pkg-config and CMake.
    InstallC {
        /// Such as /usr/local
        #[arg(long, value_name = "FOLDER")]
        prefix: std::path::PathBuf,
        /// A folder that stands before it, for packages
        #[arg(long, value_name = "FOLDER")]
        destdir: Option<std::path::PathBuf>,
    },
    /// The test suites of others with libgemv_blas in front: the reference BLAS, LAPACK, NumPy, SciPy. The wheel of Python with
    /// torch and JAX, and NumPy's, SciPy's and the array API's tests by it. Static archives. Takes long.
    Suites {
        /// Only these (repeatable): blas, lapack, numpy, scipy, archive, python
        #[arg(long = "only", value_name = "SUITE")]
        only: Vec<String>,
    },
    /// The tests of gemv-candle, and its example; compiles candle.
    Candle,
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
            println!("\nOnly by name, cargo xtask test --only STEP:");
            steps::BY_NAME.iter().for_each(|s| println!("{:<10} {}", s.name, s.about));
            Ok(())
        }
        Command::House => house::run(&sh),
        Command::Ptx => ptx(&sh),
        Command::Asan => asan(&sh),
        Command::Candle => candle::run(&sh),
        Command::Fuzz { targets, seconds } => fuzz(&sh, &targets, seconds),
        Command::InstallC { prefix, destdir } => c::install(&sh, &prefix, destdir.as_deref()),
        Command::Suites { only } => c::suites(&sh, &only),
        Command::Setup => setup::all(&sh).map(|_| ()),
        Command::Test { only } => test(&sh, &only),
    }
}

/// The example knows the format; here is where its compiler comes from.
fn ptx(sh: &Shell) -> Result<()> {
    let _nvrtc = sh.push_env("GEMV_NVRTC", setup::nvrtc_of_ptx(sh)?);
    Ok(cmd!(sh, "cargo run --locked --release -q -p gemv-cuda --example ptx").run()?)
}

/// Any toolchain does: LLVM's passes count the edges. What is new is found in a folder of its own, and what covers
/// more than the corpus is added to it.
fn fuzz(sh: &Shell, targets: &[String], seconds: u32) -> Result<()> {
    let folders = sh.read_dir("fuzz/corpus")?;
    let names = folders.iter().filter_map(|folder| folder.file_name()?.to_str().map(str::to_owned));
    let names: Vec<String> = names.collect();
    if let Some(unknown) = targets.iter().find(|target| !names.contains(target)) {
        bail!("there is no target {unknown:?}: there are {}", names.join(", "));
    }
    let flags = [
        "-Cpasses=sancov-module",
        "-Cllvm-args=-sanitizer-coverage-level=4",
        "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
        "-Cllvm-args=-sanitizer-coverage-pc-table",
        "-Ccodegen-units=1",
    ];
    {
        let _flags = sh.push_env("RUSTFLAGS", flags.join(" "));
        let host = cmd!(sh, "rustc -vV").quiet().read()?;
        let host = host.lines().find_map(|line| line.strip_prefix("host: ")).context("a host")?;
        // With a target, so that neither build scripts nor macros are counted.
        let place = ["--target", host, "--target-dir", "target/fuzz"];
        let manifest = "fuzz/libfuzzer/Cargo.toml";
        cmd!(sh, "cargo build --release --manifest-path {manifest} {place...}").run()?;
        sh.create_dir("target/fuzz/bin")?;
        let built = format!("target/fuzz/{host}/release/gemv-libfuzzer");
        sh.copy_file(built, "target/fuzz/bin/gemv-libfuzzer")?;
    }
    for name in names.iter().filter(|name| targets.is_empty() || targets.contains(name)) {
        let (corpus, found) = (format!("fuzz/corpus/{name}"), format!("target/fuzz/found/{name}"));
        sh.create_dir(&found)?;
        println!("\n=== {name}, {seconds} s");
        let _target = sh.push_env("GEMV_FUZZ", name);
        let limits = [
            format!("-max_total_time={seconds}"),
            format!("-artifact_prefix=target/fuzz/{name}-"),
            "-max_len=4096".into(),
            "-timeout=5".into(),
            "-malloc_limit_mb=512".into(),
            "-print_final_stats=1".into(),
            "-verbosity=0".into(),
        ];
        cmd!(sh, "target/fuzz/bin/gemv-libfuzzer {found} {corpus} {limits...}").run()?;
        cmd!(sh, "target/fuzz/bin/gemv-libfuzzer -merge=1 -max_len=4096 {corpus} {found}").run()?;
    }
    Ok(())
}

/// In a folder of its own: everything is compiled anew.
fn asan(sh: &Shell) -> Result<()> {
    let version = cmd!(sh, "rustc +nightly -vV").quiet().ignore_stderr().read();
    let version = version
        .context("AddressSanitizer needs a nightly toolchain: rustup toolchain install nightly")?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc does not name its host")?;
    let _flags = sh.push_env("RUSTFLAGS", "-Zsanitizer=address");
    let _devices = sh.push_env("GEMV_TEST_DEVICES", "cpu");
    let _required = sh.push_env("GEMV_REQUIRE", "cpu");
    let test = ["--test", "equivalence"];
    let place = ["--target", host, "--target-dir", "target/asan"];
    Ok(cmd!(sh, "cargo +nightly test --locked -p gemv-testkit {test...} {place...}").run()?)
}

fn test(sh: &Shell, only: &[String]) -> Result<()> {
    let all = || steps::ALL.iter().chain(steps::BY_NAME);
    // Without a name, every step that needs none.
    let runs = |step: &steps::Step, needs_name: bool| match only {
        [] => !needs_name,
        _ => only.iter().any(|o| o == step.name),
    };
    if let Some(unknown) = only.iter().find(|o| all().all(|s| s.name != **o)) {
        bail!("there is no step {unknown:?}; see `cargo xtask steps`");
    }
    let run: Vec<&steps::Step> = steps::ALL
        .iter()
        .filter(|step| runs(step, false))
        .chain(steps::BY_NAME.iter().filter(|step| runs(step, true)))
        .collect();
    let tools = setup::all(sh)?;
    let mut times = Vec::new();
    for step in run {
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
