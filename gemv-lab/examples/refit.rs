//! Fits rows to measured times and says how good tables are, without a GPU: from the files that `gemv tune` leaves.
//!
//! ```text
//! cargo run --release -p gemv-lab --features cuda,opencl --example refit -- cuda fit 40 run/*.cells.csv > rows.txt
//! cargo run --release -p gemv-lab --features cuda,opencl --example refit -- cuda regret rows.txt,gemv-cuda/tables/nvidia.txt run/*.holdout.csv
//! ```
//!
//! `fit` prints at most so many rows for a type, a layout and a class of right-hand sides. `regret` prints how much slower
//! the choices of tables, the first of which counts first, are than the fastest candidate; `each` prints it for
//! every problem. Times are those of the files: nothing is timed again, so the luckiest of the candidates counts as the fastest.
//! The first word is the backend, `cuda` or `opencl`. All take the device for one with the 132 multiprocessors of an H100 or
//! H200. Of a problem that several files have, the last one's times count.

use std::collections::BTreeMap;
use std::error::Error;

use gemv_core::{Align, Desc, Dtype, Layout, Params, Table};
use gemv_gpu::{Caps, Kernel, Language};
use gemv_lab::tuner::{
    Failure, Fit, FitSettings, Holdout, Measurements, ProblemClass, ProblemResult, Regret, Runner,
    Trial, decision_list, noise,
};
use serde::Deserialize;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A device whose times are in files.
#[derive(Clone)]
struct Recorded(Caps);

impl Recorded {
    fn new(backend: &str) -> Result<Recorded> {
        let language = match backend {
            "cuda" => Language::Cuda,
            "opencl" => Language::OpenCl,
            _ => return Err(format!("{backend} is neither cuda nor opencl").into()),
        };
        let mut caps = Caps::new(language);
        (caps.units, caps.max_group, caps.local_bytes, caps.fp64) = (132, 1024, 48 << 10, true);
        (caps.atomics64, caps.fences) = (true, true);
        if language == Language::Cuda {
            (caps.fp64_mma, caps.async_copies, caps.sm_90a) = (true, true, true);
            (caps.cluster, caps.dynamic_bytes) = (gemv_cuda::cluster(90), 227 << 10);
        }
        Ok(Recorded(caps))
    }

    fn all(&self, desc: &Desc) -> Vec<Params> {
        match self.0.language {
            Language::Cuda => gemv_cuda::candidates(desc, &self.0),
            Language::OpenCl => gemv_opencl::candidates(desc, &self.0),
        }
    }

    fn kernel(&self, name: &str) -> Option<&'static Kernel> {
        match self.0.language {
            Language::Cuda => gemv_cuda::kernels().find(|kernel| kernel.name == name),
            Language::OpenCl => gemv_opencl::kernels().find(|kernel| kernel.name == name),
        }
    }

    /// What tables choose, as `gemv_core::Tables` has it.
    fn choice(&mut self, tables: &[Table], desc: &Desc) -> Option<Params> {
        let all = self.all(desc);
        let passes = if desc.rhs > 1 { &[true, false][..] } else { &[false] };
        let rows = passes.iter().flat_map(|many| {
            let rows = tables.iter().flat_map(|table| table.nearest(desc));
            rows.filter(move |row| (row.rhs.is_some() || row.batch.is_some()) == *many)
        });
        let chosen = rows.filter_map(|row| row.choice(&all));
        chosen.into_iter().find(|params| self.launch_id(desc, params).is_some())
    }
}

impl Runner for Recorded {
    fn candidates(&mut self, desc: &Desc) -> Vec<Params> {
        self.all(desc)
    }

    fn launch_id(&mut self, desc: &Desc, params: &Params) -> Option<u64> {
        let kernel = self.kernel(params.kernel().as_str())?;
        let fits = kernel.fits(desc, params, &self.0).is_ok();
        fits.then(|| kernel.launch_id(desc, params, &self.0))
    }

    fn measure(&mut self, _: &Desc, _: &Params) -> std::result::Result<f64, Failure> {
        unreachable!("a fit measures nothing")
    }

    fn check(&mut self, _: &Desc, _: &Params) -> std::result::Result<(), Failure> {
        unreachable!("a fit measures nothing")
    }
}

/// A line of a file. Older files lack some of the columns.
#[derive(Deserialize)]
struct Line {
    kind: Option<String>,
    dtype: String,
    layout: Option<String>,
    m: usize,
    n: usize,
    rhs: Option<usize>,
    align: u8,
    params: String,
    us: Option<f64>,
    low_us: Option<f64>,
    high_us: Option<f64>,
    batches: Option<usize>,
    checked: Option<bool>,
    finalist: Option<bool>,
}

