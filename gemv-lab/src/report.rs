//! `gemv report`: what was measured, as one HTML file with pictures.

mod page;
mod plot;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Write, stderr, stdout};
use std::path::{Path, PathBuf};

use crate::tuner::{Measurements, ProblemResult};
use anyhow::{Context, bail, ensure};
use gemv::unstable::{Align, Desc, Params};
use gemv_shard::npy::shown;

use crate::bench::{BUSY, Sample, middle};
use crate::files::{Output, is_same, make_parent, read, read_found, read_packed, whole_lines};
use crate::parse::count;
use crate::record::{self, can_be, is_time};
use page::{Page, Table};
use plot::{Axes, Colours, Curve, Map, Mark, READ, Scale};

/// Make one HTML file, with pictures, of what `gemv tune` and `gemv bench` have measured.
///
/// It needs no other file and no network. Pointing at a cell or a mark shows its numbers. Pictures come first; tables and
/// commands are folded below them. What would make no good picture is left out, with a sentence: a curve of one point, a
/// scan of few values, a map of which parts were not measured.
#[derive(clap::Args)]
pub struct Args {
    /// Directories (all their CSV files are taken) and CSV files, also those packed by gzip (.csv.gz).
    #[arg(required = true, value_name = "DIR")]
    from: Vec<PathBuf>,
    /// The file to write.
    #[arg(long, value_name = "FILE", default_value = "gemv-report.html")]
    out: PathBuf,
    /// Also write every picture to this directory, as an SVG file of its own.
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
}

/// What the files hold.
#[derive(Default)]
struct Data {
    /// Tuner runs, by the names of their files, those of one name by numbers.
    tuned: BTreeMap<String, Measurements>,
    samples: Vec<Sample>,
}

/// The HTML page of one CSV file, from its name and text.
///
/// # Errors
/// If it has a line that cannot be, of those that a file of this kind has.
pub fn html(name: &str, text: &str) -> anyhow::Result<String> {
    let mut data = Data::default();
    data.add(Path::new(name), text)?;
    Ok(data.page()?.html())
}

/// Reads what was measured, and writes the page.
///
/// # Errors
/// What could not be read, cannot be, or could not be written, as one sentence.
pub fn run(args: Args) -> anyhow::Result<()> {
    // The files, and whether each was named: a pipe may be, and is not read where it is only found.
    let mut files = Vec::new();
    for from in &args.from {
        if from.is_dir() {
            let entries = std::fs::read_dir(from)
                .with_context(|| format!("cannot read {}", from.display()))?;
            let mut found: Vec<_> = entries.flatten().map(|e| e.path()).collect();
            let is_csv = |f: &PathBuf| unpacked(f).extension().is_some_and(|e| e == "csv");
            found.retain(is_csv);
            found.sort();
            // Packed and unpacked, it is one.
            let plain: BTreeSet<PathBuf> =
                found.iter().filter(|f| !is_packed(f)).cloned().collect();
            found.retain(|f| !is_packed(f) || !plain.contains(&unpacked(f)));
            files.extend(found.into_iter().map(|file| (file, false)));
        } else {
            files.push((from.clone(), true));
        }
    }
    let is_stdout = args.out == Path::new("-");
    let own = files.iter().find(|(file, _)| !is_stdout && is_same(file, &args.out));
    if let Some((file, _)) = own {
        bail!("{}: what is read is not overwritten: name another --out", file.display());
    }
    make_parent(&args.out)?;
    let mut out = Output::open(&args.out)?;
    let mut data = Data::default();
    for (file, named) in files {
        let text = match (is_packed(&file), named) {
            (true, _) => read_packed(&file),
            (false, true) => read(&file).map(Some),
            (false, false) => read_found(&file),
        };
        let name = unpacked(&file);
        let added = text.and_then(|text| text.map_or(Ok(()), |text| data.add(&name, &text)));
        added.with_context(|| format!("cannot read {}", file.display()))?;
    }
    if data.tuned.is_empty() && data.samples.is_empty() {
        bail!("there is nothing to show: no CSV file of gemv tune or gemv bench was found");
    }
    let page = data.page()?;
    let plots = page.plots();
    let written = out.write_all(page.html().as_bytes()).and_then(|()| out.finish());
    written.with_context(|| format!("cannot write {}", args.out.display()))?;
    if let Some(dir) = &args.pictures {
        page.write_pictures(dir)?;
    }
    // Not behind the page.
    let mut say: Box<dyn Write> = match is_stdout {
        true => Box::new(stderr()),
        false => Box::new(stdout()),
    };
    writeln!(say, "{plots} plots in {}", args.out.display())?;
    if plots == 0 {
        writeln!(
            say,
            "single shapes make no picture, and few of a curve or a map no good one: they are in a table, or the page \
             says what is left out; gemv bench makes pictures of curves, of --shapes mesh and of --scan"
        )?;
    }
    Ok(())
}

