//! `gemv bench`: times of products, against the roof of the same run.

use std::collections::HashSet;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use gemv::tuner::{Lab, LabSettings, Mesh, Mode, Runner, Settings, search};
use gemv::{Desc, Device, Dtype, Element, Engine, Layout, Params};
use indicatif::ProgressBar;
use ndarray::{Array1, ArrayView2, ShapeBuilder};
use serde::{Deserialize, Serialize};

use crate::tune::{parse_bytes, parse_dtype, parse_layout};

/// Time products on devices, against the roof of the same run, the vendor's library and ndarray.
///
/// Operands are resident and the caches are cold, unless asked otherwise. Results are checked.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Devices, such as cpu,cuda:0 [default: every device].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    device: Vec<String>,
    /// Element types.
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "f32,f64",
          value_parser = parse_dtype)]
    dtype: Vec<Dtype>,
    /// Layouts.
    #[arg(long, value_name = "LAYOUTS", value_delimiter = ',', default_value = "row,col",
          value_parser = parse_layout)]
    layout: Vec<Layout>,
    /// Shapes: tall (100 N x N), square (10 N x 10 N), wide (N x 100 N), and mesh (rows and columns
    /// on a logarithmic scale).
    #[arg(
        long,
        value_name = "CURVES",
        value_delimiter = ',',
        value_enum,
        default_value = "tall,square,wide"
    )]
    shapes: Vec<Curve>,
    /// One product of this shape, such as 4096x8192, in place of the curves; may be repeated.
    #[arg(long, value_name = "ROWSxCOLUMNS", value_parser = parse_shape)]
    shape: Vec<(usize, usize)>,
    /// Points of a curve, or sizes of the mesh.
    #[arg(long, value_name = "COUNT", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(2..=256))]
    points: u16,
    /// The largest matrix, in bytes; k, M and G stand for powers of 1024.
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = parse_bytes)]
    max_bytes: u64,
    /// Bytes to read before an operand comes again: several times the last cache.
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = parse_bytes)]
    cold_bytes: u64,
    /// Operands in the caches, where they fit.
    #[arg(long)]
    warm: bool,
    /// These parameters in place of the table's, such as "row threads=128 rows=4"; may be repeated.
    #[arg(long, value_name = "PARAMS")]
    params: Vec<Params>,
    /// Also the best of the published kernels, for each shape the best of a selection of their
    /// parameters that has every value of each.
    #[arg(long)]
    classic: bool,
    /// Also every published kernel with every parameter (for the scans of block sizes): some
    /// thousand programs to compile.
    #[arg(long)]
    scan: bool,
    /// Not the vendor's library and ndarray.
    #[arg(long)]
    no_rivals: bool,
    /// Batches of which the median is taken.
    #[arg(long, value_name = "COUNT", default_value = "7",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    rounds: usize,
    /// Append to this CSV file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Curve {
    Tall,
    Square,
    Wide,
    Mesh,
}

/// One measured product. Times in microseconds, bandwidths in 10^9 bytes per second.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) device: String,
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) layout: String,
    /// `tall`, `square`, `wide`, `mesh` or `shape`.
    pub(crate) curve: String,
    pub(crate) m: usize,
    pub(crate) n: usize,
    /// Bytes of A, x and y.
    pub(crate) bytes: u64,
    /// `cold` or `warm`.
    pub(crate) caches: String,
    /// `gemv` (by the table), `given`, `classic`, `scan`, a vendor's library or `ndarray`.
    pub(crate) who: String,
    pub(crate) params: String,
    pub(crate) us: f64,
    pub(crate) gbs: f64,
    /// Reading the same bytes, where the device has a pass for it.
    pub(crate) roof_us: Option<f64>,
}

impl Sample {
    /// Share of the roof.
    pub(crate) fn share(&self) -> Option<f64> {
        self.roof_us.map(|roof| roof / self.us)
    }
}

