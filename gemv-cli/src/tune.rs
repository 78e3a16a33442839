//! `gemv tune`: which parameters are best on this machine, measured.

use std::io::{IsTerminal, stderr};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gemv::profile::{Product, Profile};
use gemv::table::{Row, file_name, user_dirs};
use gemv::tuner::{
    Area, Cell, Holdout, Known, Lab, LabSettings, Mesh, Mode, Point, Regret, Runner, Settings,
    Trial, Watch, clip, distil, holdout, nearest, search, sweep,
};
use gemv::{Desc, Device, Dtype, Engine, Layout, Params, Table};
use indicatif::{ProgressBar, ProgressStyle};

use crate::record::Record;

/// Measure which parameters are best on a device, and write a table of them.
///
/// A time counts only if the result has the right bits. Ctrl-C keeps what was measured; --resume
/// goes on from there. Nothing changes on this machine without --install.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The device, such as cpu or cuda:0 [default: the one that products of host arrays go to].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Element types.
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "f32,f64",
          value_parser = parse_dtype)]
    dtype: Vec<Dtype>,
    /// Layouts.
    #[arg(long, value_name = "LAYOUTS", value_delimiter = ',', default_value = "row,col",
          value_parser = parse_layout)]
    layout: Vec<Layout>,
    /// Sizes of the mesh, for rows and for columns, evenly spaced on a logarithmic scale.
    #[arg(long, value_name = "COUNT", default_value_t = 24,
          value_parser = clap::value_parser!(u16).range(2..=256))]
    mesh: u16,
    /// The smallest size of the mesh.
    #[arg(long, value_name = "ROWS", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    from: u32,
    /// The largest size of the mesh.
    #[arg(long, value_name = "ROWS", default_value_t = 1 << 22)]
    to: u32,
    /// The largest matrix, in bytes; k, M and G stand for powers of 1024.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = parse_bytes)]
    max_bytes: u64,
    /// Bytes to read before an operand comes again: several times the last cache.
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = parse_bytes)]
    cold_bytes: u64,
    /// Measure with operands in the caches, where they fit.
    #[arg(long)]
    warm: bool,
    /// Stop measuring after this long: what was measured coarse to fine until then makes the table.
    #[arg(long, value_name = "MINUTES")]
    minutes: Option<f64>,
    /// Shapes between the mesh points, for each type and layout, on which the table is held against
    /// all candidates.
    #[arg(long, value_name = "COUNT", default_value_t = 24)]
    holdout: usize,
    /// Ask every candidate at every point.
    #[arg(long)]
    exhaustive: bool,
    /// Which kernels: this library's own, or the published ones with the search as published (every
    /// combination on 3 x 3 samples of each tile of the mesh; takes hours).
    #[arg(long, value_enum, default_value_t = Space::Ordered)]
    space: Space,
    /// Most rows of the table for a type and layout.
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    rows: usize,
    /// The directory for the table and the raw data [default: gemv-tune-DEVICE].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on from the raw data in the directory.
    #[arg(long)]
    resume: bool,
    /// Put the table where this user's tables are looked for. Rows of an installed table for other
    /// types and layouts are kept.
    #[arg(long)]
    install: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Space {
    Ordered,
    Classic,
}

pub(crate) fn parse_dtype(text: &str) -> Result<Dtype, String> {
    let names = || Dtype::ALL.map(Dtype::name).join(", ");
    Dtype::parse(text).ok_or_else(|| format!("there are {}", names()))
}

pub(crate) fn parse_layout(text: &str) -> Result<Layout, String> {
    match Layout::parse(text) {
        Some(layout) if layout != Layout::Strided => Ok(layout),
        _ => Err("there are row and col".into()),
    }
}

pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 =
        digits.parse().map_err(|_| "not a number with k, M, G or nothing behind it")?;
    number.checked_mul(1 << shift).filter(|&b| b > 0).ok_or("out of range".into())
}

pub(crate) fn open_device(name: Option<&str>) -> anyhow::Result<Device> {
    let engine = Engine::global()?;
    Ok(match name {
        Some(name) => engine.device(name)?,
        None => engine.default_device()?.clone(),
    })
}