fn is_packed(file: &Path) -> bool {
    file.extension().is_some_and(|e| e == "gz")
}

/// The name without what gzip appends to it.
fn unpacked(file: &Path) -> PathBuf {
    if is_packed(file) { file.with_extension("") } else { file.into() }
}

impl Data {
    /// Takes the text of a file.
    fn add(&mut self, path: &Path, text: &str) -> anyhow::Result<()> {
        let mut reader = csv::Reader::from_reader(whole_lines(path, text).as_bytes());
        let header = reader.headers()?.clone();
        let has = |name: &str| header.iter().any(|h| h == name);
        if has("who") && has("gbs") {
            for record in reader.records() {
                let record = record?;
                let line = record.position().map_or(0, |at| at.line());
                let sample: Sample = record.deserialize(Some(&header))?;
                ensure!(
                    is_possible(&sample),
                    "line {line}, {}: it holds a number that cannot be",
                    shown(&problem(&sample))
                );
                self.samples.push(sample);
            }
        } else if has("kind") && has("finalist") {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // Held-out shapes are not on the mesh; the table's header has their
            // regret.
            if let Some(stem) = name.strip_suffix(".cells.csv") {
                let known = record::parse(path, text)?;
                // Another directory may have one of the same device.
                let names = (1..).map(|k| match k {
                    1 => stem.to_owned(),
                    k => format!("{stem} ({k})"),
                });
                let mut free = names.filter(|name| !self.tuned.contains_key(name));
                self.tuned.insert(free.next().expect("there is no last number"), known);
            }
        } else {
            log::warn!("{} is of neither gemv tune nor gemv bench", path.display());
        }
        Ok(())
    }

    fn page(&self) -> anyhow::Result<Page> {
        let mut page = Page::new("gemv: what was measured");
        let names: BTreeSet<&str> = self.samples.iter().map(|s| &*s.name).collect();
        // One colour a name, whichever pictures it is on.
        let rivals: BTreeSet<&str> = self.samples.iter().map(|s| &*s.who).collect();
        let who = ["gemv"].into_iter().chain(rivals).filter(|who| *who != "scan");
        let who = Colours::new(who.map(str::to_owned));
        let used = self.samples.iter().filter(|s| s.who != "scan").map(|s| s.params.clone());
        let results = self.tuned.values().flat_map(|known| known.values());
        let best = results.filter_map(|result| Some(result.best()?.params.to_string()));
        let kernel = |params: String| params.split(' ').next().unwrap_or_default().to_owned();
        let kernels: BTreeSet<String> = used.chain(best).map(kernel).collect();
        let kernels = Colours::new(kernels);
        for name in names {
            page.section(name);
            self.headline(&mut page, name);
            let before = page.plots();
            self.columns(&mut page, name, &who)?;
            self.curves(&mut page, name, &who)?;
            self.rivals(&mut page, name, &kernels)?;
            self.scans(&mut page, name)?;
            page.tell_left_out();
            // Where there is no picture, the tables are what there is.
            let is_open = page.plots() == before;
            page.tables(&[self.summary(name), self.single(name)], is_open);
            self.origin(&mut page, name);
        }
        for (stem, known) in &self.tuned {
            page.section(&format!("Tuning of {stem}"));
            tuned(&mut page, known, &kernels)?;
            page.tell_left_out();
        }
        Ok(page)
    }

    /// Samples of a device by type and layout, and by batches and right-hand sides.
    fn areas(&self, name: &str) -> Vec<(String, Vec<&Sample>)> {
        let mut areas: BTreeMap<_, Vec<&Sample>> = BTreeMap::default();
        for s in self.samples.iter().filter(|s| s.name == name) {
            let key = (&s.dtype, &s.layout, &s.caches, s.batch, s.rhs);
            areas.entry(key).or_default().push(s);
        }
        let mut named = Vec::new();
        for (_, samples) in areas {
            let rhs = match samples[0].rhs {
                1 => String::new(),
                rhs => format!(" rhs={rhs}"),
            };
            named.push((area(samples[0], &rhs), samples));
        }
        named
    }

