//! The programs on every device, small: what they print and draw, with the same bits everywhere.
#![deny(unsafe_code)]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{Check, trial};
use libtest_mimic::Trial;

/// What a program prints that ends well.
fn text(program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    let out = command.env_remove("GEMV_BACKEND").args(arguments).output();
    let out = out.map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!("{}: {}", out.status, String::from_utf8_lossy(&out.stderr)));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn printed(program: &str, arguments: &[&str]) -> Result<Vec<String>, String> {
    Ok(text(program, arguments)?.lines().map(str::to_owned).collect())
}

fn has(text: &str, part: &str) -> Check {
    if text.contains(part) { Ok(()) } else { Err(format!("no {part:?} in {text}")) }
}

/// A file for a device's picture, which is not there yet.
fn picture(device: &str, name: &str) -> Result<PathBuf, String> {
    let name = format!("{}-{name}", device.replace(':', "-"));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.to_string()),
        _ => Ok(path),
    }
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

fn multiplies(device: &str) -> Check {
    let svg = picture(device, "bignum.svg")?;
    let place = svg.to_string_lossy();
    let args = ["--device", device, "--digits", "2048", "--groups", "32,64", "--svg", &*place];
    let out = text(env!("CARGO_BIN_EXE_bignum_digit"), &args)?;
    // For each of three sizes: three inputs and four factors for each way, and each way measured.
    let (ways, groups): (&[&str], usize) = match device {
        "cpu" => (&["rayon"], 1),
        _ => (
            &[
                "direct",
                "local memory",
                "2 digits a thread",
                "4 digits a thread",
                "8 digits a thread",
                "16 digits a thread",
                "two passes",
            ],
            2,
        ),
    };
    let products = 3 * ways.len() * (12 + groups);
    has(&out, &format!("\n{products} products compared with num-bigint, none differs\n"))?;
    let drawn = std::fs::read_to_string(&svg).map_err(|e| e.to_string())?;
    has(&drawn, "</svg>")?;
    for name in ways.iter().chain(&["copy", "num-bigint"]) {
        has(&out, name)?;
        has(&drawn, name)?;
    }
    Ok(())
}

fn rotates(device: &str) -> Check {
    let png = picture(device, "rotate.png")?;
    let place = png.to_string_lossy();
    // No multiple of any block.
    let args = ["--device", device, "--points", "10007", "--picture", &*place];
    let out = text(env!("CARGO_BIN_EXE_rotate_points"), &args)?;
    has(&out, "\n10007 points\n")?;
    let ways: &[&str] = if device == "cpu" { &["rayon"] } else { &["by point", "by component"] };
    for way in ways.iter().chain(&["library", "lib. columns"]) {
        has(&out, &format!("\n{way} "))?;
    }
    has(&out, "\nlib. columns: ")?;
    let drawn = std::fs::read(&png).map_err(|e| e.to_string())?;
    if drawn.starts_with(b"\x89PNG") { Ok(()) } else { Err("no PNG".into()) }
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
        if target.id != "reference" {
            let id = target.id.clone();
            let name = format!("{id}/a large number by one digit");
            trials.push(trial(name, move || multiplies(&id)));
            let id = target.id.clone();
            trials.push(trial(format!("{id}/a cloud of points"), move || rotates(&id)));
        }
        let id = target.id.clone();
        trials.push(trial(format!("{id}/a layer"), move || decodes_as_the_reference(&id)));
    }
    for program in [
        env!("CARGO_BIN_EXE_bignum_digit"),
        env!("CARGO_BIN_EXE_conjugate_gradient"),
        env!("CARGO_BIN_EXE_decode_layer"),
        env!("CARGO_BIN_EXE_ridge_regression"),
        env!("CARGO_BIN_EXE_rotate_points"),
    ] {
        let name = PathBuf::from(program);
        let name = name.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        trials.push(trial(format!("{name}/a device that is not there"), move || {
            match text(program, &["--device", "abacus"]) {
                Ok(text) => Err(format!("it ends well: {text}")),
                Err(why) => has(&why, &format!("{name}: no such device: \"abacus\"")),
            }
        }));
    }
    common::main(trials);
}
