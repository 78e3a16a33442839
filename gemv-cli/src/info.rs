//! `gemv info`: what there is, what there is not and why, and what would be chosen.

pub(crate) mod kernels;
mod weights;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::error::ErrorKind;
use gemv::unstable::table::{TABLES_ENV, user_dirs};
use gemv::unstable::{BACKEND_ENV, Desc, Layout};
use gemv::{Device, DeviceInfo, Engine, Error};
use gemv_baselines::CBLAS_ENV;
use gemv_lab::device::{by_backend, device_json, open_device};
use gemv_lab::parse::{count, parse_dtype};
use gemv_lab::tuner::many;
use gemv_weights::WeightFile;

/// List the devices, say why others are absent, where tables and compiled kernels are kept, and which of gemv's variables are
/// set; or the tensors of a file.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// List the tensors of this file of weights, GGUF or safetensors, and its metadata.
    #[arg(value_name = "FILE", conflicts_with_all = ["kernels", "explain"])]
    file: Option<PathBuf>,
    /// List the kernels of each backend: what each does, and its arguments with their ranges.
    #[arg(long, conflicts_with = "explain")]
    kernels: bool,
    /// Write JSON.
    #[arg(long, conflicts_with = "explain")]
    json: bool,
    /// Say what would be chosen for this product and from which row of which table: a type, a
    /// layout and rows x columns, such as f32 row 4096x8192. May be followed by rhs=8 (right-hand
    /// sides), batch=1000 (matrices of a batch) and align=4 (bytes at whose multiples lines begin)
    #[arg(long, value_name = "PROBLEM", num_args = 1..=6)]
    explain: Option<Vec<String>>,
    /// Explain the choice of this device alone, such as cpu or cuda:0 [default: every device].
    #[arg(long, value_name = "NAME", requires = "explain")]
    device: Option<String>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let engine = Engine::global();
    let mut out = io::stdout().lock();
    if let Some(path) = args.file {
        let file = WeightFile::open(path)?;
        match args.json {
            true => writeln!(out, "{:#}", weights::json(&file))?,
            false => weights::list(&file, &mut out)?,
        }
        return Ok(());
    }
    let Some(words) = args.explain else {
        let json = match (args.kernels, args.json) {
            (true, true) => kernels::json(&by_backend(engine)),
            (true, false) => return Ok(kernels::list(&by_backend(engine), &mut out)?),
            (false, true) => json(engine),
            (false, false) => return list(engine, &mut out),
        };
        return Ok(writeln!(out, "{json:#}")?);
    };
    let desc = parse_problem(&words.join(" ")).unwrap_or_else(|e| {
        // As any other wrong usage: with exit code 2.
        clap::Error::raw(ErrorKind::ValueValidation, format!("--explain: {e:#}\n")).exit()
    });
    explain(engine, &desc, args.device.as_deref(), &mut out)
}

fn list(engine: &Engine, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "gemv {}\n\nDevices", env!("CARGO_PKG_VERSION"))?;
    let listing = engine.devices();
    if listing.is_empty() {
        writeln!(out, "  reference: this program was built with no backend")?;
    }
    for line in listing {
        match line.found {
            Ok(info) => device(&info, out)?,
            Err(Error::DriverMissing { backend, reason }) => {
                writeln!(out, "  no {backend}: {reason}")?;
            }
            Err(why @ Error::Refused { .. }) => writeln!(out, "  {why}")?,
            Err(why) => writeln!(out, "  no {}: {why}", line.id)?,
        }
    }
    match engine.default_device() {
        Ok(device) => {
            writeln!(out, "  products of host arrays go to {}", device.info().id)?;
        }
        Err(why) => writeln!(out, "  products of host arrays fail: {why}")?,
    }
    writeln!(out, "\nTables, looked at in this order before the built-in ones")?;
    for dir in user_dirs() {
        writeln!(out, "  {} ({})", dir.display(), tables_in(&dir))?;
    }
    let caches = caches();
    if !caches.is_empty() {
        writeln!(out, "\nCompiled kernels, and what was found out of devices")?;
        for (backend, dir) in caches {
            match dir {
                Some(dir) => writeln!(out, "  {backend}: {} ({})", dir.display(), size_of(&dir))?,
                None => writeln!(out, "  {backend}: nothing is kept")?,
            }
        }
    }
    let set = ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let set: Vec<_> = set.collect();
    if !set.is_empty() {
        writeln!(out, "\nEnvironment")?;
    }
    for (name, value) in set {
        writeln!(out, "  {name}={}", value.display())?;
    }
    Ok(())
}