    /// How many times as fast as each rival: of as many products as give a mean.
    fn headline(&self, page: &mut Page, name: &str) {
        let samples: Vec<&Sample> =
            self.samples.iter().filter(|s| s.name == name && s.who != "scan").collect();
        let key = |s: &Sample| {
            let shape = (s.m, s.n, s.rhs, s.batch);
            (s.dtype.clone(), s.layout.clone(), shape, s.caches.clone(), s.date.clone())
        };
        let ours: BTreeMap<_, f64> =
            samples.iter().filter(|s| s.who == "gemv").map(|s| (key(s), s.us)).collect();
        let rivals: BTreeSet<&str> = samples.iter().map(|s| &*s.who).collect();
        let rivals = rivals.into_iter().filter(|who| !["gemv", "given"].contains(who));
        // Several right-hand sides are another question than one.
        for (who, single) in rivals.flat_map(|who| [(who, true), (who, false)]) {
            let is_single = |s: &Sample| (s.rhs, s.batch) == (1, 1);
            let theirs = samples.iter().filter(|s| s.who == who && is_single(s) == single);
            let ratios: Vec<(f64, &Sample)> =
                theirs.filter_map(|s| Some((s.us / ours.get(&key(s))?, *s))).collect();
            let Some(least) = ratios.iter().min_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
            let mean = geomean(&ratios.iter().map(|ratio| ratio.0).collect::<Vec<_>>());
            let what = match single {
                true => "",
                false => " with several right-hand sides or in batches",
            };
            if ratios.len() < HEADLINE {
                page.leave_out(&format!(
                    "how many times as fast as {who}: of {}{what}, too few for a mean; the table has the times",
                    count(ratios.len(), "product")
                ));
                continue;
            }
            let text = format!(
                "{:.2} times as fast as {who} (geometric mean of {}{what}; least {:.2}, at {})",
                mean,
                count(ratios.len(), "product"),
                least.0,
                problem(least.1)
            );
            page.paragraph("headline", &text);
        }
        let spreads = samples.iter().filter_map(|s| s.spread);
        if let Some(spread) = middle(spreads).filter(|spread| *spread > BUSY) {
            let text = format!(
                "The machine was busy: in half of the times the middle half of the rounds lies {:.0} % apart or more, and \
                 what differs by less than that may be equal.",
                100.0 * spread
            );
            page.paragraph("busy", &text);
        }
    }

    /// What was measured how: folded, since commands are long.
    fn origin(&self, page: &mut Page, name: &str) {
        let samples: Vec<&Sample> =
            self.samples.iter().filter(|s| s.name == name && s.who != "scan").collect();
        let all = |of: fn(&Sample) -> &str| {
            let all: BTreeSet<&str> =
                samples.iter().map(|s| of(s)).filter(|v| !v.is_empty()).collect();
            all.into_iter().collect::<Vec<_>>().join("; ")
        };
        let facts = [
            ("device", all(|s| &s.device)),
            ("driver", all(|s| &s.driver)),
            ("gemv", all(|s| &s.version)),
            ("measured", all(|s| &s.date)),
            ("with: gemv", all(|s| &s.command)),
        ];
        let facts: Vec<String> = facts
            .into_iter()
            .filter(|fact| !fact.1.is_empty())
            .map(|(what, value)| format!("{what} {value}"))
            .collect();
        if !facts.is_empty() {
            page.fold("Device, driver, date and command", false);
            page.paragraph("from", &facts.join(", "));
            page.unfold();
        }
    }

    /// Geometric means of the share of the read bandwidth, by size of the operands.
    fn summary(&self, name: &str) -> Option<Table> {
        let mut rows = Vec::new();
        for (area, samples) in self.areas(name) {
            let who: BTreeSet<&str> =
                samples.iter().map(|s| &*s.who).filter(|w| *w != "scan").collect();
            for who in who {
                let mut row = vec![area.clone(), who.to_owned()];
                for (low, high) in [(0, 1 << 20), (1 << 20, 48 << 20), (48 << 20, u64::MAX)] {
                    let of =
                        samples.iter().filter(|s| s.who == who && (low..high).contains(&s.bytes));
                    let shares: Vec<f64> = of.filter_map(|s| s.share()).collect();
                    let worst = shares.iter().copied().fold(f64::INFINITY, f64::min);
                    let (mean, worst) = (percent(geomean(&shares)), percent(worst));
                    row.push(match shares.len() {
                        0 => String::new(),
                        k => format!("{mean} / {worst} ({k})"),
                    });
                }
                rows.push(row);
            }
        }
        let is_told = rows.iter().any(|r| r[2..].iter().any(|c| !c.is_empty()));
        let caption = "Share of the read bandwidth, geometric mean / worst (number of shapes)";
        let head = ["", "", "to 1 MiB", "1 to 48 MiB", "from 48 MiB"].into();
        is_told.then_some(Table { caption, head, rows })
    }

