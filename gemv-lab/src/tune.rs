//! `gemv tune`: measures which parameters are best on a device.

mod args;
mod result;
mod watch;

use std::io::{self, Stdout, Write, stdout};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::tuner::{
    DeviceRunner, DeviceSpeed, Fit, FitSettings, Mesh, Mode, ProblemClass, Regret, Runner,
    RunnerSettings, SearchSettings, fit, holdout, kernel_lines, noise, present_rows, refine,
    stamped, sweep,
};
use anyhow::{Context, bail};
use gemv::unstable::table::file_name;
use gemv::unstable::{Desc, Params, Table};
use gemv::{Device, Engine};

use crate::device::{by_backend, open_device};
use crate::files::{read, write};
use crate::interrupt::{Interrupted, is_stopped, watch};
use crate::parse::about;
use crate::record::Record;
pub use args::Args;
use args::Start;
use result::{
    caches, changes, first_legal, header, install, is_refused, is_worse, of_parts, per_class,
    present, started, tell, unchecked,
};
use watch::RunProgress;

/// The mesh is refined where every choice costs more than this at a corner of a tile.
const DISAGREEMENT: f64 = 0.04;

/// Writes into a table the fingerprints of the kernels that its rows name. The device need not be there,
/// if its backend can describe its kernels without one.
fn stamp(device: Option<&str>, path: &Path) -> anyhow::Result<()> {
    let engine = Engine::global();
    let id = match device {
        Some(name) => name.to_owned(),
        None => engine.default_device()?.info().id.clone(),
    };
    let backend = id.split(':').next().unwrap_or_default();
    let kernels = by_backend(engine).remove(backend);
    let kernels = kernels.with_context(|| format!("{backend} does not describe its kernels"))?;
    let name = path.display().to_string();
    let text = read(path).with_context(|| format!("cannot read {name}"))?;
    let lines = kernel_lines(&kernels, &Table::parse(&name, &text)?.rows);
    write(path, &stamped(&text, &lines))?;
    writeln!(stdout(), "{name}: {} kernels", lines.len())?;
    Ok(())
}

/// The names of what is written to the directory: the table, what was measured on the mesh, and on held-out shapes. `suffix`
/// is empty but for warm caches.
pub(crate) fn files(device: &Device, suffix: &str) -> [String; 3] {
    let name = file_name(device.backend());
    let stem = name.trim_end_matches(".txt");
    [".txt", ".cells.csv", ".holdout.csv"].map(|end| format!("{stem}{suffix}{end}"))
}

