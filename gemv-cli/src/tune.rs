//! `gemv tune`: which parameters are best on this machine, measured.

mod classic;
mod progress;
mod result;

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gemv::profile::Profile;
use gemv::table::file_name;
use gemv::{Align, Desc, Device, DeviceInfo, Dtype, Engine, Layout, Params, Table};
use gemv_tune::{
    Area, Distilled, Distilling, Lab, LabSettings, Mesh, Mode, Regret, Runner, Settings, distil,
    holdout, noise, present, refine, sweep,
};

use crate::record::Record;
use progress::Progress;
use result::{
    changes, first_legal, header, install, is_refused, is_worse, of_parts, per_area, products,
    started, tell, write,
};

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
    /// Sizes of the mesh, for rows and for columns, evenly spaced on a logarithmic scale [default:
    /// 24; 20 for cpu; 12 for OpenCL on the host's own processor].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(2..=256))]
    mesh: Option<u16>,
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
    /// Shapes that are not on the mesh, for each type, layout and class of alignment, on which the
    /// table is held against all candidates.
    #[arg(long, value_name = "COUNT", default_value_t = 24)]
    holdout: usize,
    /// Which kernels: this library's own, or the published ones with the search as published (every
    /// combination on 3 x 3 samples of each tile of the mesh; takes hours).
    #[arg(long, value_enum, default_value_t = Space::Ordered)]
    space: Space,
    /// What the table starts from: the rows of the present one, which are changed only where measurements say so beyond
    /// chance, or nothing.
    #[arg(long, value_enum, default_value_t = Start::Present)]
    start: Start,
    /// Most rows of the table for a type and a layout, over all classes of alignment.
    #[arg(long, value_name = "COUNT", default_value = "200",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    rows: usize,
    /// The directory for the table and the raw data [default: gemv-tune-DEVICE].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on from the raw data in the directory.
    #[arg(long)]
    resume: bool,
    /// Put the table where this user's tables are looked for. Rows of an installed table for other
    /// types and layouts are kept. One that is worse than the present table by more than 2 % is refused.
    #[arg(long)]
    install: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Start {
    Present,
    Nothing,
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
    let engine = Engine::global();
    Ok(match name {
        Some(name) => engine.device(name)?,
        None => engine.default_device()?,
    })
}

/// Lengths of short rows between those of the mesh: up to 16, 32 and 64 columns (or as many less as a vector
/// reaches beyond its first element) are what kernels are made for, and a segment has 256.
const SHORT: [usize; 21] =
    [6, 10, 12, 14, 16, 20, 28, 30, 32, 40, 48, 60, 62, 64, 80, 128, 160, 192, 256, 272, 520];

/// Lengths of long ones: kernels take as many segments at once as a power of two, and the mesh has
/// a point in the lower half of each octave.
const LONG: [usize; 6] = [1872, 3744, 7488, 14_992, 30_000, 60_000];

/// Lengths of short columns, which the kernels for few rows are made for. (With 13 more of up to 520, as rows have them,
/// an H200's table was no better.)
const FEW_ROWS: [usize; 8] = [6, 10, 12, 14, 16, 20, 32, 64];

/// Lengths of lines of both layouts for the CPU's own kernels, which stop at any length alike, and numbers of columns,
/// of which they take four, eight or sixteen at once, and three one by one.
const NARROW_CPU: [usize; 5] = [3, 4, 16, 64, 256];
const FEW_COLUMNS_CPU: [usize; 4] = [3, 4, 8, 16];

/// Blocks of 32 rows for each unit, where a turn of all units ends: what is left for a last one takes as long as a full
/// turn, so the mesh has a point on either side.
const TURNS: [usize; 5] = [2, 3, 4, 6, 8];
/// How many columns such matrices have: with fewer, a block has more rows, with more there are many turns.
const TURNED: RangeInclusive<usize> = 33..=4096;

/// Clusters that a device has room for are half as many as its units, or as many, and few long rows have one each: a row
/// more waits for a turn.
const HALF_UNITS: [usize; 2] = [1, 2];
/// How many columns the rows of clusters have.
const CLUSTERED: RangeInclusive<usize> = 2049..=65_536;

/// Numbers of columns: whole segments, as many as clusters have blocks, and a few columns more, whose segment takes as
/// long; and the rows with which they are shared by blocks.
const SEGMENTS: [usize; 4] = [272, 512, 528, 1024];
const SPLIT: RangeInclusive<usize> = 256..=32_768;