    /// Shapes that were asked for one by one.
    fn single(&self, name: &str) -> Option<Table> {
        let mut rows = Vec::new();
        for (area, samples) in self.areas(name) {
            for s in samples.iter().filter(|s| s.curve == "shape" && s.who != "scan") {
                rows.push(vec![
                    format!("{area} {}x{}", s.m, s.n),
                    s.who.clone(),
                    format!("{:.2}", s.us),
                    format!("{:.1}", s.gbs),
                    s.spread.map_or(String::new(), percent),
                    s.share().map_or(String::new(), percent),
                    s.params.clone(),
                ]);
            }
        }
        let head = ["", "", "us", "GB/s", "spread", "of the read bandwidth", "parameters"].into();
        let caption = "Shapes by themselves";
        (!rows.is_empty()).then_some(Table { caption, head, rows })
    }

    /// By the number k of right-hand sides: the time as a multiple of that of one, and the speed as a
    /// multiple of each rival's.
    fn columns(&self, page: &mut Page, name: &str, colours: &Colours) -> anyhow::Result<()> {
        let mut areas: BTreeMap<String, Vec<&Sample>> = BTreeMap::new();
        // Parameters that were given are not one way to compute, but several.
        let of = |s: &&Sample| s.name == name && !["scan", "given"].contains(&&*s.who);
        for s in self.samples.iter().filter(of) {
            areas.entry(area(s, "")).or_default().push(s);
        }
        for (area, samples) in areas {
            let counts: BTreeSet<usize> = samples.iter().map(|s| s.rhs).collect();
            if counts.len() < 2 {
                continue;
            }
            // Of a problem that was measured again, the last time counts.
            let times: BTreeMap<(&str, usize, (usize, usize)), f64> =
                samples.iter().map(|s| ((&*s.who, s.rhs, (s.m, s.n)), s.us)).collect();
            let who: BTreeSet<&str> = samples.iter().map(|s| &*s.who).collect();
            // Geometric means over the shapes, of the times of `of` by those of `by`.
            let curve = |of: &str, by: &dyn Fn(usize) -> (&'static str, usize)| {
                let mark = |&k: &usize| {
                    let (rival, rhs) = by(k);
                    let rival = if rival.is_empty() { of } else { rival };
                    let here = times.range((of, k, (0, 0))..=(of, k, (usize::MAX, usize::MAX)));
                    let ratios: Vec<f64> = here
                        .filter_map(|(key, us)| Some(us / times.get(&(rival, rhs, key.2))?))
                        .collect();
                    let mean = geomean(&ratios);
                    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
                    let most = ratios.iter().copied().fold(0.0, f64::max);
                    let hover = format!(
                        "{of}, k = {k}: {mean:.2} (geometric mean of {}; least {least:.2}, most {most:.2})",
                        count(ratios.len(), "shape"),
                    );
                    let mark = Mark { x: k as f64, y: mean, hover };
                    (!ratios.is_empty()).then_some(mark)
                };
                let marks: Vec<Mark> = counts.iter().filter_map(mark).collect();
                (!marks.is_empty()).then(|| Curve { name: of.into(), marks })
            };
            let by_one = who.iter().filter_map(|who| curve(who, &|_| ("", 1))).collect();
            let rivals = who.iter().filter(|who| **who != "gemv");
            let over = rivals.filter_map(|who| curve(who, &|k| ("gemv", k))).collect();
            let times = "t(k)/t(1), the time of k right-hand sides by that of one";
            let speed = "speed of gemv over that of others";
            for (kind, what, curves) in [("columns", times, by_one), ("over", speed, over)] {
                let curves = drawn(page, &format!("{area}: {what}"), curves);
                if !curves.is_empty() {
                    let y = what.split(',').next().unwrap_or(what);
                    let axes = ("k, the number of right-hand sides", y);
                    let picture = plot::curves(axes, Scale::Ratio, colours, curves)?;
                    page.plot(kind, &format!("{name}, {area}: {what}"), &picture);
                }
            }
        }
        Ok(())
    }