fn parse_shape(text: &str) -> Result<(usize, usize), String> {
    let (m, n) = text.split_once('x').ok_or("a shape is like 4096x8192")?;
    let count = |t: &str| t.parse().ok().filter(|&v: &usize| v > 0);
    count(m).zip(count(n)).ok_or_else(|| format!("{text:?} is not like 4096x8192"))
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let engine = Engine::global()?;
    let names: Vec<String> = if args.device.is_empty() {
        engine.devices().into_iter().filter(|l| l.found.is_ok()).map(|l| l.id).collect()
    } else {
        args.device.clone()
    };
    let mut out = match &args.out {
        Some(path) => {
            let new = !path.exists();
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            let file = file.with_context(|| format!("cannot write {}", path.display()))?;
            Some(csv::WriterBuilder::new().has_headers(new).from_writer(file))
        }
        None => None,
    };
    let mut count = 0;
    for name in names {
        let device = match engine.device(&name) {
            Ok(device) => device,
            // Asked for by name, it has to be there.
            Err(why) if !args.device.is_empty() => return Err(why.into()),
            Err(why) => {
                eprintln!("left out: {why}");
                continue;
            }
        };
        count += one_device(&args, &device, &mut |sample| {
            if let Some(out) = &mut out {
                out.serialize(sample)?;
                out.flush()?;
            }
            Ok(())
        })?;
    }
    if count == 0 {
        bail!("nothing was measured");
    }
    Ok(())
}