/// The mesh with what kernels of such a device are made for.
fn finer(mesh: Mesh, info: &DeviceInfo) -> Mesh {
    if info.id == "cpu" {
        let any = 1..=usize::MAX;
        let mesh = mesh.with_lengths(Layout::Row, &NARROW_CPU, any.clone());
        let mesh = mesh.with_lengths(Layout::Col, &NARROW_CPU, any.clone());
        return mesh.with_lines(Layout::Col, &FEW_COLUMNS_CPU, any);
    }
    let rows = [&SHORT[..], &LONG].concat();
    let mesh = mesh.with_lengths(Layout::Row, &rows, 1..=usize::MAX);
    let mesh = mesh.with_lengths(Layout::Col, &FEW_ROWS, 1..=usize::MAX);
    if info.host || info.units == 0 {
        return mesh;
    }
    let units = info.units;
    let ends = TURNS.iter().map(|k| 32 * k * units);
    let around: Vec<usize> = ends.flat_map(|end| [end - 16, end + 16]).collect();
    let mesh = mesh.with_lengths(Layout::Col, &around, TURNED);
    let mesh = mesh.with_lines(Layout::Col, &SEGMENTS, SPLIT);
    // A twelfth on either side: not every unit has a place in a cluster.
    let ends = HALF_UNITS.iter().map(|k| k * units / 2);
    let aside = |end: usize| (end / 12).max(1);
    let around: Vec<usize> =
        ends.flat_map(|end| [end - aside(end).min(end), end + aside(end)]).collect();
    mesh.with_lines(Layout::Row, &around, CLUSTERED)
}

/// Bytes of a core's own second cache, where Linux says.
fn second_cache() -> u64 {
    let of = |cache: usize, what: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{cache}/{what}");
        Some(std::fs::read_to_string(path).ok()?.trim().to_string())
    };
    let second = (0..8).find(|&cache| of(cache, "level").as_deref() == Some("2"));
    second.and_then(|cache| parse_bytes(&of(cache, "size")?).ok()).unwrap_or(1 << 20)
}

