//! `gemv share`: what the authors would like to know of a device that they do not have, in one file.

mod tests;

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use gemv::Device;
use serde_json::{Value, json};

use crate::device::{device_json, open_device};
use crate::files::{read_found, write};
use crate::interrupt::{Interrupted, is_stopped, watch};
use crate::parse::parse_bytes;
use crate::{bench, tune};

/// Test, tune and time a device, and write one file of results for the authors.
///
/// For devices that they do not have. Products of every type are compared with the reference; then gemv
/// tune and gemv bench run with a part of the time each. Interrupted or given more time, the same command
/// goes on from what it has. The file has the device's and the driver's names, counts and times: read it
/// before you share it, by a merge request that adds it to docs/results/shared of the repository. Beside it, compiled
/// kernels are kept as for any product. Nothing is sent.
#[derive(clap::Args)]
pub struct Args {
    /// The device, such as opencl:0.
    #[arg(long, value_name = "NAME")]
    device: String,
    /// The time for all, after which it stops measuring: a fifth for the tests, three for gemv tune and one
    /// for gemv bench, which does not count the building of its kernels.
    #[arg(long, value_name = "MINUTES", default_value_t = 10.0, value_parser = parse_minutes)]
    minutes: f64,
    /// The largest matrix, as of gemv tune and gemv bench.
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = size)]
    max_bytes: String,
    /// Bytes to read before an operand comes again, as of gemv tune and gemv bench.
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = size)]
    cold_bytes: String,
    /// The directory for the raw data and the file of results, share.json [default:
    /// gemv-share-DEVICE].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// What becomes of the file: this program sends nothing, and there is no address to send it to.
const NEXT: &str = "to share it, add this file to a clone of gemv's repository as docs/results/shared/DEVICE.json and open \
                    a merge request; gemv report draws what is beside it";

/// A number of bytes, as it was written.
fn size(text: &str) -> Result<String, String> {
    parse_bytes(text).map(|_| text.to_owned()).map_err(|e| e.to_string())
}

fn parse_minutes(text: &str) -> Result<f64, String> {
    match crate::parse::parse_minutes(text)? {
        0.0 => Err("nothing can be measured in no time".into()),
        minutes => Ok(minutes),
    }
}

/// The arguments of another subcommand, from the words that a person would write.
#[derive(Parser)]
struct Words<A: clap::Args> {
    #[command(flatten)]
    args: A,
}

/// What a part of the run came to.
struct Part {
    command: Vec<String>,
    error: Option<anyhow::Error>,
}

impl Part {
    /// Runs another subcommand.
    fn run<A: clap::Args>(command: Vec<String>, run: fn(A) -> anyhow::Result<()>) -> Part {
        eprintln!("gemv {}", command.join(" "));
        let error = match Words::<A>::try_parse_from(&command) {
            Ok(words) => run(words.args).err(),
            Err(wrong) => Some(wrong.into()),
        };
        Part { command, error }
    }

    fn json(&self, files: &BTreeMap<String, String>) -> Value {
        let error = self.error.as_ref().map(|e| format!("{e:#}"));
        json!({ "command": self.command.join(" "), "error": error, "files": files })
    }
}

/// Tests, tunes and times, and writes the file.
///
/// # Errors
/// What was refused, could not be written, or was stopped, and wrong products, as one sentence.
pub fn run(args: Args) -> anyhow::Result<()> {
    let device = open_device(Some(&args.device))?;
    watch()?;
    let id = device.info().id.clone();
    let out = args.out.clone().unwrap_or_else(|| format!("gemv-share-{}", plain(&id)).into());
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let (max, cold) = (&args.max_bytes, &args.cold_bytes);
    let of = json!({
        "gemv": env!("CARGO_PKG_VERSION"), "device": device_json(device.info()),
        "max_bytes": max, "cold_bytes": cold,
    });
    belongs(&out, &format!("{of:#}\n"))?;

    eprintln!(
        "{id}: about {} minutes: comparing products with the reference, then gemv tune and gemv bench, beside building \
         kernels for the last",
        args.minutes
    );
    let tested = tested(&device, &out, Duration::from_secs_f64(0.2 * 60.0 * args.minutes))?;
    let stopped = || {
        Interrupted::with(format!(
            "stopped; the same command goes on from what is in {}",
            out.display()
        ))
    };
    if is_stopped() {
        return Err(stopped());
    }
    let path = |name: &str| format!("--out={}", out.join(name).display());
    let words = |words: &[&str]| -> Vec<String> { words.iter().map(|w| w.to_string()).collect() };
    let limits = ["--max-bytes", max, "--cold-bytes", cold];

    let (minutes, to) = ((0.6 * args.minutes).to_string(), path("tune"));
    let tune = ["tune", "--device", &id, "--minutes", &minutes, &to, "--resume"];
    let tune = Part::run(words(&[&tune[..], &limits].concat()), tune::run);
    if is_stopped() {
        return Err(stopped());
    }

    // Times that are there are not taken twice. They are there when all were taken.
    let (part, whole) = (out.join("bench.part.csv"), out.join("bench.csv"));
    let (seconds, to) = ((0.2 * 60.0 * args.minutes).to_string(), path("bench.part.csv"));
    let bench = ["bench", "--device", &id, "--seconds", &seconds, &to, "--points", "8"];
    let command = words(&[&bench[..], &limits].concat());
    let bench = match whole.exists() {
        true => Part { command, error: None },
        false => Part::run(command, bench::run),
    };
    if is_stopped() {
        return Err(stopped());
    }
    if bench.error.is_none() && !whole.exists() {
        let why = || format!("cannot rename {}", part.display());
        std::fs::rename(&part, &whole).with_context(why)?;
    }

    let results = json!({
        "gemv": env!("CARGO_PKG_VERSION"),
        "date": chrono::Utc::now().format("%Y-%m-%d").to_string(),
        "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        "device": device_json(device.info()),
        "tests": tested,
        "tune": tune.json(&texts(&out.join("tune"), &tune::files(&device, ""))?),
        "bench": bench.json(&texts(&out, &["bench.csv".into()])?),
    });
    let file = out.join("share.json");
    // Commands have the directory, whose name may be a person's.
    write(&file, &format!("{:#}\n", masked(results, &out.to_string_lossy())))?;
    // Nobody may read this, which must not hide what failed.
    let said = writeln!(stdout(), "{}", file.display());
    for part in [tune, bench] {
        if let Some(why) = part.error {
            return Err(why.context(format!("gemv {} (noted in the file)", part.command[0])));
        }
    }
    let wrong = tested["wrong"].as_array().map_or(0, Vec::len);
    ensure!(wrong == 0, "{wrong} products have other bits than the reference: the file names them");
    said?;
    Ok(writeln!(stdout(), "{NEXT}")?)
}

