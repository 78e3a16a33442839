//! `gemv warm`: compiles for a device what its tables choose, before anybody waits for it.

use std::collections::HashSet;
use std::io::{Write, stdout};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, ensure};
use gemv::Dtype;
use gemv::unstable::{Desc, Params};
use indicatif::{ProgressBar, ProgressStyle};

use crate::interrupt::{Interrupted, is_stopped, watch};
use crate::parse::open_device;

/// Compile and test every kernel that a device's tables choose, and keep them on disk.
///
/// A first product of each type and shape then takes no longer than the second; the first of a process loads its kernel.
/// It takes all processors for some minutes, once for each device, driver and version of gemv. Interrupted, it goes on from
/// what it has. Kernels of two element types, of packed matrices and of vector steps are compiled when they are first used.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The device, such as opencl:0.
    #[arg(long, value_name = "NAME")]
    device: String,
    /// The element types, separated by commas [default: all].
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',', value_parser = dtype)]
    types: Vec<Dtype>,
    /// Threads that compile [default: as many as there are processors].
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
}

fn dtype(text: &str) -> Result<Dtype, String> {
    let names = || Dtype::ALL.map(Dtype::name).join(", ");
    let of = Dtype::ALL.into_iter().find(|dtype| dtype.name() == text);
    of.ok_or_else(|| format!("it is none of {}", names()))
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let device = open_device(Some(&args.device))?;
    let begin = Instant::now();
    let jobs = jobs(&device, &args.types);
    ensure!(!jobs.is_empty(), "{} has no kernels of these types", args.device);
    watch().context("Ctrl-C")?;
    let style = "{pos} of {len} kernels [{elapsed}] {wide_bar} {eta} left {msg}";
    let style = ProgressStyle::with_template(style).expect("a constant template");
    let bar = ProgressBar::new(jobs.len() as u64).with_style(style);
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::<String>::new()));
    let worker = || {
        while let Some((params, descs)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            if is_stopped() {
                return;
            }
            // What a split of the rows launches differs from shape to shape.
            let backend = device.backend();
            let one = |desc| backend.prepare(desc, params).and_then(|choice| backend.warm(&choice));
            if let Err(why) = descs.iter().try_for_each(one) {
                failed.lock().expect("no panic").push(why.to_string());
            }
            bar.inc(1);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 1..args.threads.unwrap_or(cores).min(jobs.len()) {
            // This thread goes on alone where no other can be made.
            let _ = std::thread::Builder::new().spawn_scoped(scope, worker);
        }
        worker();
    });
    bar.finish_and_clear();
    let failed = failed.into_inner().expect("no panic");
    let (all, seconds) = (jobs.len(), begin.elapsed().as_secs_f64());
    if is_stopped() {
        return Err(Interrupted::with("what is compiled is kept".into()));
    }
    ensure!(failed.is_empty(), "{} of {all} kernels fail, the first: {}", failed.len(), failed[0]);
    writeln!(stdout(), "{all} kernels are ready on {} after {seconds:.1} s", args.device)?;
    Ok(())
}

/// Problems by the parameters and types that the device chooses for them: those of which its tables have rows.
fn jobs(device: &gemv::Device, types: &[Dtype]) -> Vec<(Params, Vec<Desc>)> {
    let mut jobs: Vec<(Params, Vec<Desc>)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    let mut seen = HashSet::new();
    let rows = device.tables().iter().flat_map(|table| &table.rows);
    for desc in rows.flat_map(|row| row.examples()) {
        let wanted = types.is_empty() || types.contains(&desc.dtype);
        if !wanted || !seen.insert(desc) || device.backend().accepts(&desc).is_err() {
            continue;
        }
        let Ok(params) = device.choose(&desc) else { continue };
        let at = *places.entry((params, desc.dtype)).or_insert_with(|| {
            jobs.push((params, Vec::new()));
            jobs.len() - 1
        });
        jobs[at].1.push(desc);
    }
    jobs
}