    /// Bandwidth by footprint, for tall, square and wide.
    fn curves(&self, page: &mut Page, name: &str, colours: &Colours) -> anyhow::Result<()> {
        for (area, samples) in self.areas(name) {
            for (shape, what) in [
                ("tall", "tall, 100 N x N"),
                ("square", "square, 10 N x 10 N"),
                ("wide", "wide, N x 100 N"),
            ] {
                let here: Vec<_> =
                    samples.iter().filter(|s| s.curve == shape && s.who != "scan").collect();
                let mut curves: BTreeMap<&str, Vec<Mark>> = BTreeMap::default();
                for s in &here {
                    let hover = format!("{}: {}x{}, {}", s.who, s.m, s.n, numbers(s));
                    let mark = Mark { x: s.bytes as f64, y: s.gbs, hover };
                    curves.entry(&s.who).or_default().push(mark);
                    if let Some(read) = s.read_us {
                        let gbs = s.bytes as f64 / read / 1e3;
                        let hover = format!("{READ}: {} bytes, {gbs:.1} GB/s", s.bytes);
                        let marks = curves.entry(READ).or_default();
                        if !marks.iter().any(|m| m.x == s.bytes as f64) {
                            marks.push(Mark { x: s.bytes as f64, y: gbs, hover });
                        }
                    }
                }
                if curves.is_empty() {
                    continue;
                }
                let curves =
                    curves.into_iter().map(|(name, marks)| Curve { name: name.into(), marks });
                let curves = drawn(page, &format!("{area}: {what}"), curves.collect());
                if curves.iter().all(|curve| curve.name == READ) {
                    continue;
                }
                let axes = ("size of A, x and y together", "GB/s");
                let picture = plot::curves(axes, Scale::Bytes, colours, curves)?;
                page.plot("curve", &format!("{name}, {area}: {what}"), &picture);
            }
        }
        Ok(())
    }

    /// Share of the read bandwidth over the mesh: ours, the vendor's, the published.
    fn rivals(&self, page: &mut Page, name: &str, kernels: &Colours) -> anyhow::Result<()> {
        let mesh = self.samples.iter().filter(|s| s.curve == "mesh" && s.name == name);
        let axes = Axes::of(mesh.map(|s| (s.m, s.n)));
        for (area, samples) in self.areas(name) {
            let who: BTreeSet<&str> = samples
                .iter()
                .filter(|s| s.curve == "mesh" && s.who != "scan")
                .map(|s| &*s.who)
                .collect();
            let read = samples.iter().any(|s| s.read_us.is_some());
            for who in who {
                let mut choices = Choices { read, ..Choices::default() };
                for s in samples.iter().filter(|s| s.curve == "mesh" && s.who == who) {
                    let hover = format!("{}x{}: {}", s.m, s.n, numbers(s));
                    let params = s.params.parse().ok();
                    choices.add((s.m, s.n), params.as_ref(), (s.gbs, s.share()), hover);
                }
                if choices.leave_out(page, &format!("{area}, {who}")) {
                    continue;
                }
                let what = format!("{name}, {area}, {who}");
                choices.speed(page, &what, axes)?;
                // A map of one kernel shows nothing.
                if choices.kernels.distinct() > 1 {
                    choices.kernel(page, &what, axes, kernels)?;
                    choices.arguments(page, &what, axes)?;
                }
            }
        }
        Ok(())
    }

    /// The published kernels over each of their arguments. Those for several right-hand sides, which
    /// compute more than they read, by GFLOP/s, with the others' products beside them.
    fn scans(&self, page: &mut Page, name: &str) -> anyhow::Result<()> {
        for (area, samples) in self.areas(name) {
            let mut groups: BTreeMap<(String, usize, usize), Vec<&Sample>> = BTreeMap::default();
            for s in samples.iter().filter(|s| s.who == "scan") {
                let kernel = s.params.split(' ').next().unwrap_or_default();
                groups.entry((kernel.into(), s.m, s.n)).or_default().push(s);
            }
            // All samples of an area have the same number of right-hand sides.
            let (speed, unit): (fn(&Sample) -> f64, _) = match samples.first() {
                Some(s) if s.rhs > 1 => (Sample::gflops, "GFLOP/s"),
                _ => (|s| s.gbs, "GB/s"),
            };
            let beside: Vec<&Sample> =
                samples.iter().filter(|s| s.rhs > 1 && s.who != "scan").copied().collect();
            for ((kernel, m, n), samples) in groups {
                let beside = beside.iter().filter(|s| (s.m, s.n) == (m, n) && s.who != "given");
                let found = scans(&samples, (speed, unit));
                if found.is_empty() {
                    let few = count(samples.len(), "time");
                    page.leave_out(&format!(
                        "{area}, {kernel} on {m}x{n}: {few}, with fewer than {SCAN} values of any argument, are no scan"
                    ));
                }
                for (axis, mut curves) in found {
                    let marks = || curves.iter().flat_map(|c| c.marks.iter().map(|m| m.x));
                    let ends = [marks().fold(f64::INFINITY, f64::min), marks().fold(0.0, f64::max)];
                    curves.extend(beside.clone().map(|s| {
                        let hover = format!("{}: {:.2} us, {:.1} {unit}", s.who, s.us, speed(s));
                        let mark = |x| Mark { x, y: speed(s), hover: hover.clone() };
                        Curve { name: s.who.clone(), marks: ends.map(mark).into() }
                    }));
                    let axes = (&*axis, unit);
                    let picture = plot::curves(axes, Scale::Linear, &Colours::default(), curves)?;
                    let title = format!("{name}, {area}, {kernel} on {m}x{n}: scan of {axis}");
                    page.plot("scan", &title, &picture);
                }
            }
        }
        Ok(())
    }
}