/// Shows progress, appends to the raw data, and knows when to stop.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Plain lines in place of a bar: when the last one was printed.
    plain: Option<Instant>,
    record: Record,
    stop: Arc<AtomicBool>,
    deadline: Option<Instant>,
    error: Option<anyhow::Error>,
    /// Failures that have been told: a kernel that fails everywhere is told once.
    told: Vec<(Params, String)>,
}

impl Progress {
    fn new(what: &str, record: Record, stop: Arc<AtomicBool>, deadline: Option<Instant>) -> Self {
        let style = "{prefix} [{elapsed}] {wide_bar} {pos}/{len}, {eta} left";
        let style = ProgressStyle::with_template(style).expect("a constant template");
        let bar = ProgressBar::new(0).with_style(style).with_prefix(what.to_owned());
        let plain = (!stderr().is_terminal()).then(Instant::now);
        Progress { bar, plain, record, stop, deadline, error: None, told: Vec::new() }
    }

    fn say(&self, line: &str) {
        if self.plain.is_some() { eprintln!("{line}") } else { self.bar.println(line) }
    }

    fn interrupted(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Watch for Progress {
    fn done(&mut self, cell: &Cell, done: usize, total: usize) -> ControlFlow<()> {
        for (params, why) in &cell.failures {
            // Where a kernel fails is in the raw data; here, that it does, and why.
            let why: String = why.to_string().lines().next().unwrap_or_default().into();
            let kernel: Params = params.kernel().as_str().parse().expect("a kernel's name");
            if self.told.len() < 20 && !self.told.iter().any(|t| t.0 == kernel) {
                self.say(&format!("skipped: {params} on {}: {why}", cell.desc));
                self.told.push((kernel, why));
            }
        }
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        if let Some(last) = &mut self.plain
            && (last.elapsed() > Duration::from_secs(10) || done == total)
        {
            *last = Instant::now();
            let left = self.bar.eta().as_secs();
            let prefix = self.bar.prefix();
            eprintln!("{prefix}: {done} of {total} problems, about {left} s left");
        }
        if let Err(why) = self.record.write(cell) {
            self.error = Some(why);
            return ControlFlow::Break(());
        }
        let late = self.deadline.is_some_and(|d| Instant::now() >= d);
        if late || self.interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if args.install && args.space == Space::Classic {
        bail!("the published kernels keep another order and are never installed");
    }
    if args.to < args.from {
        bail!("--to is less than --from");
    }
    let device = open_device(args.device.as_deref())?;
    let table_name = file_name(device.backend());
    let stem = table_name.trim_end_matches(".txt");
    let out = args.out.clone().unwrap_or_else(|| format!("gemv-tune-{stem}").into());
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let suffix = match (args.space, args.warm) {
        (Space::Classic, _) => "-classic",
        (_, true) => "-warm",
        _ => "",
    };
    let cells = out.join(format!("{stem}{suffix}.cells.csv"));
    let held = out.join(format!("{stem}{suffix}.holdout.csv"));
    for path in [&cells, &held] {
        if path.exists() && !args.resume {
            bail!("{} is there already: --resume goes on with it", path.display());
        }
    }

    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::Relaxed) {
            // The second time, at once.
            std::process::exit(130);
        }
        eprintln!("\nstopping after this problem; once more stops at once");
    })?;

    let start = Instant::now();
    let deadline = |share: f64| {
        // More than can be counted is no limit.
        let seconds = args.minutes.map(|m| 60.0 * share * m.max(0.0))?;
        start.checked_add(Duration::try_from_secs_f64(seconds).ok()?)
    };
    let mut settings = LabSettings::default();
    settings.mode = if args.warm { Mode::Warm } else { Mode::Cold };
    settings.max_bytes = match device.info().memory {
        // A block, its result and what others need.
        Some(memory) => args.max_bytes.min(memory / 4),
        None => args.max_bytes,
    };
    settings.cold_bytes = args.cold_bytes;
    if device.info().host {
        // Other programs run on the same processor: a slice of time lost must not be most of it.
        settings.batch = 1e-3;
    }
    let lab = Lab::new(&device, settings);
    let mut lab = if args.space == Space::Classic { lab.classic() } else { lab };

