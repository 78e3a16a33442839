//! Times every candidate of some problems against the device's read ceiling, caches cold: what
//! one looks at while writing a kernel. The tuner of `gemv tune` makes tables of it.
//!
//! ```text
//! cargo run --release -p gemv-lab --features cuda --example candidates -- f32 row 4096x4096 16x1048576
//! ```
//!
//! Further parameters, each one word in quotes, are timed too where they are legal, for the shapes behind
//! them: `... f32 col "col-tile tile_m=256 vec=4" 4096x4096`.

use gemv_core::{Desc, Dtype, Engine, Layout, Params};
use gemv_lab::tuner::{DeviceRunner, Runner, RunnerSettings};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let device = Engine::new(Some("cuda".into())).default_device()?.clone();
    let mut runner = DeviceRunner::new(&device, RunnerSettings::default());
    let speed = runner.device_speed()?;
    println!(
        "{}: launch {:.2} us, round trip {:.2} us, {:?}",
        device.info().name,
        speed.launch * 1e6,
        speed.round_trip * 1e6,
        speed.link
    );
    for p in &speed.read_bandwidth.points {
        println!(
            "roof {:>11} B: cold {:9.2} us, warm {:9.2} us, {:.2} TB/s",
            p.bytes,
            p.cold * 1e6,
            p.warm * 1e6,
            p.bytes as f64 / p.cold * 1e-12
        );
    }
    let (mut dtype, mut layout) = (Dtype::F32, Layout::Row);
    let mut also: Vec<Params> = Vec::new();
    let every = std::env::var_os("CANDIDATES_ALL").is_some();
    for word in &words {
        if let Some(d) = Dtype::parse(word) {
            dtype = d;
        } else if let Some(l) = Layout::parse(word) {
            layout = l;
        } else if word.contains(' ') {
            also.push(word.parse::<Params>()?);
        } else {
            let (m, n) = word.split_once('x').ok_or("a shape is MxN")?;
            let (m, n): (usize, usize) = (m.parse()?, n.parse()?);
            let strides = if layout == Layout::Col { (1, m as isize) } else { (n as isize, 1) };
            let desc = Desc::new(dtype, m, n, strides, 0);
            let mut all = runner.candidates(&desc);
            let more =
                also.iter().filter(|p| runner.launch_id(&desc, p).is_some() && !all.contains(p));
            let more: Vec<Params> = more.copied().collect();
            all.extend(more);
            let chosen = device.choose(&desc)?;
            if !all.contains(&chosen) {
                all.push(chosen);
            }
            let jobs: Vec<_> = all.iter().map(|params| (desc, *params)).collect();
            runner.prepare(&jobs);
            let mut times = Vec::new();
            for params in all {
                runner.check(&desc, &params)?;
                let mut rounds = (0..3).map(|_| runner.measure(&desc, &params));
                let first = rounds.next().expect("three")?;
                let best = rounds.try_fold(first, |b, t| t.map(|t| b.min(t)))?;
                times.push((best, params));
            }
            times.sort_by(|a, b| a.0.total_cmp(&b.0));
            let floor = runner.read_seconds(&desc).unwrap_or(0.0);
            println!("{desc}: floor {:.2} us", floor * 1e6);
            let mut seen: Vec<String> = Vec::new();
            for (k, (time, params)) in times.iter().enumerate() {
                let name = params.kernel().to_string();
                let mark = if *params == chosen { " <- chosen" } else { "" };
                if every || k < 3 || !seen.contains(&name) || !mark.is_empty() {
                    println!("  {:9.2} us {:.2} {params}{mark}", time * 1e6, floor / time);
                }
                seen.push(name);
            }
        }
    }
    Ok(())
}
