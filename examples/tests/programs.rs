//! The programs on every device: small, and what they print and draw.
//!
//! Trials of an absent device are ignored and counted; `GEMV_REQUIRE=opencl` turns that into a failure.
//! `GEMV_TEST_DEVICES=cuda` leaves out the others.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};

use libtest_mimic::{Arguments, Failed, Trial};

const BIGNUM: &str = env!("CARGO_BIN_EXE_bignum_digit");
const ROTATE: &str = env!("CARGO_BIN_EXE_rotate_points");

fn run(program: &str, args: &[&str]) -> Result<Output, Failed> {
    Ok(Command::new(program).env_remove("GEMV_BACKEND").args(args).output()?)
}

/// What a program prints that ends well.
fn printed(program: &str, args: &[&str]) -> Result<String, Failed> {
    let output = run(program, args)?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn has(text: &str, part: &str) -> Result<(), Failed> {
    if text.contains(part) { Ok(()) } else { Err(format!("no {part:?} in {text}").into()) }
}

/// A file for a device's picture, which is not there yet.
fn picture(device: &str, name: &str) -> Result<PathBuf, Failed> {
    let name = format!("{}-{name}", device.replace(':', "-"));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
        _ => Ok(path),
    }
}

fn bignum_digit(device: &str) -> Result<(), Failed> {
    let svg = picture(device, "bignum.svg")?;
    let place = svg.to_string_lossy();
    let args = ["--device", device, "--digits", "2048", "--groups", "32,64", "--svg", &*place];
    let out = printed(BIGNUM, &args)?;
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
    let drawn = std::fs::read_to_string(&svg)?;
    has(&drawn, "</svg>")?;
    for name in ways.iter().chain(&["copy", "num-bigint"]) {
        has(&out, name)?;
        has(&drawn, name)?;
    }
    Ok(())
}

fn rotate_points(device: &str) -> Result<(), Failed> {
    let png = picture(device, "rotate.png")?;
    let place = png.to_string_lossy();
    // No multiple of any block.
    let out = printed(ROTATE, &["--device", device, "--points", "10007", "--picture", &*place])?;
    has(&out, "\n10007 points\n")?;
    let ways: &[&str] = if device == "cpu" { &["rayon"] } else { &["by point", "by component"] };
    for way in ways.iter().chain(&["library", "lib. columns"]) {
        has(&out, &format!("\n{way} "))?;
    }
    has(&out, "\nlib. columns: ")?;
    let drawn = std::fs::read(&png)?;
    if drawn.starts_with(b"\x89PNG") { Ok(()) } else { Err("no PNG".into()) }
}

/// A device that is not there is one sentence.
fn absent() -> Result<(), Failed> {
    for (program, name) in [(BIGNUM, "bignum_digit"), (ROTATE, "rotate_points")] {
        let output = run(program, &["--device", "abacus"])?;
        let text = String::from_utf8(output.stderr)?;
        has(&text, &format!("{name}: no such device: \"abacus\""))?;
        if output.status.success() {
            return Err(format!("{name} ends well").into());
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let listed = |name: &str| {
        let text = std::env::var(name).unwrap_or_default();
        let items = text.split(',').map(|item| item.trim().to_owned());
        items.filter(|item| !item.is_empty()).collect::<Vec<_>>()
    };
    let (required, only) = (listed("GEMV_REQUIRE"), listed("GEMV_TEST_DEVICES"));
    let mut trials = vec![Trial::test("absent", absent)];
    for device in ["cpu", "opencl:0", "cuda:0"] {
        if !only.is_empty() && !only.iter().any(|part| device.starts_with(part.as_str())) {
            continue;
        }
        let backend = device.split(':').next().unwrap_or(device);
        let needed = required.iter().any(|item| item.split(':').next() == Some(backend));
        let ignored = !needed && gemv::device(device).is_err();
        let program = |name: &str, check: fn(&str) -> Result<(), Failed>| {
            Trial::test(format!("{device}/{name}"), move || check(device))
                .with_ignored_flag(ignored)
        };
        trials.push(program("bignum_digit", bignum_digit));
        trials.push(program("rotate_points", rotate_points));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