    let mut areas = Vec::new();
    for &dtype in &args.dtype {
        for &layout in &args.layout {
            let area = Area { dtype, layout };
            // What a device cannot compute at all is said once.
            let probe = Desc { dtype, layout, m: 64, n: 64, align: 6 };
            match device.backend().accepts(&probe) {
                Ok(()) => areas.push(area),
                Err(why) => eprintln!("left out: {why}"),
            }
        }
    }
    if areas.is_empty() {
        bail!("there is nothing left to tune");
    }

    let info = device.info().clone();
    eprintln!("{}: {}", info.id, info.name);
    let mut profile = lab.profile()?;
    tell(&profile);
    let profile_path = out.join(Profile::file_name(device.info()));
    write(&profile_path, &profile.to_text())?;

    let max_bytes = lab_limit(&args, &device);
    let mesh = Mesh::new(args.mesh.into(), args.from as usize, args.to as usize, max_bytes);
    let (record, mut known) = Record::open(&cells)?;
    if !known.is_empty() {
        eprintln!("{} problems are known from {}", known.len(), cells.display());
    }
    let mut progress = Progress::new("mesh", record, stop.clone(), deadline(0.8));
    let search = Settings::default();
    let mesh = match args.space {
        Space::Ordered => {
            let watch = &mut progress;
            sweep(&mut lab, &mesh, &areas, args.exhaustive, &search, &mut known, watch);
            mesh
        }
        Space::Classic => published(&mut lab, &mesh, &areas, &mut known, &mut progress),
    };
    progress.bar.finish_and_clear();
    if let Some(why) = progress.error.take() {
        return Err(why);
    }
    if progress.interrupted() {
        bail!("stopped; the same command with --resume goes on from {}", cells.display());
    }
    let total: usize = areas.iter().map(|a| mesh.points(a.dtype, a.layout).len()).sum();
    let on_mesh = |d: &Desc| {
        let at = mesh.nearest(d.m, d.n);
        mesh.desc(d.dtype, d.layout, at) == Some(*d)
    };
    let measured = known.keys().filter(|d| on_mesh(d)).count();
    eprintln!("{measured} of {total} problems in {:.0} s", start.elapsed().as_secs_f64());

    // Few rows from many points.
    let mut rows = Vec::new();
    let mut costs = Vec::new();
    for &area in &areas {
        let (mut part, cost) = distil(&mesh, area, &known, search.alike, args.rows);
        for row in &mut part {
            let params = row.params;
            clip(row, |desc| device.backend().fits(desc, &params).is_ok());
        }
        costs.push((area, part.len(), cost));
        rows.extend(part);
    }
    if rows.is_empty() {
        bail!("no candidate counted anywhere: {} says why", cells.display());
    }
    let table = Table { origin: table_name.clone(), header: vec![], rows };

    // What it is worth.
    let mut shapes = Vec::new();
    for a in &areas {
        shapes.extend(mesh.between(a.dtype, a.layout, args.holdout));
    }
    let present = |d: &Desc| device.tables().explain(device.backend(), d).0;
    let tuned = |d: &Desc| first_legal(&table, &device, d).unwrap_or_else(|| present(d));
    let undistilled = |d: &Desc| {
        let choice = nearest(&mesh, d, &known);
        choice.filter(|p| device.backend().fits(d, p).is_ok()).unwrap_or_else(|| present(d))
    };
    let ways: [&dyn Fn(&Desc) -> Params; 3] = [&present, &tuned, &undistilled];
    let (record, mut known_held) = Record::open(&held)?;
    let mut watch = Progress::new("held-out shapes", record, stop.clone(), deadline(1.0));
    let holdouts = holdout(&mut lab, &shapes, &ways, &search, &mut known_held, &mut watch);
    watch.bar.finish_and_clear();
    if let Some(why) = watch.error.take() {
        return Err(why);
    }
    let regret: Vec<Regret> = (0..3).map(|way| Regret::of(way, &holdouts)).collect();

    let mut table = table;
    table.header = header(&device, &args, &mesh, (measured, total), start.elapsed(), &regret);
    for (area, count, cost) in &costs {
        let value = format!("{count}, distilled at a cost of {:.2} %", 100.0 * cost);
        table.header.push((format!("rows for {} {}", area.dtype, area.layout), value));
    }
    profile.products = products(&mesh, &areas, &known);
    write(&profile_path, &profile.to_text())?;
    let table_path = out.join(format!("{stem}{suffix}.txt"));
    write(&table_path, &table.to_string())?;