/// The list, as JSON.
fn json(engine: &Engine) -> serde_json::Value {
    let (mut devices, mut missing) = (Vec::new(), Vec::new());
    for line in engine.devices() {
        match line.found {
            Ok(info) => devices.push(device_json(&info)),
            Err(why) => missing.push(serde_json::json!({
                "id": line.id,
                "reason": why.to_string(),
            })),
        }
    }
    let default = engine.default_device().map(|device| device.info().id.clone());
    let tables: Vec<String> = user_dirs().iter().map(|dir| dir.display().to_string()).collect();
    let variable = |name: &&str| {
        let value = std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        (name.to_string(), serde_json::Value::from(value))
    };
    let environment: serde_json::Map<_, _> = ENVIRONMENT.iter().map(variable).collect();
    let caches: serde_json::Map<_, _> = caches()
        .into_iter()
        .map(|(backend, dir)| (backend.into(), dir.map(|dir| dir.display().to_string()).into()))
        .collect();
    serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "devices": devices,
        "missing": missing,
        "default": default.ok(),
        "tables": tables,
        "caches": caches,
        "environment": environment,
    })
}

/// Where each backend that has a compiler keeps what it compiles; `None` where it keeps nothing.
fn caches() -> Vec<(&'static str, Option<PathBuf>)> {
    vec![
        #[cfg(feature = "opencl")]
        ("opencl", gemv::opencl::cache_dir()),
        #[cfg(feature = "cuda")]
        ("cuda", gemv::cuda::Cache::from_env().dir().map(PathBuf::from)),
    ]
}

/// The variables that the library reads, and the rivals of `gemv bench`.
const ENVIRONMENT: &[&str] = &[
    BACKEND_ENV,
    TABLES_ENV,
    "GEMV_CACHE_DIR",
    "GEMV_CACHE",
    "GEMV_SELF_TEST",
    "GEMV_NVRTC",
    "GEMV_CPU_ISA",
    CBLAS_ENV,
    #[cfg(feature = "opencl")]
    gemv::opencl::CLBLAST_ENV,
];

fn device(info: &DeviceInfo, out: &mut impl Write) -> io::Result<()> {
    write!(out, "  {}: {}", info.id, info.name)?;
    let mut facts = Vec::new();
    if !info.arch.is_empty() && info.arch != info.name {
        facts.push(info.arch.clone());
    }
    if info.units > 0 {
        let unit = if info.id == "cpu" { "thread" } else { "compute unit" };
        facts.push(count(info.units, unit));
    }
    if let Some(memory) = info.memory {
        let where_ = if info.host { " of host memory" } else { "" };
        facts.push(format!("{}{where_}", bytes(memory)));
    }
    if !info.driver.is_empty() {
        facts.push(info.driver.clone());
    }
    if !facts.is_empty() {
        write!(out, " ({})", facts.join(", "))?;
    }
    writeln!(out)
}

/// Bytes with a binary prefix and one decimal.
fn bytes(n: u64) -> String {
    let (mut value, mut unit) = (n as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "B" { format!("{n} B") } else { format!("{value:.1} {unit}") }
}

fn tables_in(dir: &Path) -> String {
    let mut names: Vec<String> = match std::fs::read_dir(dir) {
        Ok(entries) => entries
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".txt"))
            .collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return "not there".into(),
        Err(e) => return e.to_string(),
    };
    names.sort();
    if names.is_empty() { "no tables".into() } else { names.join(", ") }
}

/// How many files a directory of compiled kernels has, and their bytes.
fn size_of(dir: &Path) -> String {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return "not there".into(),
        Err(e) => return e.to_string(),
    };
    let files = entries.flatten().filter_map(|e| e.metadata().ok()).filter(|m| m.is_file());
    let (number, total) = files.fold((0, 0), |(n, sum), m| (n + 1, sum + m.len()));
    format!("{}, {}", count(number, "file"), bytes(total))
}

