//! What the choice between devices is worth: products of host arrays on each device of which a
//! profile is installed, and on the one that the router takes, over a mesh of shapes. Prints CSV,
//! then the geometric mean and the worst of what the choice costs by the better of all.
//!
//! ```text
//! GEMV_TABLES=gemv-tune-all cargo bench --all-features --bench router
//! ```

use std::time::Instant;

use gemv::ndarray::{Array1, Array2};
use gemv::{Desc, Device, Dtype, Element, Engine, Layout};

/// Seconds of a product of host arrays: the median, of interleaved rounds.
fn times<T: Element>(devices: &[Device], a: &Array2<T>, x: &Array1<T>) -> Vec<f64> {
    let once = |device: &Device| {
        let start = Instant::now();
        device.try_gpu_dot(a, x).expect("f32 and f64 are for every device");
        start.elapsed().as_secs_f64()
    };
    // The first builds kernels and grows buffers.
    for device in devices {
        once(device);
    }
    let rounds: Vec<Vec<f64>> = (0..15).map(|_| devices.iter().map(once).collect()).collect();
    let median = |k: usize| {
        let mut of: Vec<f64> = rounds.iter().map(|round| round[k]).collect();
        of.sort_by(f64::total_cmp);
        of[of.len() / 2]
    };
    (0..devices.len()).map(median).collect()
}

fn measure<T: Element>(layout: Layout, ratios: &mut Vec<(f64, Desc)>) {
    let router = Engine::global().router().expect("two devices with profiles");
    let sizes = [30, 100, 333, 1000, 3333, 10_000, 33_333, 100_000, 1_000_000];
    for m in sizes {
        for n in sizes.into_iter().filter(|n| m * n <= 1 << 25) {
            let shape = (m, n);
            let a = match layout {
                Layout::Col => Array2::<T>::default(gemv::ndarray::ShapeBuilder::f(shape)),
                _ => Array2::default(shape),
            };
            let desc = Desc::new(T::DTYPE, m, n, (a.strides()[0], a.strides()[1]), 0);
            let devices: Vec<Device> =
                router.explain(&desc).into_iter().map(|(device, _)| device.clone()).collect();
            let seconds = times(&devices, &a, &Array1::default(n));
            let chosen = router.route(&desc);
            let index = devices.iter().position(|d| d.is(chosen)).expect("one of them");
            let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
            let us: Vec<String> = seconds.iter().map(|s| format!("{:.2}", s * 1e6)).collect();
            let (dtype, id) = (desc.dtype, &chosen.info().id);
            println!("{dtype},{layout},{m},{n},{},{id},{:.3}", us.join(","), seconds[index] / best);
            ratios.push((seconds[index] / best, desc));
        }
    }
}

fn main() {
    // `cargo test` runs benches too, with this.
    if std::env::args().any(|a| a == "--test") {
        return;
    }
    let Some(router) = Engine::global().router() else {
        println!("there are no profiles of two devices to choose by: see gemv tune");
        return;
    };
    let probe = Desc::of(Dtype::F32, Layout::Row, (64, 64), 6);
    let devices = router.explain(&probe).into_iter();
    let ids: Vec<String> = devices.map(|d| format!("{}_us", d.0.info().id)).collect();
    println!("dtype,layout,m,n,{},chosen,by_best", ids.join(","));
    let mut ratios = Vec::new();
    for layout in [Layout::Row, Layout::Col] {
        measure::<f32>(layout, &mut ratios);
        measure::<f64>(layout, &mut ratios);
    }
    let mean = ratios.iter().map(|r| r.0.ln()).sum::<f64>() / ratios.len() as f64;
    let (worst, at) = ratios.iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("some");
    let over = ratios.iter().filter(|r| r.0 > 1.1).count();
    let (mean, worst) = (100.0 * mean.exp_m1(), 100.0 * (worst - 1.0));
    println!(
        "# {} products: geomean {mean:.2} %, worst {worst:.1} % ({at}), {over} over 10 %",
        ratios.len()
    );
}