/// Type and layout of a sample, with what else pictures of it are not mixed over.
fn area(s: &Sample, rhs: &str) -> String {
    let batch = if s.batch == 1 { String::new() } else { format!(" batch={}", s.batch) };
    let caches = if s.caches == "cold" { String::new() } else { format!(", {}", s.caches) };
    format!("{} {}{rhs}{batch}{caches}", s.dtype, s.layout)
}

/// The problem of a sample, as it is displayed elsewhere.
fn problem(s: &Sample) -> String {
    let Sample { dtype, layout, m, n, .. } = s;
    let also = [(" rhs=", s.rhs), (" batch=", s.batch)].into_iter().filter(|also| also.1 != 1);
    let also: String = also.map(|(name, count)| format!("{name}{count}")).collect();
    format!("{dtype} {layout} {m}x{n}{also}")
}

/// Whether a sample can have been measured.
fn is_possible(s: &Sample) -> bool {
    is_time(s.us)
        && s.read_us.is_none_or(is_time)
        && (1e-12..=1e12).contains(&s.gbs)
        && (1..=1 << 60).contains(&s.bytes)
        && can_be([s.m, s.n, s.rhs, s.batch])
        && s.spread.is_none_or(|spread| (0.0..=1e12).contains(&spread))
}

/// Products of which a geometric mean is a headline.
const HEADLINE: usize = 8;

/// A share, as it is written everywhere.
fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// The same within a line of numbers.
fn of_reading(share: f64) -> String {
    format!(", {} of the read bandwidth", percent(share))
}

/// What the pointer shows of a sample.
fn numbers(s: &Sample) -> String {
    let share = s.share().map_or(String::new(), of_reading);
    format!("{:.2} us, {:.1} GB/s{share} {}", s.us, s.gbs, s.params)
}

/// A geometric mean.
fn geomean(all: &[f64]) -> f64 {
    (all.iter().map(|one| one.ln()).sum::<f64>() / all.len() as f64).exp()
}

/// The curves that are lines; the others are left out with a sentence.
fn drawn(page: &mut Page, what: &str, curves: Vec<Curve>) -> Vec<Curve> {
    let is_line = |curve: &Curve| {
        let first = curve.marks.first().map(|mark| mark.x);
        curve.marks.iter().any(|mark| Some(mark.x) != first)
    };
    let (lines, points): (Vec<_>, Vec<_>) = curves.into_iter().partition(is_line);
    let points = points.iter().filter(|curve| curve.name != READ);
    let names: Vec<&str> = points.map(|curve| &*curve.name).collect();
    if !names.is_empty() {
        page.leave_out(&format!("{what}: one point is no curve ({})", names.join(", ")));
    }
    lines
}

/// Fewer values of an argument are no scan.
const SCAN: usize = 4;

/// The scans: arguments with enough values, and a curve for each setting of the others.
fn scans(
    samples: &[&Sample],
    (speed, unit): (fn(&Sample) -> f64, &str),
) -> Vec<(String, Vec<Curve>)> {
    let parsed: Vec<(Params, &Sample)> =
        samples.iter().filter_map(|s| Some((s.params.parse().ok()?, *s))).collect();
    let mut values: BTreeMap<String, BTreeSet<u32>> = BTreeMap::default();
    for (params, _) in &parsed {
        for (key, value) in params.args() {
            values.entry(key).or_default().insert(value);
        }
    }
    let mut scans = Vec::new();
    for axis in values.iter().filter(|v| v.1.len() >= SCAN).map(|v| v.0) {
        let mut curves: BTreeMap<String, Vec<Mark>> = BTreeMap::default();
        for (params, s) in &parsed {
            let Some(x) = params.get(axis) else { continue };
            let others: Vec<String> = params
                .args()
                .filter(|(k, _)| k != axis && values[k].len() > 1)
                .map(|(k, v)| format!("{k}={v}"))
                .collect();
            let hover = format!("{}: {:.2} us, {:.1} {unit}", s.params, s.us, speed(s));
            let mark = Mark { x: x.into(), y: speed(s), hover };
            curves.entry(others.join(" ")).or_default().push(mark);
        }
        curves.retain(|_, marks| marks.len() >= SCAN);
        let mut curves: Vec<Curve> =
            curves.into_iter().map(|(name, marks)| Curve { name, marks }).collect();
        // The best eight settings: more curves cannot be told apart.
        curves.sort_by(|a, b| b.best().total_cmp(&a.best()));
        curves.truncate(8);
        if !curves.is_empty() {
            scans.push((axis.clone(), curves));
        }
    }
    scans
}