/// Measures, and writes the table; or stamps one.
///
/// # Errors
/// What was refused, could not be written, or was stopped, as one sentence.
pub fn run(args: Args) -> anyhow::Result<()> {
    if args.to < args.from {
        bail!("--to is less than --from");
    }
    if let Some(path) = &args.stamp {
        return stamp(args.device.as_deref(), path);
    }
    let device = open_device(args.device.as_deref())?;
    let table_name = file_name(device.backend());
    let stem = table_name.trim_end_matches(".txt");
    let out = args.out.clone().unwrap_or_else(|| format!("gemv-tune-{stem}").into());
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let suffix = if args.warm { "-warm" } else { "" };
    let [table_file, cells, holdout_file] = files(&device, suffix);
    let (results, held) = (out.join(cells), out.join(holdout_file));
    for path in [&results, &held] {
        if path.exists() && !args.resume {
            bail!("{} is there already: --resume goes on with it", path.display());
        }
    }
    if args.install {
        // One that cannot be read would lose its rows, after all the work.
        present(&device)?;
    }
    watch()?;
    let start = Instant::now();
    let deadline = |share: f64| {
        // A limit that cannot be represented is none.
        let seconds = args.minutes.map(|minutes| 60.0 * share * minutes)?;
        start.checked_add(Duration::try_from_secs_f64(seconds).ok()?)
    };
    let classes = classes(&args, &device)?;
    let info = device.info().clone();
    eprintln!("{}: {}", info.id, info.name);
    // A quarter: other programs and the second pool need memory, too.
    let max_bytes = info.memory.map_or(args.max_bytes, |memory| args.max_bytes.min(memory / 4));
    let mut settings = RunnerSettings::for_device(&info);
    settings.mode = if args.warm { Mode::Warm } else { Mode::Cold };
    (settings.max_bytes, settings.cold_bytes) = (max_bytes, args.cold_bytes);
    let caches = caches(&settings);
    let mut runner = DeviceRunner::new(&device, settings.clone());
    let speed = runner.device_speed()?;
    tell(&speed);

    let count = args.mesh.map_or_else(|| Mesh::count(&info), usize::from);
    let mesh = Mesh::new(count, args.from as usize, args.to as usize, max_bytes).with_edges(&info);
    let (record, mut known) = Record::open(&results, &mut |d, p| runner.launch_id(d, p))?;
    if !known.is_empty() {
        eprintln!("{} problems are known from {}", known.len(), results.display());
    }
    let mut progress = RunProgress::new("mesh", record, deadline(0.9));
    let search = SearchSettings::for_device(&info);
    // Half as many sizes for several right-hand sides, without the edges of the kernels for one.
    let half = count.div_ceil(2).max(count.min(4));
    let thin = Mesh::new(half, args.from as usize, args.to as usize, max_bytes);
    let mut whole = false;
    let mesh_of = |class: ProblemClass| if class.rhs == 1 { &mesh } else { &thin };
    let all: Vec<Desc> = classes.iter().flat_map(|&of| mesh_of(of).problems(of)).collect();
    let open: Vec<Desc> = all.iter().filter(|desc| !known.contains_key(desc)).copied().collect();
    // The regret is measured on shapes that lie between the points.
    let shapes: Vec<Desc> =
        classes.iter().flat_map(|&of| mesh_of(of).between(of, args.holdout)).collect();
    plan(&mut runner, &open, shapes.len(), &speed, (&settings, search.rounds), args.minutes);
    let (one, several) = classes.iter().partition::<Vec<_>, _>(|class| class.rhs == 1);
    let parts = [(&mesh, one, "mesh"), (&thin, several, "mesh of right-hand sides")];
    let parts = parts.into_iter().filter(|part| !part.1.is_empty());
    let parts: Vec<_> = parts.collect();
    for (k, (mesh, classes, what)) in parts.iter().enumerate() {
        // What one leaves of its part of the time is the next one's.
        let share = (k + 1) as f64 / parts.len() as f64;
        progress.next(what, deadline(0.9 * share));
        whole = sweep(&mut runner, mesh, classes, &search, &mut known, &mut progress);
        if whole {
            // The held-out shapes take a fifth of the time.
            progress.next("between its points", deadline(0.8 * share));
            let disagreement = DISAGREEMENT + 2.0 * noise(&known);
            refine(&mut runner, mesh, classes, disagreement, &search, &mut known, &mut progress);
        }
        if progress.error.is_some() || is_stopped() {
            break;
        }
    }
    progress.bar.finish_and_clear();
    if let Some(why) = progress.error.take() {
        return Err(why);
    }
    let interrupted = || {
        let resume = format!("the same command with --resume goes on from {}", results.display());
        Interrupted::with(format!("stopped; {resume}"))
    };
    if is_stopped() {
        return Err(interrupted());
    }
    let measured = all.iter().filter(|d| known.contains_key(d)).count();
    let between = known.keys().filter(|d| classes.iter().any(|a| a.holds(d))).count() - measured;
    let what = format!("{measured} of {} problems and {between} between them", all.len());
    eprintln!("{what} in {:.0} s", start.elapsed().as_secs_f64());

    let mut fit_settings = FitSettings::default();
    // A difference within the noise is not worth a row.
    let noise = noise(&known);
    eprintln!("noise: a time is off by {:.1} % or less at most problems", 100.0 * noise);
    // The best of many candidates is also the luckiest, so replacing a present row takes
    // more than that.
    let heir = args.start == Start::Present;
    let row_cost = fit_settings.row_cost;
    fit_settings.hole_from += 2.0 * noise;
    let legal = |desc: &Desc, params: &Params| device.backend().fits(desc, params).is_ok();
    let (mut parts, mut in_parts): (Vec<Fit>, bool) = (Vec::new(), false);
    for &class in &classes {
        let alike =
            |other: &&ProblemClass| (other.dtype, other.layout) == (class.dtype, class.layout);
        fit_settings.limit = (args.rows / classes.iter().filter(alike).count()).max(1);
        let from = present_rows(device.tables(), class).filter(|_| heir);
        in_parts |= from.as_ref().is_some_and(|(table, _)| has_parts(table, class));
        fit_settings.from = from.map_or_else(Vec::new, |(_, rows)| rows);
        let present = !fit_settings.from.is_empty();
        fit_settings.row_cost = row_cost + if present { 16.0 } else { 4.0 } * noise;
        parts.push(fit(&mut runner, class, &known, &legal, &fit_settings));
    }
    if in_parts {
        eprintln!(
            "present rows that end in .. are not kept: rows of whole parameters are fitted in their place"
        );
    }
    let rows: Vec<_> = parts.iter().flat_map(|part| part.rows.clone()).collect();
    if rows.is_empty() {
        let why = match known.is_empty() {
            true => "nothing was measured: the time was over before the first problem; give more --minutes".into(),
            false => format!("no candidate counted anywhere: {} says why", results.display()),
        };
        bail!(why);
    }
    let mut table = Table { origin: table_name.clone(), header: vec![], rows };

    let now = |d: &Desc| device.tables().explain(device.backend(), d).0;
    let tuned = |d: &Desc| first_legal(&table, &device, d).unwrap_or_else(|| now(d));
    let ways: [&dyn Fn(&Desc) -> Params; 2] = [&now, &tuned];
    let (record, mut known_held) = Record::open(&held, &mut |d, p| runner.launch_id(d, p))?;
    let mut watch = RunProgress::new("held-out shapes", record, deadline(1.0));
    let search = SearchSettings { rounds: 9, ..SearchSettings::default() };
    let holdouts = holdout(&mut runner, &shapes, &ways, &search, &mut known_held, &mut watch);
    watch.bar.finish_and_clear();
    if let Some(why) = watch.error.take() {
        return Err(why);
    }
    if is_stopped() {
        return Err(interrupted());
    }
    let regret: Vec<Regret> = (0..ways.len()).map(|way| Regret::of(way, &holdouts)).collect();

    let finest = mesh_of(classes[0]);
    table.header = header(&device, caches, finest, &what, start.elapsed(), &regret);
    table.header.extend(started(&device, &classes, &parts));
    table.header.extend(of_parts(&classes, &parts));
    table.header.extend(kernel_lines(&device.backend().kernels(), &table.rows));
    let table_path = out.join(table_file);
    write(&table_path, &table.to_string())?;

    let is_refused = args.install && is_refused(&regret[1], &regret[0]);
    let rows = table.rows.len();
    // Before anything is said: whoever reads may leave, which must not hide what failed.
    let installed = match args.install && !is_refused {
        true => Some(install(&device, &table, &unchecked(&classes, &holdouts))),
        false => None,
    };
    let said = say(|out| {
        writeln!(out, "{rows} rows in {}", table_path.display())?;
        writeln!(
            out,
            "regret: how much slower a table's choice is than the fastest of all candidates, on held-out shapes, which \
             are not on the mesh; geometric mean, and the worst:"
        )?;
        for (name, regret) in ["present table", "this table"].iter().zip(&regret) {
            writeln!(out, "  {name:14} {regret}")?;
        }
        per_class(out, &classes, &holdouts)?;
        if is_worse(&regret[1], &regret[0]) {
            let why = "this table is worse than the present one there: more --minutes may help";
            writeln!(out, "{why}")?;
        }
        match &installed {
            Some(installed) => out.write_all(installed.as_deref().unwrap_or_default().as_bytes()),
            None if !is_refused => {
                changes(out, &device, &table, &known)?;
                let part = (measured < all.len() || !whole).then_some((measured, all.len()));
                writeln!(out, "{}", advice(part, noise, &regret))
            }
            None => Ok(()),
        }
    });
    if is_refused {
        bail!("not installed, since it is worse than the present one: {}", table_path.display());
    }
    installed.transpose()?;
    Ok(said?)
}

