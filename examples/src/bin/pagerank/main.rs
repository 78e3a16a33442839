//! PageRank (Brin and Page, The anatomy of a large-scale hypertextual web search engine, 1998): which
//! packages of this workspace's `Cargo.lock` are depended on most, or the nodes of another graph.
//!
//! ```text
//! cargo run --release -p gemv-examples --features solvers --bin pagerank -- [--device cuda:0]
//! cargo run ... --bin pagerank -- --graph web-Stanford.txt --nodes 8192
//! ```
//!
//! `--graph` reads a lock file of Cargo, or a list of edges as the data sets of SNAP
//! (<https://snap.stanford.edu/data>) have it. The nodes with the most links are kept: the dense block.
//!
//! The matrix holds zeros and ones in f32, which is exact, and the ranks are f64. All of them stay on the
//! device. The host looks once in some iterations and else does nothing but start a recorded plan. The
//! ranks have the same bits on every device: the program prints their hash.
#![deny(unsafe_code)]

mod graph;

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use gemv::{Device, DeviceMatrix, DeviceVector, GpuDot, Widen};
use gemv_examples::{curves, hash, output};
use graph::Graph;
use indicatif::{ProgressBar, ProgressStyle};
use ndarray::{Array1, Axis};

/// Ranks the nodes of a graph by the links to them.
#[derive(Parser)]
struct Args {
    /// Where: cpu, opencl:0, cuda:0, reference; by default the CPU, or what GEMV_BACKEND names.
    #[arg(long)]
    device: Option<String>,
    /// Edges, two numbers a line, or a lock file of Cargo (NAME.lock); by default this workspace's.
    #[arg(long)]
    graph: Option<PathBuf>,
    /// Nodes to keep: those with the most links.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 15))]
    nodes: u32,
    /// The share of steps that follow a link; the others go anywhere.
    #[arg(long, default_value_t = 0.85, value_parser = share)]
    damping: f64,
    /// Ends when the ranks change by no more than this, in the 2-norm.
    #[arg(long, default_value_t = 1e-12, value_parser = share)]
    tolerance: f64,
    /// Where the picture of the convergence goes; by default target/pagerank.svg.
    #[arg(long)]
    plot: Option<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if 0.0 < number && number < 1.0 => Ok(number),
        _ => Err("it is no number between 0 and 1".into()),
    }
}

/// Iterations from one look at the changes to the next: an even number.
const EVERY: usize = 10;
/// Nodes to be named.
const TOP: usize = 10;

fn main() -> ExitCode {
    gemv_examples::exit(env!("CARGO_BIN_NAME"), run(&Args::parse()))
}

fn read(path: &Path) -> Result<Graph, Box<dyn Error>> {
    let read = || match path.extension() {
        Some(extension) if extension == "lock" => Graph::of_lock(&std::fs::read_to_string(path)?),
        _ => Graph::of_edges(BufReader::new(File::open(path)?)),
    };
    read().map_err(|e| format!("{}: {e}", path.display()).into())
}

/// What the plan computes with.
struct Ranks {
    /// 1 where a link leads from the column's node to the row's.
    links: DeviceMatrix<f32>,
    /// What a node gives to each that it links to, for each unit of its own rank.
    weights: DeviceVector<f64>,
    gifts: DeviceVector<f64>,
    /// What each node is given by those who go anywhere.
    teleport: f64,
    x: DeviceVector<f64>,
    y: DeviceVector<f64>,
    /// The squared 2-norm of each iteration's change.
    changes: DeviceVector<f64>,
}

impl Ranks {
    fn new(device: &Device, graph: &Graph, damping: f64) -> gemv::Result<Ranks> {
        let n = graph.names.len();
        let links =
            graph.out_degrees().mapv(|degree| if degree == 0.0 { n as f64 } else { degree });
        Ok(Ranks {
            links: device.matrix(&graph.matrix())?,
            weights: device.vector(&links.mapv(|links| damping / links))?,
            gifts: device.zeros(n)?,
            teleport: (1.0 - damping) / n as f64,
            x: device.zeros(n)?,
            y: device.zeros(n)?,
            changes: device.zeros(EVERY)?,
        })
    }