/// The mesh is made finer where no choice costs less than this at all corners of a tile.
const QUARREL: f64 = 0.04;

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
    let stop = until_interrupted()?;
    let start = Instant::now();
    let deadline = |share: f64| {
        // More than can be counted is no limit.
        let seconds = args.minutes.map(|m| 60.0 * share * m.max(0.0))?;
        start.checked_add(Duration::try_from_secs_f64(seconds).ok()?)
    };
    let areas = areas(&args, &device)?;
    let info = device.info().clone();
    eprintln!("{}: {}", info.id, info.name);
    // A block, its result and what others need.
    let max_bytes = info.memory.map_or(args.max_bytes, |memory| args.max_bytes.min(memory / 4));
    let mut lab = lab(&args, &device, max_bytes);
    let mut profile = lab.profile()?;
    tell(&profile);
    let profile_path = out.join(Profile::file_name(device.info()));
    write(&profile_path, &profile.to_text())?;

    let usual = match (is_cpu(&device), info.host) {
        // Its number of threads follows the size of the matrix, which no rectangle does.
        (true, _) => 20,
        (_, true) => 12,
        _ => 24,
    };
    let count = args.mesh.unwrap_or(usual);
    let mesh = Mesh::new(count.into(), args.from as usize, args.to as usize, max_bytes);
    let (record, mut known) = Record::open(&cells, &mut |d, p| lab.launch_id(d, p))?;
    if !known.is_empty() {
        eprintln!("{} problems are known from {}", known.len(), cells.display());
    }
    let mut progress = Progress::new("mesh", record, stop.clone(), deadline(0.9));
    let mut search = Settings::default();
    // Many points are looked at together: no single one has to be exact.
    search.alike = 0.05;
    (search.rounds, search.finalists, search.hopeless) =
        if is_cpu(&device) { (7, 6, 1.4) } else { (3, 3, 1.25) };
    if is_cpu(&device) {
        // What others leave of its memory's bandwidth changes between one problem and the next.
        (search.roof_from, search.neighbours) = (u64::MAX, 4);
    }
    let mesh = match args.space {
        Space::Ordered => {
            let mesh = finer(mesh, &info);
            if sweep(&mut lab, &mesh, &areas, &search, &mut known, &mut progress) {
                // The held-out shapes need a fifth of the time.
                progress.next("between its points", deadline(0.8));
                let quarrel = QUARREL + 2.0 * noise(&known);
                refine(&mut lab, &mesh, &areas, quarrel, &search, &mut known, &mut progress);
            }
            mesh
        }
        Space::Classic => {
            let watch = &mut progress;
            let end = deadline(0.9);
            let stopped =
                || stop.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end);
            let (tiles, together) =
                classic::published(&mut lab, &mesh, &areas, &mut known, watch, &stopped);
            known = together;
            tiles
        }
    };
    progress.bar.finish_and_clear();
    if let Some(why) = progress.error.take() {
        return Err(why);
    }
    if progress.interrupted() {
        bail!("stopped; the same command with --resume goes on from {}", cells.display());
    }
    let points = areas.iter().flat_map(|&a| mesh.points(a).into_iter().map(move |at| (a, at)));
    let all: Vec<Desc> = points.filter_map(|(a, at)| mesh.desc(a, at)).collect();
    let measured = all.iter().filter(|d| known.contains_key(d)).count();
    let between = known.keys().filter(|d| areas.iter().any(|a| a.holds(d))).count() - measured;
    let what = format!("{measured} of {} problems and {between} between them", all.len());
    eprintln!("{what} in {:.0} s", start.elapsed().as_secs_f64());

    // Few rows from many points.
    let mut distilling = Distilling::default();
    // What may be chance is not worth a row.
    let noise = noise(&known);
    eprintln!("a median is off by {:.1} % or less at most problems", 100.0 * noise);
    // The best of some 20 candidates is the luckiest, too: what takes a present row's place has to be better than that.
    let heir = args.start == Start::Present && args.space == Space::Ordered;
    distilling.worth += if heir { 16.0 } else { 4.0 } * noise;
    distilling.hole += 2.0 * noise;
    let legal = |desc: &Desc, params: &Params| device.backend().fits(desc, params).is_ok();
    let mut parts: Vec<Distilled> = Vec::new();
    for &area in &areas {
        let alike = |other: &&Area| (other.dtype, other.layout) == (area.dtype, area.layout);
        distilling.limit = (args.rows / areas.iter().filter(alike).count()).max(1);
        let from = present(device.tables(), area).filter(|_| heir);
        distilling.from = from.map_or_else(Vec::new, |(_, rows)| rows);
        parts.push(distil(&mut lab, area, &known, &legal, &distilling));
    }
    let rows: Vec<_> = parts.iter().flat_map(|part| part.rows.clone()).collect();
    if rows.is_empty() {
        bail!("no candidate counted anywhere: {} says why", cells.display());
    }
    let mut table = Table { origin: table_name.clone(), header: vec![], rows };

    // What it is worth.
    let shapes: Vec<Desc> = areas.iter().flat_map(|&a| mesh.between(a, args.holdout)).collect();
    let now = |d: &Desc| device.tables().explain(device.backend(), d).0;
    let tuned = |d: &Desc| first_legal(&table, &device, d).unwrap_or_else(|| now(d));
    let ways: [&dyn Fn(&Desc) -> Params; 2] = [&now, &tuned];
    let (record, mut known_held) = Record::open(&held, &mut |d, p| lab.launch_id(d, p))?;
    let mut watch = Progress::new("held-out shapes", record, stop.clone(), deadline(1.0));
    search = Settings::default();
    search.rounds = 9;
    let holdouts = holdout(&mut lab, &shapes, &ways, &search, &mut known_held, &mut watch);
    watch.bar.finish_and_clear();
    if let Some(why) = watch.error.take() {
        return Err(why);
    }
    let regret: Vec<Regret> = (0..ways.len()).map(|way| Regret::of(way, &holdouts)).collect();

    table.header = header(&device, &args, &mesh, &what, start.elapsed(), &regret);
    table.header.extend(started(&device, &areas, &parts));
    table.header.extend(of_parts(&areas, &parts));
    profile.products = products(&mesh, &areas, &known);
    write(&profile_path, &profile.to_text())?;
    let table_path = out.join(format!("{stem}{suffix}.txt"));
    write(&table_path, &table.to_string())?;

    println!("{} rows in {}", table.rows.len(), table_path.display());
    println!("regret on shapes that are not on the mesh, against every candidate:");
    for (name, regret) in ["present table", "this table"].iter().zip(&regret) {
        println!("  {name:14} {regret}");
    }
    per_area(&areas, &holdouts);
    if is_worse(&regret[1], &regret[0]) {
        println!("this table is worse than the present one there: more --minutes may help");
    }
    if args.install && is_refused(&regret[1], &regret[0]) {
        bail!("not installed, since it is worse than the present one: {}", table_path.display());
    }
    if args.install {
        install(&device, table, &profile)?;
    } else if args.space == Space::Ordered {
        changes(&device, &table, &known);
        println!("--install puts it where your tables are looked for");
    }
    Ok(())
}