/// Whether a table has rows in parts for this class, which the fit does not start from.
fn has_parts(table: &Table, class: ProblemClass) -> bool {
    table.rows.iter().filter(|row| row.partial).any(|row| {
        let rhs = row.rhs.map_or(class.rhs == 1, |(low, high)| (low..=high).contains(&class.rhs));
        let dtype = row.dtype.is_none_or(|dtype| dtype == class.dtype);
        rhs && dtype && row.layout.is_none_or(|layout| layout == class.layout)
    })
}

/// Says something on standard output.
fn say(what: impl FnOnce(&mut Stdout) -> io::Result<()>) -> io::Result<()> {
    what(&mut stdout())
}

/// Says how many problems there are, and how long they will take, about.
fn plan(
    runner: &mut DeviceRunner,
    open: &[Desc],
    held: usize,
    speed: &DeviceSpeed,
    (settings, rounds): (&RunnerSettings, usize),
    minutes: Option<f64>,
) {
    let mut seconds = 0.0;
    for desc in open {
        let read = speed.read_bandwidth.seconds(desc.bytes(), false);
        let once = settings.batch.max(1.5 * read.unwrap_or(desc.bytes() as f64 / 1e9));
        // As much of the caches as memory, where it may be in either.
        let both = (settings.warm_to + 1..=settings.both_to).contains(&desc.bytes());
        // Two batches of each candidate, two more of those that are not hopeless, and the rounds of the finalists.
        let batches = 3.0 * runner.candidates(desc).len() as f64 + 8.0 * rounds as f64;
        seconds += batches * once * if both { 2.0 } else { 1.0 };
    }
    // Half as many between them; and the held-out shapes are measured twice.
    seconds *= 1.5 + 2.0 * held as f64 / open.len().max(1) as f64;
    let limit = match minutes {
        Some(minutes) if 60.0 * minutes < seconds => {
            format!("; --minutes {minutes} takes those that come first, coarse to fine")
        }
        _ => String::new(),
    };
    eprintln!(
        "{} problems on the mesh, which is every pair of some numbers of rows and of columns, then some between them and \
         {held} held-out shapes: {} beside building kernels{limit}",
        open.len(),
        about(seconds)
    );
}

