//! The program that solves by conjugate gradients prints the same bits on every device.
#![deny(unsafe_code)]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::process::Command;

use common::{Check, trial};
use libtest_mimic::Trial;

/// The lines that the program prints, by their first words.
fn printed(device: &str, dtype: &str) -> Result<Vec<String>, String> {
    let plot = std::env::temp_dir().join(format!(
        "gemv-{}-{dtype}-{}.svg",
        device.replace(':', "-"),
        std::process::id()
    ));
    let out = Command::new(env!("CARGO_BIN_EXE_conjugate_gradient"))
        .args(["--n", "301", "--device", device, "--dtype", dtype, "--plot"])
        .arg(&plot)
        .output()
        .map_err(|e| e.to_string())?;
    let drawn = std::fs::read_to_string(&plot).is_ok_and(|text| text.contains("<polyline"));
    let _ = std::fs::remove_file(&plot);
    if !out.status.success() || !drawn {
        return Err(format!("{}: {}", out.status, String::from_utf8_lossy(&out.stderr)));
    }
    Ok(String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect())
}

/// What must be the same everywhere.
fn solution(lines: &[String]) -> Result<Vec<&str>, String> {
    let of = |name: &str| {
        let line = lines.iter().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).ok_or_else(|| format!("no {name:?} in {lines:?}"))
    };
    Ok(vec![of("iterations")?, of("residual")?, of("hash of the bits")?])
}

fn same_as_the_reference(device: &str, dtype: &str) -> Check {
    let (here, there) = (printed(device, dtype)?, printed("reference", dtype)?);
    let (here, there) = (solution(&here)?, solution(&there)?);
    if here != there {
        return Err(format!("{here:?}, but on the reference {there:?}"));
    }
    // The residual is the last one that the recurrence had, and the computed one near it.
    let numbers: Vec<f64> =
        here[1].split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let most = if dtype == "f64" { 1e-11 } else { 1e-4 };
    match numbers[..] {
        [by_recurrence, computed] if by_recurrence < most && computed < most => Ok(()),
        _ => Err(format!("it did not converge: {here:?}")),
    }
}

fn main() {
    let targets = common::targets();
    let mut trials: Vec<Trial> = common::absences(&targets);
    for target in targets.iter().filter(|target| target.device.is_ok()) {
        for dtype in ["f64", "f32"] {
            let id = target.id.clone();
            let name = format!("{id}/{dtype}");
            trials.push(trial(name, move || same_as_the_reference(&id, dtype)));
        }
    }
    trials.push(trial("a device that is not there".into(), || {
        let why = printed("abacus", "f64").expect_err("there is no such device");
        if why.contains("no such device") { Ok(()) } else { Err(why) }
    }));
    common::main(trials);
}