fn one_device(
    args: &Args,
    device: &Device,
    keep: &mut dyn FnMut(&Sample) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    let mut settings = LabSettings::default();
    settings.mode = if args.warm { Mode::Warm } else { Mode::Cold };
    let most = device.info().memory.map_or(u64::MAX, |m| m / 4);
    // A shape that was asked for by itself is meant.
    let of = |&(m, n): &(usize, usize)| {
        let elements = (m as u64).saturating_mul(n as u64);
        let bytes = |dtype: &Dtype| elements.saturating_mul(dtype.bytes() as u64);
        args.dtype.iter().map(bytes).max().unwrap_or(0)
    };
    let asked = args.shape.iter().map(of).max().unwrap_or(0);
    if asked > most.min(isize::MAX as u64) {
        bail!("a matrix of {asked} bytes is more than a quarter of what {} has", device.info().id);
    }
    settings.max_bytes = args.max_bytes.max(asked).min(most);
    settings.cold_bytes = args.cold_bytes.min(most);
    if device.info().host {
        settings.batch = 1e-3; // as in `gemv tune`
    }
    let max_bytes = settings.max_bytes;
    let mut lab = Lab::new(device, settings);
    let profile = lab.profile()?;
    writeln!(stdout(), "{}: {} ({})", device.info().id, device.info().name, device.info().driver)?;
    match profile.roof.points.last() {
        Some(p) => writeln!(stdout(), "read bandwidth {:.1} GB/s", p.bytes as f64 / p.cold / 1e9)?,
        None => writeln!(stdout(), "no roof: this backend has no pass that only reads")?,
    }

    let mut plan: Vec<(String, Desc)> = Vec::new();
    for &dtype in &args.dtype {
        for &layout in &args.layout {
            let shapes = shapes(args, dtype, max_bytes);
            for (curve, m, n) in shapes {
                let strides = if layout == Layout::Col { (1, m as isize) } else { (n as isize, 1) };
                let desc = Desc::new(dtype, m, n, strides, 0);
                // A single row or column is of one layout only, and is measured once.
                if desc.layout == layout {
                    plan.push((curve, desc));
                }
            }
        }
    }
    let plan: Vec<Task> =
        plan.into_iter().map(|(curve, d)| Task::new(args, device, curve, d)).collect();
    // Every program is compiled before the first is timed, on all cores.
    let all = plan.iter().flat_map(|t| t.all().map(|p| (t.desc, p))).collect::<Vec<_>>();
    lab.prepare(&all);
    let least = profile.roof.points.first().map_or(0, |p| p.bytes);
    let bar = ProgressBar::new(plan.len() as u64);
    if !stderr().is_terminal() {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    // Whoever reads this may have seen enough: an error, not a panic.
    let say = |line: String| bar.suspend(|| writeln!(stdout(), "{line}"));
    say(format!(
        "{:<26}{:<12}{:>11}{:>9}{:>7}  parameters",
        "problem", "who", "us", "GB/s", "roof"
    ))?;
    let mut count = 0;
    for task in plan {
        bar.inc(1);
        let desc = task.desc;
        if let Err(why) = device.backend().accepts(&desc) {
            say(why.to_string())?;
            continue;
        }
        // Nothing is known of what reading fewer bytes takes than the smallest pass did.
        let roof = if desc.bytes() < least { None } else { lab.floor(&desc) };
        for sample in measure(args, device, &mut lab, task, roof) {
            let sample = match sample {
                Ok(sample) => sample,
                Err(why) => {
                    say(format!("{:<26}{why:#}", desc.to_string()))?;
                    continue;
                }
            };
            if sample.who != "scan" {
                let share = sample.share().map_or("-".into(), |s| format!("{:.0} %", 100.0 * s));
                let Sample { who, us, gbs, params, .. } = &sample;
                let problem = desc.to_string();
                say(format!("{problem:<26}{who:<12}{us:>11.2}{gbs:>9.1}{share:>7}  {params}"))?;
            }
            keep(&sample)?;
            count += 1;
        }
    }
    bar.finish_and_clear();
    Ok(count)
}

/// The shapes that were asked for, each with the name of its curve.
fn shapes(args: &Args, dtype: Dtype, max_bytes: u64) -> Vec<(String, usize, usize)> {
    if !args.shape.is_empty() {
        return args.shape.iter().map(|&(m, n)| ("shape".into(), m, n)).collect();
    }
    let elements = max_bytes / dtype.bytes() as u64;
    let mut shapes = Vec::new();
    for curve in &args.shapes {
        let (name, rows, columns) = match curve {
            Curve::Tall => ("tall", 100, 1),
            Curve::Square => ("square", 10, 10),
            Curve::Wide => ("wide", 1, 100),
            Curve::Mesh => {
                let mesh = Mesh::new(args.points.into(), 1, 1 << 22, max_bytes);
                for &m in mesh.sizes() {
                    let fits = |n: &&usize| (m * **n) as u64 <= elements;
                    let row = mesh.sizes().iter().filter(fits).map(|&n| ("mesh".into(), m, n));
                    shapes.extend(row);
                }
                continue;
            }
        };
        // 100 N^2 elements on each of the three.
        let most = ((elements / 100) as f64).sqrt().max(1.0);
        let mut last = 0;
        for k in 0..args.points {
            let n = most.powf(f64::from(k) / f64::from(args.points - 1)).round() as usize;
            if n > last {
                shapes.push((name.into(), rows * n, columns * n));
            }
            last = n;
        }
    }
    shapes
}

/// What is to be measured of one problem.
struct Task {
    curve: String,
    desc: Desc,
    /// Each with the name under which it goes; or why there is none.
    asked: Vec<(String, Params)>,
    classic: Vec<Params>,
    why: Option<gemv::Error>,
}

impl Task {
    fn new(args: &Args, device: &Device, curve: String, desc: Desc) -> Task {
        let (mut asked, mut why) = (Vec::new(), None);
        let backend = device.backend();
        if args.params.is_empty() {
            match device.choose(&desc) {
                Ok(params) => asked.push(("gemv".into(), params)),
                Err(error) => why = Some(error),
            }
        }
        asked.extend(args.params.iter().map(|p| ("given".into(), *p)));
        if !args.no_rivals
            && let Some(params) = backend.vendor(&desc)
        {
            let name = params.kernel().as_str().trim_start_matches("vendor-").to_owned();
            asked.push((name, params));
        }
        let classic = match (args.scan, args.classic) {
            (true, _) => backend.classic(&desc),
            (_, true) => selection(backend.classic(&desc)),
            _ => Vec::new(),
        };
        Task { curve, desc, asked, classic, why }
    }

    fn all(&self) -> impl Iterator<Item = Params> + '_ {
        self.asked.iter().map(|a| a.1).chain(self.classic.iter().copied())
    }
}

/// Of each kernel those parameters that bring a value of an argument that none before them had.
fn selection(all: Vec<Params>) -> Vec<Params> {
    let mut seen = HashSet::new();
    let mut fresh = |p: &Params| {
        let arg = |(name, value): (String, u32)| seen.insert((p.kernel().to_string(), name, value));
        p.args().map(arg).filter(|new| *new).count() > 0
    };
    all.into_iter().filter(|p| fresh(p)).collect()
}