/// Noise from which on a table shows what else the machine did.
const NOISY: f64 = 0.05;

/// What to do with a new table. `part`: how many problems of the mesh were measured, where not all were.
fn advice(part: Option<(usize, usize)>, noise: f64, regret: &[Regret]) -> String {
    let checked = regret.last().is_some_and(|regret| regret.shapes > 0);
    if noise > NOISY {
        return format!(
            "the machine was busy: a time is off by {:.0} %, so this table is not one to be installed; measure again \
             while nothing else runs",
            100.0 * noise
        );
    }
    match part {
        Some((measured, all)) => format!(
            "{measured} of {all} problems of the mesh were measured: --resume with more --minutes goes on, before the \
             table is installed"
        ),
        None if !checked => "no held-out shape was measured: --resume checks the table".into(),
        None => "--install puts it where your tables are looked for".into(),
    }
}

/// The classes that were asked for and that the device can compute; the others are reported
/// once.
fn classes(args: &Args, device: &Device) -> anyhow::Result<Vec<ProblemClass>> {
    let mut classes = Vec::new();
    // One right-hand side first: it has the finest mesh.
    let mut counts = args.rhs.clone();
    counts.sort_unstable();
    for &rhs in &counts {
        for &dtype in &args.dtype {
            for &layout in &args.layout {
                let probe = Desc { rhs, ..Desc::of(dtype, layout, (64, 64), 6) };
                match device.backend().accepts(&probe) {
                    Ok(()) => {
                        let all = ProblemClass::of_device(device.info(), dtype, layout);
                        classes.extend(all.into_iter().map(|class| ProblemClass { rhs, ..class }));
                    }
                    Err(why) => eprintln!("left out: {why}"),
                }
            }
        }
    }
    // Two numbers of a class would give rows for the same problems.
    let alike = |a: &ProblemClass, b: &ProblemClass| {
        a.rhs == b.rhs && (a.dtype, a.layout, a.align) == (b.dtype, b.layout, b.align)
            || a.rhs < b.rhs && a.counts() == b.counts()
    };
    let pairs =
        classes.iter().enumerate().flat_map(|(k, a)| classes[..k].iter().map(move |b| (b, a)));
    if let Some((a, b)) = pairs.into_iter().find(|(a, b)| alike(a, b)) {
        bail!("--rhs {} and {} are of one class of right-hand sides: one of them", a.rhs, b.rhs);
    }
    if classes.is_empty() {
        bail!("there is nothing left to tune");
    }
    Ok(classes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_and_quiet_run_is_to_be_installed() {
        let of = |shapes| Regret { shapes, geomean: 0.01, worst: 0.1, worst_at: None, failed: 0 };
        let install = "--install puts it";
        assert!(advice(None, 0.01, &[of(8), of(8)]).starts_with(install));
        for (said, part) in [
            (advice(Some((40, 96)), 0.01, &[of(8), of(8)]), "40 of 96 problems"),
            (advice(None, 0.2, &[of(8), of(8)]), "the machine was busy: a time is off by 20 %"),
            (advice(None, 0.01, &[of(8), of(0)]), "no held-out shape was measured"),
        ] {
            assert!(said.contains(part) && !said.contains("--install"), "{said}");
        }
    }
}