/// Adds the problems of a file. A file without a column for the layout has it in its name.
fn read(path: &str, runner: &mut Recorded, known: &mut Measurements) -> Result<()> {
    let mut file = csv::Reader::from_path(path).map_err(|e| format!("{path}: {e}"))?;
    let mut here: BTreeMap<Desc, Vec<Trial>> = BTreeMap::new();
    for (number, line) in file.deserialize::<Line>().enumerate() {
        let bad = || format!("{path}: line {} is none of `gemv tune`", number + 2);
        let line = line.map_err(|e| format!("{}: {e}", bad()))?;
        if line.kind.is_some_and(|kind| kind != "trial") {
            continue;
        }
        let layout = match &line.layout {
            Some(layout) => Layout::parse(layout),
            None => Layout::ALL.into_iter().find(|layout| path.contains(layout.name())),
        };
        let (dtype, layout) = Dtype::parse(&line.dtype).zip(layout).ok_or_else(bad)?;
        let desc = Desc::of(dtype, layout, (line.m, line.n), line.align);
        let desc = Desc { rhs: line.rhs.unwrap_or(1), ..desc };
        let params: Params = line.params.parse()?;
        // What is not legal any more does not count.
        let Some(launch_id) = runner.launch_id(&desc, &params) else { continue };
        let us = line.us.ok_or_else(bad)?;
        here.entry(desc).or_default().push(Trial {
            params,
            launch_id,
            seconds: us * 1e-6,
            low: line.low_us.unwrap_or(us) * 1e-6,
            high: line.high_us.unwrap_or(us) * 1e-6,
            batches: line.batches.unwrap_or(1),
            checked: line.checked.unwrap_or(true),
            finalist: line.finalist.unwrap_or(true),
        });
    }
    for (desc, mut trials) in here {
        trials
            .sort_by(|a, b| (!a.finalist).cmp(&!b.finalist).then(a.seconds.total_cmp(&b.seconds)));
        known.insert(desc, ProblemResult::new(desc, trials));
    }
    Ok(())
}

/// The problems by type, layout and right-hand sides.
fn classes(known: &Measurements) -> Vec<ProblemClass> {
    let class = |d: &Desc| (d.dtype, d.layout, d.rhs);
    let mut all: Vec<_> = known.keys().map(class).collect();
    all.sort_unstable();
    all.dedup();
    let class = |(dtype, layout, rhs)| ProblemClass { dtype, layout, align: Align::ANY, rhs };
    all.into_iter().map(class).collect()
}

fn name(class: &ProblemClass) -> String {
    format!("{} {} rhs={}", class.dtype, class.layout, class.rhs)
}

fn fit(mut runner: Recorded, limit: usize, files: &[String]) -> Result<()> {
    let mut known = Measurements::new();
    files.iter().try_for_each(|path| read(path, &mut runner, &mut known))?;
    let device = runner.clone();
    let mut settings = FitSettings::default();
    settings.limit = limit;
    settings.row_cost += 4.0 * noise(&known);
    settings.hole_from += 2.0 * noise(&known);
    let legal = |desc: &Desc, params: &Params| device.clone().launch_id(desc, params).is_some();
    for class in classes(&known) {
        let candidates = |desc: &Desc| device.all(desc);
        let Fit { rows, cost, worst, .. } =
            decision_list(&mut runner, class, &known, &candidates, &legal, &settings);
        let (cost, worst) = (100.0 * cost, 100.0 * worst);
        eprintln!(
            "{}: {} rows at a cost of {cost:.2} %, worst {worst:.1} %",
            name(&class),
            rows.len()
        );
        rows.iter().for_each(|row| println!("{row}"));
    }
    Ok(())
}

fn regret(mut runner: Recorded, tables: &str, files: &[String], each: bool) -> Result<()> {
    let mut known = Measurements::new();
    files.iter().try_for_each(|path| read(path, &mut runner, &mut known))?;
    let read =
        |path: &str| -> Result<Table> { Ok(Table::parse(path, &std::fs::read_to_string(path)?)?) };
    let tables = tables.split(',').map(read).collect::<Result<Vec<_>>>()?;
    let (mut all, mut slow) = (Vec::new(), 0);
    for class in classes(&known) {
        let here = known.values().filter(|result| class.holds(&result.desc));
        let here = here.map(|result| {
            let chosen = runner.choice(&tables, &result.desc);
            let choice = chosen.and_then(|params| runner.launch_id(&result.desc, &params));
            let mut result = result.clone();
            // One that was too slow to be timed to the end counts with the time that it has.
            result
                .trials
                .iter_mut()
                .filter(|t| Some(t.launch_id) == choice)
                .for_each(|t| t.finalist = true);
            if let (true, Some(params)) = (each, chosen) {
                let mut trials = result.trials.iter();
                let time =
                    choice.and_then(|id| trials.find(|t| t.launch_id == id)).map(|t| t.seconds);
                let best = result.best().map(|t| (t.params, t.seconds));
                let (of, best) = best.unwrap_or((params, f64::NAN));
                let slower = 100.0 * (time.unwrap_or(f64::NAN) / best - 1.0);
                println!("{slower:6.1} % {}: {params}, best {of}", result.desc);
            }
            Holdout { result, choices: vec![choice] }
        });
        let here: Vec<Holdout> = here.collect();
        let regret = Regret::of(0, &here);
        let worst = regret.worst_at.map_or(String::new(), |desc| format!(" ({desc})"));
        println!("{}: {regret}{worst}, {} without a time", name(&class), regret.failed);
        slow +=
            here.iter().filter(|of| Regret::of(0, std::slice::from_ref(of)).worst > 0.12).count();
        all.extend(here);
    }
    println!("all: {}, {slow} beyond 12 %", Regret::of(0, &all));
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [backend, "fit", limit, _, ..] => fit(Recorded::new(backend)?, limit.parse()?, &args[3..]),
        [backend, what @ ("regret" | "each"), tables, _, ..] => {
            regret(Recorded::new(backend)?, tables, &args[3..], what == "each")
        }
        _ => Err("BACKEND fit LIMIT FILES, or BACKEND regret TABLE[,TABLE] FILES; each is regret for every problem".into()),
    }
}