    println!("{} rows in {}", table.rows.len(), table_path.display());
    println!("regret on shapes that are not on the mesh, against every candidate:");
    for (name, regret) in ["present table", "this table", "not distilled"].iter().zip(&regret) {
        println!("  {name:14} {regret}");
    }
    per_area(&areas, &holdouts);
    if args.install {
        install(&device, table, &profile)?;
    } else if args.space == Space::Ordered {
        changes(&device, &table, &known);
        println!("--install puts it where your tables are looked for");
    }
    Ok(())
}

fn lab_limit(args: &Args, device: &Device) -> u64 {
    device.info().memory.map_or(args.max_bytes, |memory| args.max_bytes.min(memory / 4))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    // Aside first: whoever reads it meanwhile sees the old file or the new one.
    let aside = path.with_extension("new");
    std::fs::write(&aside, text).with_context(|| format!("cannot write {}", aside.display()))?;
    std::fs::rename(&aside, path).with_context(|| format!("cannot write {}", path.display()))
}

fn tell(profile: &Profile) {
    let us = |s: f64| format!("{:.2} us", s * 1e6);
    eprintln!("launch {}, round trip {}", us(profile.launch), us(profile.round_trip));
    if let Some(l) = &profile.link {
        let (up, down) = (l.up / 1e9, l.down / 1e9);
        eprintln!("host link: {up:.1} GB/s up, {down:.1} GB/s down, {} to begin", us(l.up_latency));
    }
    if let Some(p) = profile.roof.points.last() {
        eprintln!("read bandwidth: {:.1} GB/s of memory", p.bytes as f64 / p.cold / 1e9);
    }
}

/// The first row, near before far, that is legal.
fn first_legal(table: &Table, device: &Device, desc: &Desc) -> Option<Params> {
    let legal = |row: &&&Row| device.backend().fits(desc, &row.params).is_ok();
    table.nearest(desc).iter().find(legal).map(|row| row.params)
}

fn header(
    device: &Device,
    args: &Args,
    mesh: &Mesh,
    (measured, total): (usize, usize),
    took: Duration,
    regret: &[Regret],
) -> Vec<(String, String)> {
    let info = device.info();
    let mut header = vec![
        ("device", info.name.clone()),
        ("architecture", info.arch.clone()),
        ("driver", info.driver.clone()),
        ("date", chrono::Utc::now().format("%Y-%m-%d").to_string()),
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("kernels", device.backend().fingerprint()),
        ("caches", if args.warm { "warm" } else { "cold" }.into()),
        (
            "mesh",
            format!(
                "{} sizes from {} to {}, {measured} of {total} problems, {:.0} s",
                mesh.sizes().len(),
                mesh.sizes()[0],
                mesh.sizes()[mesh.sizes().len() - 1],
                took.as_secs_f64()
            ),
        ),
    ];
    for (key, regret) in ["regret before", "regret", "regret before distilling"].iter().zip(regret)
    {
        header.push((key, regret.to_string()));
    }
    header.into_iter().filter(|h| !h.1.is_empty()).map(|(k, v)| (k.into(), v)).collect()
}

/// Times for the router: every third point of the mesh will do.
fn products(mesh: &Mesh, areas: &[Area], known: &Known) -> Vec<Product> {
    let mut products = Vec::new();
    for &Area { dtype, layout } in areas {
        for at in mesh.points(dtype, layout) {
            let desc = mesh.desc(dtype, layout, at).expect("a point of the mesh");
            if let Some(best) = known.get(&desc).and_then(Cell::best)
                && at.i % 3 == 0
                && at.j % 3 == 0
            {
                let (m, n) = (desc.m, desc.n);
                products.push(Product { dtype, layout, m, n, seconds: best.seconds });
            }
        }
    }
    products
}

fn per_area(areas: &[Area], holdouts: &[Holdout]) {
    for a in areas {
        let here = |h: &&Holdout| (h.cell.desc.dtype, h.cell.desc.layout) == (a.dtype, a.layout);
        let part: Vec<Holdout> = holdouts.iter().filter(here).cloned().collect();
        println!("  {} {}: {}", a.dtype, a.layout, Regret::of(1, &part));
    }
}