fn measure(
    args: &Args,
    device: &Device,
    lab: &mut Lab,
    task: Task,
    roof: Option<f64>,
) -> Vec<anyhow::Result<Sample>> {
    let Task { curve, desc, mut asked, classic, why } = task;
    let desc = &desc;
    let mut found: Vec<anyhow::Result<Sample>> = why.into_iter().map(|e| Err(e.into())).collect();
    let info = device.info();
    let sample = |who: &str, params: String, seconds: f64| Sample {
        device: info.id.clone(),
        name: info.name.clone(),
        dtype: desc.dtype.name().into(),
        layout: desc.layout.name().into(),
        curve: curve.clone(),
        m: desc.m,
        n: desc.n,
        bytes: desc.bytes(),
        caches: if args.warm { "warm" } else { "cold" }.into(),
        who: who.into(),
        params,
        us: seconds * 1e6,
        gbs: desc.bytes() as f64 / seconds / 1e9,
        roof_us: roof.map(|s| s * 1e6),
    };

    // In turn, so that a drift of the clock meets all alike; and none without the right result.
    asked.retain(|(who, params)| match lab.check(desc, params) {
        Ok(()) => true,
        Err(why) => {
            found.push(Err(anyhow::anyhow!("{who} ({params}) does not count: {why}")));
            false
        }
    });
    let mut times = vec![Vec::new(); asked.len()];
    for _ in 0..args.rounds.max(1) {
        for (times, (who, params)) in times.iter_mut().zip(&asked) {
            match lab.measure(desc, params) {
                Ok(seconds) => times.push(seconds),
                Err(why) => found.push(Err(anyhow::anyhow!("{who} ({params}): {why}"))),
            }
        }
    }
    for (times, (who, params)) in times.iter_mut().zip(&asked) {
        times.sort_by(f64::total_cmp);
        if let Some(&median) = times.get(times.len() / 2) {
            found.push(Ok(sample(who, params.to_string(), median)));
        }
    }

    if !classic.is_empty() {
        let mut settings = Settings::default();
        if args.scan {
            (settings.hopeless, settings.finalists, settings.rounds) =
                (f64::INFINITY, classic.len(), 3);
        }
        let cell = search(lab, desc, &classic, &[], &settings);
        for (params, why) in &cell.failures {
            found.push(Err(anyhow::anyhow!("{params} does not count: {why}")));
        }
        if let Some(best) = cell.best() {
            found.push(Ok(sample("classic", best.params.to_string(), best.seconds)));
        }
        if args.scan {
            let all = cell.trials.iter().filter(|t| t.checked);
            found.extend(all.map(|t| Ok(sample("scan", t.params.to_string(), t.seconds))));
        }
    }

    if info.host && info.id.starts_with("cpu") && !args.no_rivals {
        let seconds = match desc.dtype {
            Dtype::F32 => Some(ndarray_dot::<f32>(args, desc)),
            Dtype::F64 => Some(ndarray_dot::<f64>(args, desc)),
            _ => None,
        };
        found.extend(seconds.map(|s| Ok(sample("ndarray", String::new(), s))));
    }
    found
}

/// Seconds of ndarray's own dot, with operands that rotate through as much memory as the others'.
fn ndarray_dot<T>(args: &Args, desc: &Desc) -> f64
where
    T: Element + ndarray::LinalgScalar + From<i8>,
{
    let value = |k: usize| T::from((k * 7919 % 101) as i8);
    let (len, line) = (desc.m * desc.n, 64 / desc.dtype.bytes());
    let pool = if args.warm { 0 } else { args.cold_bytes as usize / desc.dtype.bytes() };
    let pool: Vec<T> = (0..pool.max(len)).map(value).collect();
    let x = Array1::from_shape_fn(desc.n, value);
    let shape = (desc.m, desc.n).set_f(desc.layout == Layout::Col);
    let mut cursor = 0;
    let mut batch = |count: usize| {
        let start = Instant::now();
        for _ in 0..count {
            if cursor + len > pool.len() || args.warm {
                cursor = 0;
            }
            let a = ArrayView2::from_shape(shape, &pool[cursor..cursor + len]);
            std::hint::black_box(a.expect("as many entries as the shape has").dot(&x));
            cursor += len.div_ceil(line) * line;
        }
        start.elapsed().as_secs_f64() / count as f64
    };
    let first = batch(1);
    let count = ((300e-6 / first.max(1e-9)) as usize).clamp(1, 256);
    let mut times: Vec<f64> = (0..args.rounds.max(1)).map(|_| batch(count)).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
