//! `gemv bench`: times of products, beside the read bandwidth in the same rounds.

mod classic;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::tuner::{
    DeviceRunner, DeviceSpeed, Failure, Mesh, Mode, Runner, RunnerSettings, largest, many, packed,
};
use anyhow::bail;
use gemv::unstable::{Desc, Layout, Params};
use gemv::{Device, Dtype, Element, Engine};
use gemv_baselines::CBLAS_ENV;
use indicatif::ProgressBar;
use ndarray::{Array3, ArrayView3, Ix3, ShapeBuilder};
use serde::{Deserialize, Serialize};

use crate::device::open_device;
use crate::files::append;
use crate::interrupt::{Interrupted, is_stopped, watch};
use crate::parse::{about, count, parse_bytes, parse_dtype, parse_layout};

/// Time products on devices, beside the read bandwidth, the vendor's library (on the CPU: the BLAS that the variable
/// GEMV_CBLAS names; on OpenCL: the CLBlast that GEMV_CLBLAST names) and ndarray.
///
/// Operands are resident and the caches are cold, unless asked otherwise. Results are checked. What is slower when
/// the machine is busy is told by the column spread; Ctrl-C ends the run with what was measured.
#[derive(clap::Args)]
pub struct Args {
    /// Devices, such as cpu,cuda:0 [default: every device].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    device: Vec<String>,
    /// Element types by NumPy's names, such as bfloat16 and complex128, or short: f32, f64, f16, bf16, c32, c64.
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "float32,float64",
          value_parser = parse_dtype)]
    dtype: Vec<Dtype>,
    /// Layouts.
    #[arg(long, value_name = "LAYOUTS", value_delimiter = ',', default_value = "row,col",
          value_parser = parse_layout)]
    layout: Vec<Layout>,
    /// Shapes: tall (100 N x N), square (10 N x 10 N), wide (N x 100 N), and mesh (every pair of some numbers of rows
    /// and of columns, evenly spaced on a logarithmic scale).
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
    /// Numbers of right-hand sides: columns of X, such as 1,2,4,8,16,64. With 1 among them, the time of
    /// each is also shown as a multiple of that of one, t(k)/t(1). The rows of X and of Y lie one behind
    /// the other.
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "1",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    columns: Vec<usize>,
    /// Matrices of a batch, each with right-hand sides of its own: so many products in one call. Times,
    /// bytes and bandwidths are of the call.
    #[arg(long, value_name = "COUNT", default_value = "1",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    batch: usize,
    /// Points of a curve, or sizes of the mesh.
    #[arg(long, value_name = "COUNT", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(2..=256))]
    points: u16,
    /// The largest matrix, or batch of them, in bytes; k, M and G stand for powers of 1024.
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
    /// Also the best of the published kernels: of parameters that have every value of each argument
    /// for the first shape of a type and layout, then of what was best at the shapes nearest to it
    /// and what lies beside that.
    #[arg(long)]
    classic: bool,
    /// Also the published scans, for pictures of them: the published kernels with every value of one
    /// argument after another, on each --shape, or else on one of 4096 x 4096.
    #[arg(long)]
    scan: bool,
    /// Stop after this long on a device, in equal parts for the element types; the time in which kernels are built
    /// is not counted. Shapes are visited coarse to fine, and what was measured is kept.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// Not the vendor's library and ndarray.
    #[arg(long)]
    no_rivals: bool,
    /// Batches of which the median is taken.
    #[arg(long, value_name = "COUNT", default_value = "7",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    rounds: usize,
    /// Append to this CSV file, line by line as they are measured.
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
    /// Right-hand sides, and matrices of a batch. Older files have neither column.
    #[serde(default = "one")]
    pub(crate) rhs: usize,
    #[serde(default = "one")]
    pub(crate) batch: usize,
    /// Bytes of A, x and y.
    pub(crate) bytes: u64,
    /// `cold` or `warm`.
    pub(crate) caches: String,
    /// `gemv` (by the table), `given`, `classic`, `scan`, a vendor's library or `ndarray`.
    pub(crate) who: String,
    pub(crate) params: String,
    pub(crate) us: f64,
    pub(crate) gbs: f64,
    /// Reading as many bytes in the same rounds, where the device has a kernel for it.
    #[serde(alias = "roof_us")]
    pub(crate) read_us: Option<f64>,
    #[serde(default)]
    pub(crate) driver: String,
    #[serde(default)]
    pub(crate) version: String,
    #[serde(default)]
    pub(crate) date: String,
    #[serde(default)]
    pub(crate) command: String,
    /// How far the rounds lie apart: the middle half of them, as a share of the median. Older files have none.
    #[serde(default)]
    pub(crate) spread: Option<f64>,
}