    /// Begins with equal ranks.
    fn begin(&mut self) -> gemv::Result<()> {
        self.x.fill(1.0 / self.x.len() as f64)
    }

    /// Goes on from x to x. The host waits for nothing.
    fn iterate(&mut self) -> gemv::Result<()> {
        let Ranks { links, weights, gifts, teleport, x, y, changes } = self;
        let mut step = |old: &mut DeviceVector<f64>, new: &mut DeviceVector<f64>, k| {
            gifts.assign_product(&*old, &*weights)?;
            new.fill(*teleport)?;
            links.widened().try_gemv(1.0, &*gifts, 1.0, &mut *new)?;
            old.axpy(-1.0, &*new)?;
            old.dot_into(&*old, changes.view_mut()?.index_axis(Axis(0), k))
        };
        (0..EVERY).step_by(2).try_for_each(|k| {
            step(x, y, k)?;
            step(y, x, k + 1)
        })
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let locked = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("Cargo.lock");
    let path = args.graph.as_ref().unwrap_or(&locked);
    let graph = read(path)?;
    let all = graph.names.len();
    let graph = graph.densest(args.nodes as usize);
    let device = gemv_examples::device(args.device.as_deref())?;

    let bar = ProgressBar::new((-100.0 * args.tolerance.log10()) as u64);
    bar.set_style(ProgressStyle::with_template("{wide_bar} {elapsed} {msg}")?);
    let mut plan = device.plan(Ranks::new(&device, &graph, args.damping)?, Ranks::iterate);
    // The first run compiles, the second one records. The clock starts with the third.
    for _ in 0..2 {
        plan.run()?;
    }
    plan.state_mut().begin()?;
    device.synchronize()?;
    // Each iteration shrinks the sum of the absolute changes to the damping's share, but for rounding.
    let enough = 2.0 * args.tolerance.ln() / args.damping.ln() + 100.0;
    let (start, mut changes) = (Instant::now(), Vec::new());
    let last = loop {
        plan.run()?;
        changes.extend(plan.state().changes.download()?.mapv(f64::sqrt));
        let last = changes[changes.len() - 1];
        bar.set_position((-100.0 * last.log10()).max(0.0) as u64);
        bar.set_message(format!("{} iterations, change {last:.1e}", changes.len()));
        match last {
            _ if last <= args.tolerance => break last,
            _ if changes.len() as f64 > enough => {
                let iterations = changes.len();
                let why = format!("the change is still {last:.1e} after {iterations} iterations");
                return Err(why.into());
            }
            _ => {}
        }
    };
    let time = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let ranks = plan.into_state().x.download()?;

    let (n, links, iterations) = (graph.names.len(), graph.links.len(), changes.len());
    let dangling = graph.out_degrees().iter().filter(|&&degree| degree == 0.0).count();
    let (info, name) = (device.info(), path.file_name().unwrap_or_default().display());
    println!("{n} of {all} nodes of {name} on {} ({})", info.id, info.name);
    println!("links              {links}; nodes without any of their own: {dangling}");
    println!("iterations         {iterations}, the host looked {} times", iterations / EVERY);
    println!("change             {last:.3e} in the last one");
    println!("sum of the ranks   {:.12}", ranks.sum());
    println!(
        "time               {time:.3} s, {:.2} us an iteration",
        1e6 * time / iterations as f64
    );
    println!("hash of the bits   {:016x}", hash(&ranks));
    let plot = match &args.plot {
        Some(path) => path.clone(),
        None => output("pagerank.svg")?,
    };
    let title = format!("PageRank of {n} nodes, damping {}", args.damping);
    curves::convergence(&plot, &title, "|change|", &[curves::numbered("", &changes)])?;
    println!("convergence        {}\n", plot.display());
    println!("   rank      node");
    for &node in highest(&ranks).iter().take(TOP) {
        println!("   {:.6}  {}", ranks[node], graph.names[node]);
    }
    Ok(())
}

/// The nodes from the highest rank to the lowest.
fn highest(ranks: &Array1<f64>) -> Vec<usize> {
    let mut nodes: Vec<usize> = (0..ranks.len()).collect();
    nodes.sort_by(|&a, &b| ranks[b].total_cmp(&ranks[a]));
    nodes
}
