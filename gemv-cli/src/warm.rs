//! `gemv warm`: compiles for a device what its tables choose, before anybody waits for it.

use std::collections::{BTreeSet, HashMap};
use std::io::{Write, stdout};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, ensure};
use gemv::unstable::{Desc, Params};
use gemv::{Device, Dtype};
use indicatif::{ProgressBar, ProgressStyle};

use gemv_lab::device::open_device;
use gemv_lab::interrupt::{Interrupted, is_stopped, watch};
use gemv_lab::parse::parse_dtype;

/// Compile and test every kernel that a device's tables choose, and keep them on disk.
///
/// A first product then waits for no compiler. This is done once for each device, driver and version of gemv; interrupted, the same
/// command goes on from what it has. Kernels of two element types, of packed matrices and of vector steps are compiled when
/// they are first used.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The device, such as opencl:0.
    #[arg(long, value_name = "NAME")]
    device: String,
    /// Element types, by NumPy's names or short ones [default: all].
    #[arg(long, value_name = "TYPE,..", value_delimiter = ',', value_parser = parse_dtype)]
    dtype: Vec<Dtype>,
    /// Threads that compile [default: as many as there are processors].
    #[arg(long, value_name = "COUNT", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    threads: Option<usize>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let off = std::env::var_os("GEMV_CACHE").is_some_and(|value| value == "off");
    ensure!(!off, "GEMV_CACHE=off: nothing of what is compiled would be kept");
    let device = open_device(Some(&args.device))?;
    let begin = Instant::now();
    let jobs = jobs(&device, &args.dtype);
    ensure!(!jobs.is_empty(), "no table of {} has kernels of these types", args.device);
    eprintln!("{} kernels", jobs.len());
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

/// Problems by the parameters that the device chooses for them: those of which its tables have rows. One for each of what is
/// launched would do, but only the backend knows.
fn jobs(device: &Device, dtypes: &[Dtype]) -> Vec<(Params, Vec<Desc>)> {
    let backend = device.backend();
    let rows = device.tables().iter().flat_map(|table| &table.rows);
    let wanted = |desc: &Desc| dtypes.is_empty() || dtypes.contains(&desc.dtype);
    // Rows share examples.
    let descs: BTreeSet<Desc> = rows.flat_map(|row| row.examples()).filter(wanted).collect();
    let mut jobs: HashMap<(Params, Dtype), Vec<Desc>> = HashMap::new();
    for desc in descs.into_iter().filter(|desc| backend.accepts(desc).is_ok()) {
        if let Ok(params) = device.choose(&desc) {
            jobs.entry((params, desc.dtype)).or_default().push(desc);
        }
    }
    jobs.into_iter().map(|((params, _), descs)| (params, descs)).collect()
}