/// The names of its fields, in order.
pub(crate) const COLUMNS: &str = "device,name,dtype,layout,curve,m,n,rhs,batch,bytes,caches,who,params,us,gbs,read_us,\
                                  driver,version,date,command,spread";

fn one() -> usize {
    1
}

impl Sample {
    /// 10^9 multiplications and additions per second, of real numbers.
    pub(crate) fn gflops(&self) -> f64 {
        let complex = Dtype::parse(&self.dtype).is_some_and(|d| d.is_complex());
        let each = if complex { 8.0 } else { 2.0 };
        let products = [self.m, self.n, self.rhs, self.batch].map(|count| count as f64);
        each * products.iter().product::<f64>() / self.us / 1e3
    }

    /// Share of the read bandwidth.
    pub(crate) fn share(&self) -> Option<f64> {
        self.read_us.map(|read| read / self.us)
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    Duration::try_from_secs_f64(seconds).map_err(|why| why.to_string())
}

fn parse_shape(text: &str) -> Result<(usize, usize), String> {
    let (m, n) = text.split_once('x').ok_or("a shape is like 4096x8192")?;
    let count = |t: &str| t.parse().ok().filter(|&v: &usize| v > 0);
    count(m)
        .zip(count(n))
        .ok_or_else(|| format!("{text:?} is not like 4096x8192, rows and columns from 1 on"))
}

/// Measures, tells and appends to the file.
///
/// # Errors
/// What was refused, could not be written, or was stopped, as one sentence.
pub fn run(args: Args) -> anyhow::Result<()> {
    watch()?;
    let engine = Engine::global();
    let names: Vec<String> = if args.device.is_empty() {
        engine.devices().into_iter().filter(|l| l.found.is_ok()).map(|l| l.id).collect()
    } else {
        args.device.clone()
    };
    let out = match &args.out {
        Some(path) => {
            let (file, has_header) = append(path, COLUMNS)?;
            Some(csv::WriterBuilder::new().has_headers(!has_header).from_writer(file))
        }
        None => None,
    };
    let mut told = Told {
        out,
        count: 0,
        reasons: Vec::new(),
        spreads: Vec::new(),
        least: None,
        unmeasured: BTreeMap::new(),
        bar: ProgressBar::new(0),
        singles: (args.columns.len() > 1).then(HashMap::new),
        wide: args.columns != [1] || args.batch != 1,
    };
    if !stderr().is_terminal() {
        told.bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    told.unmeasured = args.params.iter().map(|p| (*p, None)).collect();
    for name in names {
        let device = match open_device(Some(&name)) {
            Ok(device) => device,
            // A device that was asked for by name has to exist.
            Err(why) if !args.device.is_empty() => return Err(why),
            Err(why) => {
                eprintln!("left out: {why}");
                told.reason(&why.to_string());
                continue;
            }
        };
        one_device(&args, &device, &mut told)?;
        if is_stopped() {
            break;
        }
    }
    if told.count > 0 {
        told.words()?;
    }
    if is_stopped() {
        let kept = match &args.out {
            Some(path) => format!("; {} has them", path.display()),
            None => String::new(),
        };
        return Err(Interrupted::with(format!("stopped after {} times{kept}", told.count)));
    }
    // Parameters that were asked for have to be measured somewhere.
    if let Some((params, why)) = told.unmeasured.first_key_value() {
        let why = why.as_deref().unwrap_or("there was no shape for it");
        bail!("{params} was not measured: {why}");
    }
    if told.count == 0 {
        let why = told.reasons.join("; ");
        bail!("nothing was measured: {}", if why.is_empty() { "there is no device" } else { &why });
    }
    Ok(())
}

/// Where half of the problems have a larger spread, the machine was busy.
pub(crate) const BUSY: f64 = 0.1;

/// The spread of most of these: at least that of half of them.
pub(crate) fn middle(spreads: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = spreads.into_iter().collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

/// The median of rounds, and how far the middle half of them lies apart, as a share of it: none of one round.
fn median(mut times: Vec<f64>) -> Option<(f64, Option<f64>)> {
    times.sort_by(f64::total_cmp);
    let median = *times.get(times.len() / 2)?;
    let quarter = times.len() / 4;
    let apart = times[times.len() - 1 - quarter] - times[quarter];
    Some((median, (times.len() > 1).then_some(apart / median)))
}

/// Where samples go: to the terminal and the file.
struct Told {
    out: Option<csv::Writer<std::fs::File>>,
    count: usize,
    /// Why problems were not measured, each reason once.
    reasons: Vec<String>,
    spreads: Vec<f64>,
    /// Bytes of the smallest read that was measured.
    least: Option<u64>,
    /// Parameters that were asked for and not measured yet, and why.
    unmeasured: BTreeMap<Params, Option<String>>,
    bar: ProgressBar,
    /// Where there are several numbers of right-hand sides: the time of one, by problem and by who
    /// computed it (with which parameters, where they were given).
    singles: Option<HashMap<(String, Desc, String, String), f64>>,
    /// Whether problems have longer names.
    wide: bool,
}

impl Told {
    /// Prints a line. A closed pipe is an error, not a panic.
    fn say(&self, line: &str) -> anyhow::Result<()> {
        Ok(self.bar.suspend(|| writeln!(stdout(), "{line}"))?)
    }

    /// Notes why something was not measured. Whether it is news.
    fn reason(&mut self, why: &str) -> bool {
        let is_new = !self.reasons.iter().any(|known| known == why);
        if is_new {
            self.reasons.push(why.into());
        }
        is_new
    }

    /// What the words of the table mean, and whether its times can be trusted.
    fn words(&self) -> anyhow::Result<()> {
        let mut words = vec![
            "spread: how far the middle half of the rounds lies apart, as a share of the median, which is the time"
                .to_owned(),
        ];
        words.push(match self.least {
            Some(least) => format!(
                "share: of the read bandwidth: the time of only reading as many bytes by the time of the product; \
                 - for operands of less than {} KiB, of which reading alone was not measured",
                least.div_ceil(1024)
            ),
            None => "share: -, since nothing only reads on this device: there is no read bandwidth".into(),
        });
        if self.singles.is_some() {
            words.push(
                "t(k)/t(1): the time of k right-hand sides by that of one; - where one was not measured".into(),
            );
        }
        let busy = middle(self.spreads.iter().copied()).filter(|spread| *spread > BUSY);
        if let Some(spread) = busy {
            words.push(format!(
                "The machine was busy: half of the times have a spread of {:.0} % or more, and what differs by less \
                 than that may be equal.",
                100.0 * spread
            ));
        }
        words.iter().try_for_each(|line| self.say(line))
    }

    fn sample(&mut self, desc: &Desc, sample: Sample) -> anyhow::Result<()> {
        let percent =
            |part: Option<f64>| part.map_or("-".into(), |p| format!("{:.0} %", 100.0 * p));
        let (share, spread) = (percent(sample.share()), percent(sample.spread));
        self.spreads.extend(sample.spread);
        let Sample { who, us, gbs, params, .. } = &sample;
        let times = match &mut self.singles {
            Some(singles) => {
                let given = if who == "given" { params.clone() } else { String::new() };
                let single = Desc { rhs: 1, ..*desc };
                let key = (sample.device.clone(), single, who.clone(), given);
                if desc.rhs == 1 {
                    singles.insert(key.clone(), *us);
                }
                let times = singles.get(&key).map(|single| us / single);
                format!("{:>10}", times.map_or("-".into(), |times| format!("{times:.2}")))
            }
            None => String::new(),
        };
        let problem = self.name(desc);
        self.say(&format!(
            "{problem}{who:<12}{us:>11.2}{spread:>8}{gbs:>9.1}{share:>7}{times}  {params}"
        ))?;
        if sample.who == "given" {
            self.unmeasured.retain(|p, _| p.to_string() != sample.params);
        }
        if let Some(out) = &mut self.out {
            out.serialize(sample)?;
            out.flush()?;
        }
        self.count += 1;
        Ok(())
    }

    /// The problem, as wide as its column of the table.
    fn name(&self, desc: &Desc) -> String {
        let wide = if self.wide { 40 } else { 26 };
        format!("{:<wide$}", desc.to_string())
    }

    fn failure(&mut self, desc: &Desc, params: &Params, why: &str) -> anyhow::Result<()> {
        self.reason(why);
        if let Some(first) = self.unmeasured.get_mut(params) {
            first.get_or_insert_with(|| why.to_owned());
        }
        self.say(&format!("{}{why}", self.name(desc)))
    }
}

/// One device, while it is measured.
struct Run<'a> {
    args: &'a Args,
    device: &'a Device,
    runner: DeviceRunner,
    told: &'a mut Told,
    deadline: Option<Instant>,
    /// The time in which kernels were built.
    building: Duration,
    /// The programs that were compiled, by type.
    ready: HashSet<(Dtype, Params)>,
    classic: classic::Classic,
}

/// The command, without the name of its file or directory, which may be a person's.
fn command(args: impl Iterator<Item = String>) -> String {
    let mut is_name = false;
    let said = args.filter(|arg| {
        let is_out = arg == "--out" || arg.starts_with("--out=");
        let is_said = !is_out && !is_name;
        is_name = arg == "--out";
        is_said
    });
    said.collect::<Vec<_>>().join(" ")
}

/// Loads the rival that a variable names for this device. A wrong path ends the run: else another rival would be compared
/// without a word, or none.
fn load_rival(device: &str) -> anyhow::Result<()> {
    let named = |name| std::env::var_os(name).is_some_and(|path| !path.is_empty());
    if device.starts_with("cpu") && named(CBLAS_ENV) {
        gemv_baselines::load_cblas().map_err(anyhow::Error::msg)?;
    }
    #[cfg(feature = "opencl")]
    if device.starts_with(gemv::opencl::NAME) && named(gemv::opencl::CLBLAST_ENV) {
        gemv::opencl::load_clblast().map_err(anyhow::Error::msg)?;
    }
    Ok(())
}

fn one_device(args: &Args, device: &Device, told: &mut Told) -> anyhow::Result<()> {
    let mode = if args.warm { Mode::Warm } else { Mode::Cold };
    let mut settings = RunnerSettings { mode, ..RunnerSettings::default() };
    let most = device.info().memory.map_or(u64::MAX, |m| m / 4);
    // A single shape may be larger than --max-bytes.
    let of = |&(m, n): &(usize, usize)| {
        let columns = args.columns.iter().max().copied().unwrap_or(1);
        let of = |dtype: &Dtype| many(packed(*dtype, Layout::Row, m, n), columns, args.batch);
        args.dtype.iter().map(|dtype| largest(&of(dtype))).max().unwrap_or(0)
    };
    let asked = args.shape.iter().map(of).max().unwrap_or(0);
    if asked > most.min(isize::MAX as u64) {
        let what = if args.batch > 1 { "a batch" } else { "a matrix" };
        bail!("{what} of {asked} bytes is more than a quarter of what {} has", device.info().id);
    }
    settings.max_bytes = args.max_bytes.max(asked).min(most);
    settings.cold_bytes = args.cold_bytes.min(most);
    if device.info().host {
        settings.batch = 1e-3; // as in `gemv tune`
    }
    if !args.no_rivals {
        load_rival(&device.info().id)?;
    }
    let (max_bytes, batch) = (settings.max_bytes, settings.batch);
    let mut runner = DeviceRunner::new(device, settings);
    let speed = runner.device_speed()?;
    writeln!(stdout(), "{}: {} ({})", device.info().id, device.info().name, device.info().driver)?;
    match speed.read_bandwidth.points.last() {
        Some(p) => writeln!(stdout(), "read bandwidth {:.1} GB/s", p.bytes as f64 / p.cold / 1e9)?,
        None => writeln!(stdout(), "no ceiling: this backend has no kernel that only reads")?,
    }
    told.least = speed.read_bandwidth.points.first().map(|p| p.bytes);
    let (ready, classic, building) = Default::default();
    let mut run = Run { args, device, runner, told, deadline: None, building, ready, classic };
    let tasks: Vec<_> = args.dtype.iter().map(|dtype| run.tasks(*dtype, max_bytes)).collect();
    run.plan(&tasks.concat(), &speed, batch);
    let (problem, times) = (if run.told.wide { 40 } else { 26 }, run.told.singles.is_some());
    run.told.say(&format!(
        "{:<problem$}{:<12}{:>11}{:>8}{:>9}{:>7}{}  parameters",
        "problem",
        "who",
        "us",
        "spread",
        "GB/s",
        "share",
        if times { " t(k)/t(1)" } else { "" }
    ))?;
    let start = Instant::now();
    for (k, (&dtype, tasks)) in args.dtype.iter().zip(tasks).enumerate() {
        // Time that a type does not need goes to the next.
        run.deadline = args.seconds.and_then(|all| {
            let left = all.saturating_sub(start.elapsed().saturating_sub(run.building));
            Instant::now().checked_add(left / (args.dtype.len() - k) as u32)
        });
        run.one_type(dtype, tasks)?;
        if is_stopped() {
            break;
        }
    }
    Ok(())
}

/// The shapes of one type, coarse to fine.
fn shapes(args: &Args, dtype: Dtype, max_bytes: u64) -> Vec<Shape> {
    let shape = |curve: &str, m, n, step| Shape { curve: curve.into(), m, n, step };
    if !args.shape.is_empty() {
        return args.shape.iter().map(|&(m, n)| shape("shape", m, n, 0)).collect();
    }
    let elements = max_bytes / dtype.bytes() as u64 / args.batch as u64;
    let mut shapes = Vec::new();
    for curve in &args.shapes {
        let (name, rows, columns) = match curve {
            Curve::Tall => ("tall", 100, 1),
            Curve::Square => ("square", 10, 10),
            Curve::Wide => ("wide", 1, 100),
            Curve::Mesh => {
                let mesh = Mesh::new(args.points.into(), 1, 1 << 22, max_bytes);
                let sizes = mesh.sizes();
                for (i, &m) in sizes.iter().enumerate() {
                    for (j, &n) in sizes.iter().enumerate() {
                        let step = step(i, sizes).max(step(j, sizes));
                        let fits = (m * n) as u64 <= elements;
                        shapes.extend(fits.then(|| shape("mesh", m, n, step)));
                    }
                }
                continue;
            }
        };
        // Each of the three has 100 N^2 elements.
        let most = ((elements / 100) as f64).sqrt().floor().max(1.0);
        let share = |k: u16| f64::from(k) / f64::from(args.points - 1);
        let mut sizes: Vec<usize> =
            (0..args.points).map(|k| most.powf(share(k)).round() as usize).collect();
        sizes.dedup();
        for (k, n) in sizes.iter().enumerate() {
            shapes.push(shape(name, rows * n, columns * n, step(k, &sizes)));
        }
    }
    shapes.sort_by_key(|s| s.step);
    shapes
}

struct Shape {
    curve: String,
    m: usize,
    n: usize,
    /// The step at which it is visited.
    step: usize,
}

/// The step of coarse to fine at which the `k`-th of these sizes is visited: first every fourth
/// or second one, if those are near enough to predict each other, and the last.
fn step(k: usize, sizes: &[usize]) -> usize {
    let near = |stride: usize| {
        sizes.windows(stride + 1).all(|w| w[stride] as f64 <= w[0] as f64 * classic::FAR.exp2())
    };
    let on = |stride: usize| (k.is_multiple_of(stride) || k + 1 == sizes.len()) && near(stride);
    [4, 2].iter().position(|&stride| on(stride)).unwrap_or(2)
}

/// The shape that is scanned unless one is given.
const SCANNED: usize = 4096;

/// Problems that are looked at for programs to be built with those of the first.
const AHEAD: usize = 64;

/// Seconds for each problem, about, in which results are compared and memory is filled.
const ONCE: f64 = 0.02;

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |p| p.get())
}