/// Maps of the best choice: its speed, the kernel, and each of its arguments.
#[derive(Default)]
struct Choices {
    /// Whether speeds are shares of the read bandwidth: one unit a map.
    read: bool,
    /// What was measured, whatever came of it.
    places: Map,
    speeds: Map,
    kernels: Map,
    args: BTreeMap<String, Map>,
}

impl Choices {
    /// Takes a shape, with its bandwidth and the share of the read bandwidth, which is not known below the smallest
    /// measured read.
    fn add(
        &mut self,
        (m, n): (usize, usize),
        best: Option<&Params>,
        (gbs, share): (f64, Option<f64>),
        hover: String,
    ) {
        self.places.add(m, n, 0.0, String::new());
        if let Some(best) = best {
            self.kernels.add_named(m, n, best.kernel().as_str(), hover.clone());
            for (key, value) in best.args() {
                self.args.entry(key).or_default().add(m, n, f64::from(value), hover.clone());
            }
        }
        if let Some(value) = if self.read { share } else { Some(gbs) } {
            self.speeds.add(m, n, value, hover);
        }
    }

    /// Whether a map would have holes, of which the page then says so.
    fn leave_out(&self, page: &mut Page, what: &str) -> bool {
        let cells = match self.places.len() {
            1 => "1 shape was measured,".into(),
            cells => format!("{cells} shapes were measured,"),
        };
        let is_partial = self.places.is_partial();
        if is_partial {
            let why = "only in parts of the plane; more time fills it";
            page.leave_out(&format!("{what}: {cells} {why}"));
        }
        is_partial
    }

    /// The map of speeds, if any shape has one.
    fn speed(&self, page: &mut Page, what: &str, axes: Axes) -> anyhow::Result<()> {
        let (unit, range) = match self.read {
            true => ("share of the read bandwidth", Some((0.0, 1.0))),
            false => ("GB/s", None),
        };
        if !self.speeds.is_empty() {
            let picture = self.speeds.continuous(axes, range)?;
            page.plot("share", &format!("{what}: {unit}"), &picture);
        }
        Ok(())
    }

    fn kernel(
        &self,
        page: &mut Page,
        what: &str,
        axes: Axes,
        colours: &Colours,
    ) -> anyhow::Result<()> {
        let picture = self.kernels.categories(axes, colours)?;
        page.plot("kernel", &format!("{what}: best kernel"), &picture);
        Ok(())
    }

    /// Maps of single arguments, folded away.
    fn arguments(&self, page: &mut Page, what: &str, axes: Axes) -> anyhow::Result<()> {
        let varied: Vec<_> = self.args.iter().filter(|a| a.1.distinct() > 1).collect();
        if varied.is_empty() {
            return Ok(());
        }
        page.fold(&format!("{what}: best value of {}", count(varied.len(), "argument")), false);
        for (key, map) in varied {
            page.plot("parameter", &format!("{what}: best value of {key}"), &map.levels(axes)?);
        }
        page.unfold();
        Ok(())
    }
}

