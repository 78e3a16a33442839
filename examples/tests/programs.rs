//! The programs whose numbers all stay on a device print the same bits on every device.
#![deny(unsafe_code)]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::process::Command;

use common::{Check, trial};
use libtest_mimic::Trial;

/// The lines that a program prints.
fn printed(program: &str, arguments: &[&str]) -> Result<Vec<String>, String> {
    let out = Command::new(program).args(arguments).output().map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!("{}: {}", out.status, String::from_utf8_lossy(&out.stderr)));
    }
    Ok(String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect())
}

/// The lines of a small system, solved; with a plot.
fn solved(device: &str, dtype: &str) -> Result<Vec<String>, String> {
    let name = format!("gemv-{}-{dtype}-{}.svg", device.replace(':', "-"), std::process::id());
    let plot = std::env::temp_dir().join(name);
    let file = plot.to_str().ok_or("a temporary folder whose name is no text")?;
    let options = ["--n", "301", "--device", device, "--dtype", dtype, "--plot", file];
    let lines = printed(env!("CARGO_BIN_EXE_conjugate_gradient"), &options);
    let drawn = std::fs::read_to_string(&plot).is_ok_and(|text| text.contains("<polyline"));
    let _ = std::fs::remove_file(&plot);
    let lines = lines?;
    if drawn { Ok(lines) } else { Err("no curve was drawn".into()) }
}

fn decoded(device: &str) -> Result<Vec<String>, String> {
    let options = ["--shrink", "32", "--tokens", "3", "--device", device];
    printed(env!("CARGO_BIN_EXE_decode_layer"), &options)
}

/// The lines of these names, which must be the same everywhere.
fn named<'a>(lines: &'a [String], names: &[&str]) -> Result<Vec<&'a str>, String> {
    let of = |name: &&str| {
        let line = lines.iter().find_map(|line| line.strip_prefix(*name));
        line.map(str::trim).ok_or_else(|| format!("no {name:?} in {lines:?}"))
    };
    names.iter().map(of).collect()
}

fn solves_as_the_reference(device: &str, dtype: &str) -> Check {
    let (here, there) = (solved(device, dtype)?, solved("reference", dtype)?);
    let names = ["iterations", "residual", "hash of the bits"];
    let (here, there) = (named(&here, &names)?, named(&there, &names)?);
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

fn decodes_as_the_reference(device: &str) -> Check {
    let (here, there) = (decoded(device)?, decoded("reference")?);
    let names = ["hash of the bits"];
    let (here, there) = (named(&here, &names)?, named(&there, &names)?);
    if here == there { Ok(()) } else { Err(format!("{here:?}, but on the reference {there:?}")) }
}

fn learns_as_the_reference(device: &str) -> Check {
    let learnt = |device| printed(env!("CARGO_BIN_EXE_ridge_regression"), &["--device", device]);
    let (here, there) = (learnt(device)?, learnt("reference")?);
    let names = ["read", "hash of the bits"];
    let (here, there) = (named(&here, &names)?, named(&there, &names)?);
    if here != there {
        return Err(format!("{here:?}, but on the reference {there:?}"));
    }
    // Nine in ten are read by a linear function.
    let percent =
        here[0].split(", ").last().and_then(|part| part.trim_end_matches(" %").parse().ok());
    match percent {
        Some(percent) if (90.0..100.0).contains(&percent) => Ok(()),
        _ => Err(format!("too few are read: {here:?}")),
    }
}

fn main() {
    let targets = common::targets();
    let mut trials: Vec<Trial> = common::absences(&targets);
    for target in targets.iter().filter(|target| target.device.is_ok()) {
        for dtype in ["f64", "f32"] {
            let id = target.id.clone();
            let name = format!("{id}/conjugate gradients in {dtype}");
            trials.push(trial(name, move || solves_as_the_reference(&id, dtype)));
        }
        let id = target.id.clone();
        let name = format!("{id}/ridge regression");
        trials.push(trial(name, move || learns_as_the_reference(&id)));
        let id = target.id.clone();
        trials.push(trial(format!("{id}/a layer"), move || decodes_as_the_reference(&id)));
    }
    trials.push(trial("a device that is not there".into(), || {
        let why = solved("abacus", "f64").expect_err("there is no such device");
        if why.contains("no such device") { Ok(()) } else { Err(why) }
    }));
    common::main(trials);
}