fn explain(
    engine: &Engine,
    desc: &Desc,
    only: Option<&str>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if only.is_some() {
        return explain_on(&open_device(only)?, desc, out);
    }
    let ids: Vec<String> =
        engine.devices().into_iter().filter(|l| l.found.is_ok()).map(|l| l.id).collect();
    let ids = if ids.is_empty() { vec!["reference".into()] } else { ids };
    for id in ids {
        match engine.device(&id) {
            Ok(device) => explain_on(&device, desc, out)?,
            Err(why) => writeln!(out, "{id}: {why}")?,
        }
    }
    match engine.default_device() {
        Ok(device) => writeln!(out, "A product of host arrays goes to {}", device.info().id)?,
        Err(why) => writeln!(out, "A product of host arrays fails: {why}")?,
    }
    Ok(())
}

fn explain_on(device: &Device, desc: &Desc, out: &mut impl Write) -> anyhow::Result<()> {
    let id = &device.info().id;
    if let Err(why) = device.backend().accepts(desc) {
        writeln!(out, "{why}")?;
        return Ok(());
    }
    let (params, from) = device.tables().explain(device.backend(), desc);
    writeln!(out, "{id}: {desc} : {params}")?;
    match from {
        Some((table, row)) => {
            writeln!(out, "  from the row \"{row}\" of {}", table.origin)?;
            let kernel = params.kernel();
            if let Some((then, now)) = kernels::stale(device, table, kernel.as_str()) {
                writeln!(
                    out,
                    "  which was tuned with another {kernel} ({then}; this is {now}): other \
                     parameters may be faster"
                )?;
            }
        }
        None => writeln!(out, "  the backend's first candidate: no row of its tables is legal")?,
    }
    Ok(())
}

/// Reads `f32 row 4096x8192`, and what may follow it. The matrix is taken to be dense and aligned to
/// 64 bytes where its lines allow it.
fn parse_problem(text: &str) -> anyhow::Result<Desc> {
    const FORM: &str = "a problem is a type, a layout and a shape, such as f32 row 4096x8192, and maybe \
                        rhs=8, batch=1000 or align=4";
    let words: Vec<&str> = text.split_whitespace().collect();
    let [dtype, layout, shape, ref more @ ..] = words[..] else { bail!(FORM) };
    let dtype = parse_dtype(dtype).map_err(anyhow::Error::msg)?;
    let layout = Layout::parse(layout)
        .with_context(|| format!("{layout:?} is no layout; there are row, col and strided"))?;
    let (m, n) = shape.split_once('x').context(FORM)?;
    let count = |t: &str| t.parse::<usize>().with_context(|| format!("{t:?} is no whole number"));
    let (m, n) = (count(m)?, count(n)?);
    let stride = |len: usize| isize::try_from(len).unwrap_or(isize::MAX);
    let strides = match layout {
        Layout::Row => (stride(n), 1),
        Layout::Col => (1, stride(m)),
        Layout::Strided => (stride(n.saturating_mul(2)), 2),
    };
    let mut desc = Desc::new(dtype, m, n, strides, 0);
    // A vector is of both layouts; the one that was asked for counts.
    desc.layout = layout;
    let (mut rhs, mut batch, mut align) = (None, None, None);
    for word in more {
        let (key, value) = word.split_once('=').context(FORM)?;
        let place = match key {
            "rhs" => &mut rhs,
            "batch" => &mut batch,
            "align" => &mut align,
            _ => bail!("{word:?} is none of rhs=, batch= and align="),
        };
        let value = count(value)?;
        ensure!(value > 0, "{word:?} is no product: it begins at 1");
        ensure!(place.replace(value).is_none(), "{key} is there twice");
    }
    let mut desc = many(desc, rhs.unwrap_or(1), batch.unwrap_or(1));
    if let Some(bytes) = align {
        ensure!(bytes.is_power_of_two() && bytes <= 64, "{bytes} is no power of two up to 64");
        desc.align = bytes.trailing_zeros() as u8;
    }
    Ok(desc)
}