/// Set by Ctrl-C.
fn until_interrupted() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::Relaxed) {
            // The second time, at once.
            std::process::exit(130);
        }
        eprintln!("\nstopping after this problem; once more stops at once");
    })?;
    Ok(stop)
}

fn lab(args: &Args, device: &Device, max_bytes: u64) -> Lab {
    let mut settings = LabSettings::default();
    settings.mode = if args.warm { Mode::Warm } else { Mode::Cold };
    settings.max_bytes = max_bytes;
    settings.cold_bytes = args.cold_bytes;
    settings.batch = 100e-6;
    if device.info().host {
        // Other programs run on the same processor: a slice of time lost must not be most of it.
        (settings.batch, settings.products) = (1e-3, 1024);
    }
    if is_cpu(device) {
        // A quarter is there whatever else the caller did.
        (settings.warm_to, settings.both_to) = (second_cache() / 4, second_cache());
        settings.arrays = true;
    }
    let lab = Lab::new(device, settings);
    if args.space == Space::Classic { lab.classic() } else { lab }
}

fn is_cpu(device: &Device) -> bool {
    device.info().id == "cpu"
}

/// What was asked for and the device can compute; what it cannot is said once.
fn areas(args: &Args, device: &Device) -> anyhow::Result<Vec<Area>> {
    let mut areas = Vec::new();
    for &dtype in &args.dtype {
        for &layout in &args.layout {
            let probe = Desc::of(dtype, layout, (64, 64), 6);
            match device.backend().accepts(&probe) {
                // The published search knows no alignment, and a CPU loads vectors from anywhere.
                Ok(()) if args.space == Space::Classic || is_cpu(device) => {
                    areas.push(Area { dtype, layout, align: Align::ANY });
                }
                Ok(()) => areas.extend(Area::all(dtype, layout)),
                Err(why) => eprintln!("left out: {why}"),
            }
        }
    }
    if areas.is_empty() {
        bail!("there is nothing left to tune");
    }
    Ok(areas)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpus_mesh_has_a_point_on_either_side_of_a_turn() {
        let mut info = DeviceInfo::new("cuda:0");
        info.units = 132;
        let area = |layout| Area { dtype: Dtype::F64, layout, align: Align::WHOLE };
        let shapes = |info: &DeviceInfo, layout| -> Vec<(usize, usize)> {
            let mesh = finer(Mesh::new(24, 1, 1 << 22, 1 << 30), info);
            let points = mesh.points(area(layout)).into_iter();
            points.map(|at| mesh.desc(area(layout), at).unwrap()).map(|d| (d.m, d.n)).collect()
        };
        let col = shapes(&info, Layout::Col);
        // Three blocks of 32 rows for each unit are 12,672.
        assert!(col.contains(&(12_656, 208)) && col.contains(&(12_688, 208)));
        assert!(col.contains(&(12_656, 2848)));
        assert!(!col.contains(&(12_656, 28)) && !col.contains(&(12_656, 5536)));
        // Two segments and a few columns.
        assert!(col.contains(&(2848, 528)) && !col.contains(&(208, 528)));
        let row = shapes(&info, Layout::Row);
        assert!(
            row.contains(&(208, 30_000)) && !row.iter().any(|s| s.0 == 12_656 || s.1 == 12_656)
        );
        // Half as many rows as units, and as many.
        assert!(
            row.contains(&(61, 5536)) && row.contains(&(71, 2848)) && row.contains(&(143, 5536))
        );
        assert!(!row.contains(&(61, 1472)) && !row.contains(&(528, 2848)));
        // A processor has no such turns.
        info.host = true;
        let col = shapes(&info, Layout::Col);
        assert!(!col.contains(&(12_656, 208)) && !col.contains(&(2848, 528)));
    }
}