/// The maps of one tuner run, of the problems whose lines begin at whole vectors.
fn tuned(page: &mut Page, known: &Measurements, kernels: &Colours) -> anyhow::Result<()> {
    let axes = Axes::of(known.keys().map(|d| (d.m, d.n)));
    let areas: BTreeSet<_> = known.keys().map(|d| (d.dtype, d.layout, d.rhs)).collect();
    for (dtype, layout, rhs) in areas {
        let results: Vec<(&Desc, &ProblemResult)> = known
            .iter()
            .filter(|(d, c)| {
                (d.dtype, d.layout, d.rhs) == (dtype, layout, rhs) && c.best().is_some()
            })
            .filter(|(d, _)| Align::WHOLE.holds(d.align))
            .collect();
        if results.is_empty() {
            continue;
        }
        let read = results.iter().any(|(_, result)| result.read_seconds.is_some());
        let mut choices = Choices { read, ..Choices::default() };
        for (desc, result) in &results {
            let best = result.best().expect("filtered above");
            let gbs = desc.bytes() as f64 / best.seconds / 1e9;
            let share = result.read_seconds.map(|read| read / best.seconds);
            let hover = format!(
                "{}x{}: {}, {:.2} us, {gbs:.1} GB/s{}; best of {}",
                desc.m,
                desc.n,
                best.params,
                best.seconds * 1e6,
                share.map_or(String::new(), of_reading),
                result.candidates
            );
            choices.add((desc.m, desc.n), Some(&best.params), (gbs, share), hover);
        }
        let rhs = if rhs == 1 { String::new() } else { format!(" rhs={rhs}") };
        let what = format!("{dtype} {layout}{rhs}, aligned");
        if choices.leave_out(page, &what) {
            continue;
        }
        choices.kernel(page, &what, axes, kernels)?;
        choices.speed(page, &what, axes)?;
        choices.arguments(page, &what, axes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In these lines every field takes every number, alone and with the others of its kind; the rest stays. The answer is a page
    /// or a sentence. Counts both.
    fn answers(
        name: &str,
        header: &str,
        (lines, rest): (&[&str], &[&str]),
        places: &[Vec<usize>],
    ) -> [usize; 2] {
        let extremes = "0,-0,1,-1,2,4503599627370497,4294967295,4294967296,18446744073709551615,18446744073709551616,\
                        9223372036854775808,1e-320,1e-12,1e-6,1e15,1e16,1e308,-1e308,inf,-inf,nan,,x,0.5";
        let (mut pages, mut refused) = (0, 0);
        for (at, value) in places.iter().flat_map(|at| extremes.split(',').map(move |v| (at, v))) {
            let changed = |line: &&str| {
                let fields = line.split(',').enumerate();
                let fields = fields.map(|(k, old)| if at.contains(&k) { value } else { old });
                fields.collect::<Vec<_>>().join(",") + "\n"
            };
            let (lines, rest) =
                (lines.iter().map(changed), rest.iter().map(|line| format!("{line}\n")));
            let text = header.to_owned() + "\n" + &lines.chain(rest).collect::<String>();
            let mut data = Data::default();
            match data.add(Path::new(name), &text).and_then(|()| data.page()) {
                Ok(page) => {
                    assert!(!page.html().is_empty());
                    pages += 1;
                }
                Err(e) => {
                    let why = format!("{e:#}");
                    assert!(!why.is_empty() && !why.contains('\n'), "{why}");
                    refused += 1;
                }
            }
        }
        [pages, refused]
    }

    #[test]
    fn numbers_that_no_machine_measures() {
        let single = (5..10).chain(13..16).chain([20]).map(|k| vec![k]);
        let places: Vec<_> = single.chain([vec![5, 6], vec![13, 14, 15], vec![7, 8]]).collect();
        let (mut pages, mut refused) = (0, 0);
        for curve in ["mesh", "square", "shape"] {
            for who in ["gemv", "scan"] {
                let line = format!(
                    "d,n,f32,row,{curve},64,128,1,1,33000,cold,{who},row threads=128,2.5,13.2,2.0,,,,,0.05"
                );
                let lines: [&str; 1] = [&line];
                let [drawn, told] =
                    answers("f.csv", crate::bench::COLUMNS, (&lines, &lines), &places);
                (pages, refused) = (pages + drawn, refused + told);
            }
        }
        assert!(pages > 300 && refused > 300, "{pages} pages, {refused} refused");
    }

    #[test]
    fn a_number_that_cannot_be_is_told_with_its_line() {
        let line = "d,n,f32,row,mesh,64,128,1,1,33000,cold,gemv,row,2.5,13.2,1e308,,,,,\n";
        let text = format!("{}\n{line}", crate::bench::COLUMNS);
        let e = Data::default().add(Path::new("f.csv"), &text).unwrap_err();
        assert_eq!(e.to_string(), "line 2, f32 row 64x128: it holds a number that cannot be");
    }

    /// The same of the tuner's files.
    #[test]
    fn numbers_that_no_tuner_measures() {
        let trial = "trial,f32,row,64,128,1,6,row threads=128,2.5,2.4,2.6,5,true,true,,,,";
        let end = "end,f32,row,64,128,1,6,,,,,,,,9,true,2.0,";
        let places = [3, 4, 5, 6, 8, 9, 10, 11, 14, 16].map(|k| vec![k]);
        let places = [&places[..], &[vec![3, 4]]].concat();
        let lines = (&[trial, end][..], &[][..]);
        let [pages, refused] = answers("f32.cells.csv", record::HEADER, lines, &places);
        assert!(pages > 50 && refused > 20, "{pages} pages, {refused} refused");
    }
}