impl Run<'_> {
    fn late(&self) -> bool {
        is_stopped() || self.deadline.is_some_and(|d| Instant::now() >= d)
    }

    /// The problems of one type, in the order in which they are measured, each with the name of its curve. Where there
    /// are none, the reason is noted.
    fn tasks(&mut self, dtype: Dtype, max_bytes: u64) -> Vec<(String, Desc)> {
        let args = self.args;
        if let Err(why) = self.device.backend().accepts(&Desc::of(dtype, Layout::Row, (64, 64), 6))
        {
            eprintln!("{why}");
            self.told.reason(&why.to_string());
            return Vec::new();
        }
        // The time of one right-hand side first: the others are shown as multiples of it.
        let mut columns = args.columns.clone();
        columns.sort_unstable();
        columns.dedup();
        let columns = &columns;
        let plan = |m, n| {
            let one = move |layout| {
                let desc = packed(dtype, layout, m, n);
                // A single row or column has one layout only.
                (desc.layout == layout).then_some(desc)
            };
            let each = move |desc| columns.iter().map(move |&rhs| many(desc, rhs, args.batch));
            let fits = move |d: &Desc| largest(d) <= max_bytes;
            args.layout.iter().filter_map(move |&layout| one(layout)).flat_map(each).filter(fits)
        };
        let shapes = shapes(args, dtype, max_bytes).into_iter();
        let tasks = shapes.flat_map(|s| plan(s.m, s.n).map(move |d| (s.curve.clone(), d)));
        let mut tasks: Vec<(String, Desc)> = tasks.collect();
        let scanned = (SCANNED * SCANNED * dtype.bytes()) as u64 <= max_bytes;
        if args.scan && args.shape.is_empty() && scanned {
            tasks.splice(0..0, plan(SCANNED, SCANNED).map(|d| ("shape".into(), d)));
        }
        if tasks.is_empty() {
            self.told.reason(&match args.shape.is_empty() {
                true => format!("no problem of {} fits --max-bytes", dtype.numpy_name()),
                false => "a matrix of one row is row-major only, one of one column column-major: see --layout".into(),
            });
        }
        tasks
    }

    /// Says how many problems there are, and how long they will take, about: a batch of each product in each round and
    /// one of reading, and what is done once for a problem.
    fn plan(&mut self, tasks: &[(String, Desc)], speed: &DeviceSpeed, batch: f64) {
        let (args, host) = (self.args, self.device.info().host);
        let rounds = args.rounds.max(1) as f64;
        let mut seconds = 0.0;
        for (_, desc) in tasks {
            let read = speed.read_bandwidth.seconds(desc.bytes(), args.warm);
            let read = read.unwrap_or(desc.bytes() as f64 / 1e9);
            let others = host && self.device.info().id.starts_with("cpu") && !args.no_rivals;
            let products = self.asked(desc).0.len() + usize::from(others);
            let round = (products + 1) as f64 * batch.max(1.2 * read);
            // ndarray's operands are made anew.
            let made = if others { args.cold_bytes as f64 * 1e-9 } else { 0.0 };
            seconds += (rounds + 3.0) * round + made + ONCE;
        }
        let limit = match args.seconds {
            Some(limit) if limit.as_secs_f64() < seconds => {
                "; --seconds takes those that come first, coarse to fine"
            }
            _ => "",
        };
        let more = if args.classic || args.scan { ", and the published kernels" } else { "" };
        if !tasks.is_empty() {
            eprintln!(
                "{}, {}{more}{limit}; building kernels is not counted",
                count(tasks.len(), "problem"),
                about(seconds)
            );
        }
    }

    fn one_type(&mut self, dtype: Dtype, tasks: Vec<(String, Desc)>) -> anyhow::Result<()> {
        self.told.bar.reset();
        self.told.bar.set_length(tasks.len() as u64);
        let count = tasks.len();
        for (done, (curve, desc)) in tasks.iter().enumerate() {
            self.build(&tasks[done..])?;
            if self.late() {
                let name = dtype.numpy_name();
                let why = if is_stopped() { "stopped" } else { "out of time (--seconds)" };
                self.told.say(&format!("{name}: {why} after {done} of {count} problems"))?;
                self.told.reason("the time of --seconds was over before the first problem");
                for why in self.told.unmeasured.values_mut() {
                    why.get_or_insert_with(|| "time was up before".into());
                }
                break;
            }
            if let Err(why) = self.device.backend().accepts(desc) {
                let why = why.to_string();
                if self.told.reason(&why) {
                    self.told.say(&why)?;
                }
                continue;
            }
            self.one_problem(curve, desc)?;
            self.told.bar.inc(1);
        }
        self.told.bar.finish_and_clear();
        Ok(())
    }

    /// Builds the programs of the first of these problems that are missing, and with them those of the next ones, as many
    /// as keep every processor busy.
    fn build(&mut self, tasks: &[(String, Desc)]) -> anyhow::Result<()> {
        let is_fresh =
            |(desc, params): &(Desc, Params)| !self.ready.contains(&(desc.dtype, *params));
        let of = |desc: &Desc| -> Vec<(Desc, Params)> {
            let asked = self.asked(desc).0.into_iter().map(|(_, desc, params)| (desc, params));
            asked.filter(is_fresh).collect()
        };
        let mut fresh = tasks.first().map_or_else(Vec::new, |task| of(&task.1));
        if fresh.is_empty() {
            return Ok(());
        }
        let mut programs: HashSet<Params> = fresh.iter().map(|(_, params)| *params).collect();
        for (_, desc) in tasks[1..].iter().take(AHEAD) {
            if programs.len() >= 2 * cores() {
                break;
            }
            let next = of(desc);
            programs.extend(next.iter().map(|(_, params)| *params));
            fresh.extend(next);
        }
        self.prepare(fresh.into_iter())
    }

    /// What is measured of every problem: names and parameters; or why not.
    fn asked(&self, desc: &Desc) -> (Vec<(String, Desc, Params)>, Option<gemv::Error>) {
        let (mut asked, mut why) = (Vec::new(), None);
        let mut add = |who: &str, params| asked.push((who.to_owned(), *desc, params));
        if self.args.params.is_empty() {
            match self.device.choose(desc) {
                Ok(params) => add("gemv", params),
                Err(error) => why = Some(error),
            }
        }
        self.args.params.iter().for_each(|p| add("given", *p));
        if !self.args.no_rivals
            && let Some(params) = self.device.backend().vendor(desc)
        {
            add(params.kernel().as_str().trim_start_matches("vendor-"), params);
        }
        (asked, why)
    }

    /// Compiles programs that are missing, a part at a time. The limit of time does not count it.
    fn prepare(&mut self, all: impl Iterator<Item = (Desc, Params)>) -> anyhow::Result<()> {
        // Each is run once, on its smallest problem.
        let mut all: Vec<(Desc, Params)> = all.collect();
        all.sort_by_key(|(desc, _)| desc.bytes());
        all.retain(|(d, p)| self.ready.insert((d.dtype, *p)));
        if all.len() >= 16 && self.told.bar.is_hidden() {
            eprintln!("building {} kernels", all.len());
        }
        let start = Instant::now();
        self.told.bar.set_message("building kernels");
        for part in all.chunks(2 * cores()) {
            if is_stopped() {
                break;
            }
            self.runner.prepare(part);
        }
        self.told.bar.set_message("");
        let took = start.elapsed();
        self.building += took;
        self.deadline = self.deadline.and_then(|end| end.checked_add(took));
        Ok(())
    }

    fn one_problem(&mut self, curve: &str, desc: &Desc) -> anyhow::Result<()> {
        let (args, info) = (self.args, self.device.info());
        let mut reads = Vec::new();
        let sample =
            |who: &str, params: String, time: (f64, Option<f64>), read: Option<f64>| Sample {
                device: info.id.clone(),
                name: info.name.clone(),
                dtype: desc.dtype.name().into(),
                layout: desc.layout.name().into(),
                curve: curve.into(),
                m: desc.m,
                n: desc.n,
                rhs: desc.rhs,
                batch: desc.batch,
                bytes: desc.bytes(),
                caches: if args.warm { "warm" } else { "cold" }.into(),
                who: who.into(),
                params,
                us: time.0 * 1e6,
                gbs: desc.bytes() as f64 / time.0 / 1e9,
                read_us: read.map(|s| s * 1e6),
                driver: info.driver.clone(),
                version: env!("CARGO_PKG_VERSION").into(),
                date: chrono::Utc::now().format("%Y-%m-%d").to_string(),
                command: command(std::env::args().skip(1)),
                spread: time.1.map(|spread| (spread * 1e4).round() / 1e4),
            };

        // In turn, so that clock drift affects all alike. Only right results count.
        let (asked, why) = self.asked(desc);
        if let Some(why) = why {
            self.told.say(&format!("{}{why}", self.told.name(desc)))?;
        }
        let mut counting = Vec::new();
        for (who, _, params) in asked {
            match self.runner.check(desc, &params) {
                Ok(()) => counting.push((who, params, Vec::new())),
                Err(why) => {
                    let why = format!("{who} ({params}) does not count: {why}");
                    self.told.failure(desc, &params, &why)?;
                }
            }
        }
        for _ in 0..args.rounds.max(1) {
            // Bandwidth varies on a shared machine, so it is measured in the same
            // rounds.
            if desc.bytes() >= self.told.least.unwrap_or(0) {
                reads.extend(self.runner.read_again(desc)?);
            }
            for (who, params, times) in &mut counting {
                match self.runner.measure(desc, params) {
                    Ok(seconds) => times.push(seconds),
                    Err(why) => {
                        self.told.failure(desc, params, &format!("{who} ({params}): {why}"))?;
                    }
                }
            }
        }
        reads.sort_by(f64::total_cmp);
        let read = reads.get(reads.len() / 2).copied();
        for (who, params, times) in counting {
            if let Some(time) = median(times) {
                self.told.sample(desc, sample(&who, params.to_string(), time, read))?;
            }
        }
        if info.host && info.id.starts_with("cpu") && !args.no_rivals {
            let times = match desc.dtype {
                Dtype::F32 => ndarray_dot::<f32>(args, desc),
                Dtype::F64 => ndarray_dot::<f64>(args, desc),
                _ => Vec::new(),
            };
            if let Some(time) = median(times) {
                self.told.sample(desc, sample("ndarray", String::new(), time, read))?;
            }
        }

        let published = if args.classic || args.scan {
            self.device.backend().classic(desc)
        } else {
            Vec::new()
        };
        if args.classic && !published.is_empty() {
            let candidates = self.classic.candidates(desc, &published);
            self.prepare(candidates.iter().map(|p| (*desc, *p)))?;
            if self.late() {
                return Ok(());
            }
            let result = self.classic.search(&mut self.runner, desc, &candidates);
            for (params, why) in &result.failures {
                let why = format!("{params} does not count: {why}");
                self.told.failure(desc, params, &why)?;
            }
            if let Some(best) = result.best() {
                let time = (best.seconds, None);
                self.told.sample(desc, sample("classic", best.params.to_string(), time, read))?;
            }
        }
        if args.scan && curve == "shape" {
            for kernel in classic::scans(&published, &gemv_baselines::scan)
                .chunk_by(|a, b| a.kernel() == b.kernel())
            {
                self.prepare(kernel.iter().map(|p| (*desc, *p)))?;
                for params in kernel {
                    if self.late() {
                        return Ok(());
                    }
                    match self.scanned(desc, params) {
                        Ok(seconds) => {
                            let time = (seconds, None);
                            self.told
                                .sample(desc, sample("scan", params.to_string(), time, read))?;
                        }
                        Err(why) => {
                            let why = format!("{params} does not count: {why}");
                            self.told.failure(desc, params, &why)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Seconds of one point of a scan: three batches, or one where a batch takes long.
    fn scanned(&mut self, desc: &Desc, params: &Params) -> Result<f64, Failure> {
        self.runner.check(desc, params)?;
        let mut times = vec![self.runner.measure(desc, params)?];
        while times.len() < 3 && times[0] < 5e-3 {
            times.push(self.runner.measure(desc, params)?);
        }
        Ok(median(times).expect("one at least").0)
    }
}

/// Seconds of ndarray's dot by rounds, with operands that rotate through as much memory as the others'.
fn ndarray_dot<T>(args: &Args, desc: &Desc) -> Vec<f64>
where
    T: Element + ndarray::LinalgScalar + From<i8>,
{
    let value = |k: usize| T::from((k * 7919 % 101) as i8);
    let Desc { m, n, rhs, batch: entries, .. } = *desc;
    let (len, line) = (entries * m * n, 64 / desc.dtype.bytes());
    let pool = if args.warm { 0 } else { args.cold_bytes as usize / desc.dtype.bytes() };
    let pool: Vec<T> = (0..pool.max(len)).map(value).collect();
    // Each of the batch has right-hand sides of its own.
    let several =
        Array3::from_shape_fn((entries, n, rhs), |(b, j, c)| value((b * n + j) * rhs + c));
    let strides = if desc.layout == Layout::Col { (1, m) } else { (n, 1) };
    let shape = Ix3(entries, m, n).strides(Ix3(m * n, strides.0, strides.1));
    let mut cursor = 0;
    let mut batch = |count: usize| {
        let start = Instant::now();
        for _ in 0..count {
            if cursor + len > pool.len() || args.warm {
                cursor = 0;
            }
            let a = ArrayView3::from_shape(shape, &pool[cursor..cursor + len]);
            let a = a.expect("as many entries as the shape has");
            for (a, x) in a.outer_iter().zip(several.outer_iter()) {
                if rhs == 1 {
                    std::hint::black_box(a.dot(&x.column(0)));
                } else {
                    std::hint::black_box(a.dot(&x));
                }
            }
            cursor += len.div_ceil(line) * line;
        }
        start.elapsed().as_secs_f64() / count as f64
    };
    let first = batch(1);
    let count = ((300e-6 / first.max(1e-9)) as usize).clamp(1, 256);
    (0..args.rounds.max(1)).map(|_| batch(count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_of_the_middle_half() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![2.0]), Some((2.0, None)));
        assert_eq!(median(vec![3.0, 2.0]), Some((3.0, Some(1.0 / 3.0))));
        // One disturbed round of seven is no spread.
        assert_eq!(median(vec![2.0, 2.0, 90.0, 2.0, 1.0, 2.0, 2.0]), Some((2.0, Some(0.0))));
        assert_eq!(median(vec![2.0, 3.0, 90.0, 2.0, 1.0, 2.0, 1.0]), Some((2.0, Some(1.0))));
        assert_eq!(middle([0.3, 0.1, 0.2]), Some(0.2));
        assert_eq!(middle([]), None);
    }

    #[test]
    fn a_command_is_told_without_its_place() {
        for text in ["bench --out /data/me --warm", "bench --out=/data/me --warm"] {
            let args = text.split(' ').map(str::to_owned);
            assert_eq!(command(args), "bench --warm");
        }
    }
}
