//! Products over ranks have the bits of the product of one process, and an error of one rank is one of all.
//!
//! Without arguments of its own this program is the list of trials. Each starts this same program by `mpirun`, on
//! some ranks, with the name of a case in `GEMV_MPI_CASE`.
#![forbid(unsafe_code)]

mod cases;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// What says to this program that it is a rank.
const CASE: &str = "GEMV_MPI_CASE";

/// What a trial finds wrong.
type Found = Result<(), String>;

fn main() -> ExitCode {
    if let Ok(case) = std::env::var(CASE) {
        return cases::run(&case);
    }
    let mut trials: Vec<(String, Box<dyn Fn() -> Found>)> = Vec::new();
    for ranks in 1..=4 {
        for case in ["products", "refusals"] {
            trials.push((format!("{case}/{ranks}"), Box::new(move || passes(case, ranks))));
        }
    }
    for (name, case, ranks, says) in [
        ("wrong_bits_are_seen", "wrong_bits", 2, "do not have the bits of one process"),
        ("a_rank_is_killed", "killed", 3, "rank 2 ends after 20 products"),
        ("a_rank_panics", "panics", 3, "a planted panic"),
    ] {
        trials.push((name.into(), Box::new(move || fails(case, ranks, says))));
    }
    // `cargo test -p gemv-mpi --test ranks -- refusals`
    let filters: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    trials.retain(|(name, _)| filters.is_empty() || filters.iter().any(|f| name.contains(f)));
    println!("\nrunning {} tests", trials.len());
    // One after the other: each has as many processes as ranks.
    let mut failed = 0;
    for (name, trial) in &trials {
        let start = Instant::now();
        let found = trial();
        let said = if found.is_ok() { "ok" } else { "FAILED" };
        println!("test {name} ... {said} <{:.1} s>", start.elapsed().as_secs_f64());
        if let Err(text) = found {
            println!("{text}");
            failed += 1;
        }
    }
    println!("\ntest result: {} passed; {failed} failed\n", trials.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The longest that a case may take. None waits for a rank that does not come.
const LIMIT: Duration = Duration::from_secs(120);

/// The longest that MPI may take to end all ranks when one has ended.
const ENDS: Duration = Duration::from_secs(30);

fn passes(case: &str, ranks: usize) -> Found {
    let (code, text, _) = mpirun(case, ranks)?;
    match code {
        Some(0) => Ok(()),
        code => Err(format!("{case} on {ranks} ranks ended with {code:?}:\n{text}")),
    }
}

fn fails(case: &str, ranks: usize, says: &str) -> Found {
    let (code, text, took) = mpirun(case, ranks)?;
    if code == Some(0) {
        return Err(format!("{case} passed:\n{text}"));
    }
    if !text.contains(says) {
        return Err(format!("{case} does not say {says:?}:\n{text}"));
    }
    if took > ENDS {
        return Err(format!("{case} took {took:?} to end:\n{text}"));
    }
    Ok(())
}

/// Runs a case; its code, what it printed, and how long it took.
fn mpirun(case: &str, ranks: usize) -> Result<(Option<i32>, String, Duration), String> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{case}-{ranks}"));
    let told = |e: std::io::Error| format!("{}: {e}", folder.display());
    std::fs::create_dir_all(&folder).map_err(told)?;
    let output = folder.join("output");
    let file = std::fs::File::create(&output).map_err(told)?;
    let mut command = Command::new("mpirun");
    command
        .args(["-n", &ranks.to_string()])
        .arg(std::env::current_exe().map_err(told)?)
        .env(CASE, case)
        .env("GEMV_MPI_FOLDER", &folder)
        // Of Open MPI; MPICH has no such limits. As root, as in a container; more ranks than processors.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
        .env("OMPI_MCA_hwloc_base_binding_policy", "none")
        // A rank that waits leaves its processor to another.
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .env("RAYON_NUM_THREADS", "1")
        .stdin(Stdio::null())
        .stdout(file.try_clone().map_err(told)?)
        .stderr(file);
    let start = Instant::now();
    let mut child = command.spawn().map_err(|e| format!("mpirun does not start: {e}"))?;
    let printed = || {
        let bytes = std::fs::read(&output).map_err(told)?;
        Ok::<_, String>(String::from_utf8_lossy(&bytes).into_owned())
    };
    loop {
        if let Some(status) = child.try_wait().map_err(told)? {
            return Ok((status.code(), printed()?, start.elapsed()));
        }
        if start.elapsed() > LIMIT {
            child.kill().and_then(|()| child.wait()).map_err(told)?;
            return Err(format!("{case} on {ranks} ranks does not end:\n{}", printed()?));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