/// Notes what a directory's results are of: a device, its driver, this version and the limits.
///
/// # Errors
/// If there are results of something else.
fn belongs(out: &Path, of: &str) -> anyhow::Result<()> {
    let path = out.join("of.json");
    match found(&path)? {
        Some(known) => ensure!(
            known == of,
            "{} has results of another device, driver, version of gemv, or limits: name another directory by \
             --out, or remove it",
            out.display()
        ),
        None => write(&path, of)?,
    }
    Ok(())
}

/// The tests' results: of an earlier run, where that has compared everything.
fn tested(device: &Device, out: &Path, limit: Duration) -> anyhow::Result<Value> {
    let path = out.join("tests.json");
    let known = found(&path)?;
    let known = known.and_then(|text| serde_json::from_str::<Value>(&text).ok());
    if let Some(known) = known.filter(|known| known["whole"] == true) {
        return Ok(known);
    }
    let results = tests::run(device, Instant::now() + limit);
    write(&path, &format!("{results:#}\n"))?;
    Ok(results)
}

/// Files of a directory, by name, as far as they are there.
fn texts(dir: &Path, names: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for name in names {
        all.extend(found(&dir.join(name))?.map(|text| (name.clone(), text)));
    }
    Ok(all)
}

/// The text of a file of an earlier run, if there is one.
fn found(path: &Path) -> anyhow::Result<Option<String>> {
    read_found(path).with_context(|| format!("cannot read {}", path.display()))
}

/// All texts with `DIR` in place of the directory's name: behind `--out`, and where a path begins with it.
fn masked(value: Value, dir: &str) -> Value {
    match value {
        Value::String(text) => Value::String(mask(&text, dir.trim_end_matches('/'))),
        Value::Array(all) => all.into_iter().map(|value| masked(value, dir)).collect(),
        Value::Object(all) => all.into_iter().map(|(key, v)| (key, masked(v, dir))).collect(),
        other => other,
    }
}

fn mask(text: &str, dir: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || "._-/".contains(c);
    let (mut masked, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(dir).filter(|_| !dir.is_empty()) {
        let (before, after) = (&rest[..at], &rest[at + dir.len()..]);
        masked += before;
        // Part of another word, or a word of its own that is no path, may be anything.
        let begins = !masked.ends_with(is_word);
        let is_out = masked.ends_with("--out=") || masked.ends_with("--out ");
        let ends = !after.starts_with(is_word) && (is_out || dir.starts_with('/'));
        masked += if begins && (ends || after.starts_with('/')) { "DIR" } else { dir };
        rest = after;
    }
    masked + rest
}

/// A device's id as part of a file's name.
fn plain(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

#[cfg(test)]
mod names {
    use super::*;

    #[test]
    fn a_directory_is_masked_where_it_is_a_path() {
        for (text, dir, masked) in [
            ("tune --out=me/run/tune --resume", "me/run", "tune --out=DIR/tune --resume"),
            ("share --out me/run", "me/run/", "share --out DIR"),
            ("cannot write row/x: full", "row", "cannot write DIR/x: full"),
            ("f32 row 4x4, arrow/x", "row", "f32 row 4x4, arrow/x"),
            ("cannot read /data/me: no", "/data/me", "cannot read DIR: no"),
            ("/data/me2 ./x ../x", ".", "/data/me2 DIR/x ../x"),
            ("/ and", "/", "/ and"),
        ] {
            assert_eq!(mask(text, dir.trim_end_matches('/')), masked);
        }
        let all = json!({ "a": ["me/x", { "b": "me/y" }, 1, null] });
        assert_eq!(masked(all, "me"), json!({ "a": ["DIR/x", { "b": "DIR/y" }, 1, null] }));
    }
}