/// How much would change.
fn changes(device: &Device, table: &Table, known: &Known) {
    let differs = |desc: &&Desc| {
        let old = device.tables().explain(device.backend(), desc).0;
        first_legal(table, device, desc).is_some_and(|new| new != old)
    };
    let changed = known.keys().filter(differs).count();
    println!("{changed} of {} problems would be computed otherwise", known.len());
}

fn install(device: &Device, mut table: Table, profile: &Profile) -> anyhow::Result<()> {
    let dir = user_dirs().into_iter().next().context("this user has no home directory")?;
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let path = dir.join(file_name(device.backend()));
    if let Ok(text) = std::fs::read_to_string(&path) {
        let old = Table::parse(&path.display().to_string(), &text)?;
        let new: Vec<_> = table.rows.iter().map(|r| (r.dtype, r.layout)).collect();
        let kept = old.rows.into_iter().filter(|r| !new.contains(&(r.dtype, r.layout)));
        table.rows.extend(kept);
    }
    write(&path, &table.to_string())?;
    write(&dir.join(Profile::file_name(device.info())), &profile.to_text())?;
    println!("installed in {}", path.display());
    Ok(())
}

/// The search as published: every combination on 3 x 3 samples of each tile, and for the tile what
/// is best on them together. Returns the mesh of the tiles' centres, to which `known` is reduced.
fn published(
    lab: &mut Lab,
    mesh: &Mesh,
    areas: &[Area],
    known: &mut Known,
    watch: &mut Progress,
) -> Mesh {
    let (sizes, max_bytes) = (mesh.sizes(), mesh.max_bytes());
    let (from, to) = (sizes[0], sizes[sizes.len() - 1]);
    let fine = Mesh::new(3 * sizes.len(), from, to, max_bytes);
    let mut settings = Settings::default();
    // Nobody leaves.
    (settings.hopeless, settings.finalists, settings.rounds) = (f64::INFINITY, usize::MAX, 1);
    let mut plan = Vec::new();
    for a in areas {
        let points = fine.points(a.dtype, a.layout).into_iter();
        plan.extend(points.filter_map(|at| fine.desc(a.dtype, a.layout, at)));
    }
    let total = plan.len();
    for (done, desc) in plan.into_iter().enumerate() {
        if known.contains_key(&desc) {
            continue;
        }
        let all = lab.candidates(&desc);
        let cell = search(lab, &desc, &all, &[], &settings);
        let go_on = watch.done(&cell, done + 1, total);
        known.insert(desc, cell);
        if go_on.is_break() {
            break;
        }
    }
    let centres: Vec<usize> = fine.sizes().iter().skip(1).step_by(3).copied().collect();
    let tiles = Mesh::of(centres, max_bytes);
    for a in areas {
        for at in tiles.points(a.dtype, a.layout) {
            let samples = (0..9).filter_map(|k| {
                let at = Point { i: 3 * at.i + k / 3, j: 3 * at.j + k % 3 };
                known.get(&fine.desc(a.dtype, a.layout, at)?)
            });
            let samples: Vec<Cell> = samples.cloned().collect();
            let centre = tiles.desc(a.dtype, a.layout, at).expect("a point of the mesh");
            if let Some(tile) = together(&centre, &samples) {
                known.insert(centre, tile);
            }
        }
    }
    tiles
}

/// One problem for all samples of a tile: its times are their geometric means, of the candidates
/// that count on each of them.
fn together(centre: &Desc, samples: &[Cell]) -> Option<Cell> {
    let first = samples.first()?;
    let mut cell = Cell { desc: *centre, trials: vec![], ..first.clone() };
    for t in &first.trials {
        let times: Option<Vec<f64>> = samples.iter().map(|s| s.seconds(&t.params)).collect();
        if let Some(times) = times {
            let mean = times.iter().map(|t| t.ln()).sum::<f64>() / times.len() as f64;
            let seconds = mean.exp();
            cell.trials.push(Trial { seconds, low: seconds, high: seconds, ..t.clone() });
        }
    }
    cell.trials.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Some(cell)
}
