//! One token through one layer of a transformer of eight billion parameters (the shapes of Llama 3 8B),
//! in bf16: six products with matrices that are read once a token.
//!
//! ```text
//! cargo run --release --features half --bin decode_layer -- \
//!     [--device cuda:0] [--tokens 20] [--shrink 1] [--plot FILE.svg]
//! ```
//!
//! It is the first token of a text, whose attention has one position: the weight of its own value is 1.
//! The gate of the feed-forward part is bilinear (Shazeer, 2020). The weights are made up. All else is as in
//! the model: norms, grouped heads, residuals. The layer is recorded as a plan, and the time is set beside that
//! of a pass that only reads.
#![deny(unsafe_code)]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gemv::half::bf16;
use gemv::{Device, DeviceMatrix, DeviceScalar, DeviceVector, GpuDot};
use gemv_examples::{arguments, curves, hash, output};
use ndarray::{Array1, Array2};

const USAGE: &str =
    "usage: decode_layer [--device ID] [--tokens N] [--shrink DIVISOR] [--plot FILE.svg]";

/// Layers of the whole model.
const LAYERS: f64 = 32.0;
/// Query heads that share one key and one value.
const GROUP: usize = 4;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("decode_layer: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let (mut device, mut tokens, mut shrink, mut plot) = (None, 20usize, 1usize, None);
    for (name, value) in arguments(USAGE)? {
        match name.as_str() {
            "--device" => device = Some(value),
            "--tokens" => tokens = value.parse().map_err(|e| format!("--tokens {value}: {e}"))?,
            "--shrink" => shrink = value.parse().map_err(|e| format!("--shrink {value}: {e}"))?,
            "--plot" => plot = Some(PathBuf::from(value)),
            _ => return Err(USAGE.into()),
        }
    }
    if tokens == 0 || !(1..=32).contains(&shrink) || !shrink.is_power_of_two() {
        return Err("--tokens must be at least 1, and --shrink a power of two up to 32".into());
    }
    let device = gemv_examples::device(device.as_deref())?;
    let (hidden, inner) = (4096 / shrink, 14_336 / shrink);
    let layer = Layer::new(&device, hidden, inner)?;
    let bytes = layer.bytes();

    let mut plan = device.plan(layer, Layer::decode);
    // The first run compiles, the second one records.
    for _ in 0..2 {
        plan.run()?;
    }
    device.synchronize()?;
    let start = Instant::now();
    for _ in 0..tokens {
        plan.run()?;
    }
    device.synchronize()?;
    let time = start.elapsed().as_secs_f64() / tokens as f64;
    let layer = plan.into_state();
    let x = layer.x.download()?;

    let info = device.info();
    println!(
        "a layer of {hidden} x {hidden} and {inner} x {hidden} on {} ({})",
        info.id, info.name
    );
    println!("weights            {:.1} MB, read once a token", bytes as f64 / 1e6);
    println!(
        "time               {:.1} us a layer, {:.1} GB/s",
        1e6 * time,
        bytes as f64 / time / 1e9
    );
    if shrink == 1 {
        println!("the whole model    {:.1} tokens/s of {LAYERS} layers", 1.0 / (LAYERS * time));
    }
    match roof(&device, bytes)? {
        Some(roof) => println!("of the read bandwidth {:.1} %", 100.0 * roof.as_secs_f64() / time),
        None => println!("of the read bandwidth unknown: the device has no pass that only reads"),
    }
    println!("hash of the bits   {:016x}", hash(&x));

    let mut parts = layer.products(&device)?;
    let products: f64 = parts.iter().map(|part| part.1).sum();
    parts.push(("all else".into(), (1e6 * time - products).max(0.0)));
    for (name, microseconds) in &parts {
        println!("{name:<19}{microseconds:.1} us");
    }
    let plot = match plot {
        Some(path) => path,
        None => output("decode_layer.svg")?,
    };
    let title = format!("a layer of an 8B model in bf16, one token, on {}", info.name);
    curves::bars(&plot, &title, "microseconds", &parts)?;
    println!("the parts' times   {}", plot.display());
    Ok(())
}

/// The layer's weights, and what it computes with.
struct Layer {
    /// Before attention and before the feed-forward part.
    norms: [DeviceVector<bf16>; 2],
    query: DeviceMatrix<bf16>,
    key: DeviceMatrix<bf16>,
    value: DeviceMatrix<bf16>,
    output: DeviceMatrix<bf16>,
    /// Gate and up, one above the other.
    gate_up: DeviceMatrix<bf16>,
    down: DeviceMatrix<bf16>,

    /// The token: what comes in, and what goes out.
    x: DeviceVector<bf16>,
    h: DeviceVector<bf16>,
    q: DeviceVector<bf16>,
    k: DeviceVector<bf16>,
    v: DeviceVector<bf16>,
    heads: DeviceVector<bf16>,
    gates: DeviceVector<bf16>,
    act: DeviceVector<bf16>,
    norm: DeviceScalar<bf16>,
    /// The root of the number of entries of x.
    root: DeviceScalar<bf16>,
}

impl Layer {
    fn new(device: &Device, hidden: usize, inner: usize) -> gemv::Result<Layer> {
        let shared = hidden / GROUP;
        let zeros = |len: usize| device.zeros::<bf16, _>(len);
        let weights = |seed, m, n| device.matrix(&weights(seed, m, n));
        let ones = device.vector(&Array1::from_elem(hidden, bf16::ONE))?;
        let x =
            Array1::from_shape_fn(hidden, |i| bf16::from_f32((i * 37 % 101) as f32 / 50.0 - 1.0));
        Ok(Layer {
            norms: [ones.clone(), ones],
            query: weights(1, hidden, hidden)?,
            key: weights(2, shared, hidden)?,
            value: weights(3, shared, hidden)?,
            output: weights(4, hidden, hidden)?,
            gate_up: weights(5, 2 * inner, hidden)?,
            down: weights(6, hidden, inner)?,
            x: device.vector(&x)?,
            h: zeros(hidden)?,
            q: zeros(hidden)?,
            k: zeros(shared)?,
            v: zeros(shared)?,
            heads: zeros(hidden)?,
            gates: zeros(2 * inner)?,
            act: zeros(inner)?,
            norm: device.scalar(bf16::ZERO)?,
            root: device.scalar(bf16::from_f32((hidden as f32).sqrt()))?,
        })
    }

    /// Bytes of the matrices.
    fn bytes(&self) -> usize {
        let all = [&self.query, &self.key, &self.value, &self.output, &self.gate_up, &self.down];
        all.into_iter().map(|matrix| matrix.len() * size_of::<bf16>()).sum()
    }

    /// h = x / rms(x), times the norm's weights.
    fn normalise(&mut self, which: usize) -> gemv::Result<()> {
        let Layer { norms, x, h, norm, root, .. } = self;
        x.nrm2_into(&mut *norm)?;
        h.assign_product(&*x, &norms[which])?;
        h.scal(&*root / &*norm)
    }

    /// The time of each product by itself, in microseconds: the least of some.
    fn products(&self, device: &Device) -> gemv::Result<Vec<(String, f64)>> {
        let Layer { query, key, value, output, gate_up, down, .. } = self;
        let all = [
            ("query", query),
            ("key", key),
            ("value", value),
            ("output", output),
            ("gate and up", gate_up),
            ("down", down),
        ];
        let least = |matrix: &DeviceMatrix<bf16>| -> gemv::Result<f64> {
            let (m, n) = matrix.dim();
            let (x, mut y) = (device.zeros::<bf16, _>(n)?, device.zeros(m)?);
            let mut product = || matrix.try_gpu_dot_into(&x, &mut y);
            product()?;
            let mut best = f64::INFINITY;
            for _ in 0..5 {
                best = best.min(device.backend().timed(&mut product)?.as_secs_f64());
            }
            Ok(best * 1e6)
        };
        all.into_iter().map(|(name, matrix)| Ok((name.to_owned(), least(matrix)?))).collect()
    }

    /// One token. The host waits for nothing.
    fn decode(&mut self) -> gemv::Result<()> {
        self.normalise(0)?;
        let Layer { query, key, value, output, x, h, q, k, v, heads, .. } = self;
        query.try_gpu_dot_into(&*h, &mut *q)?;
        key.try_gpu_dot_into(&*h, &mut *k)?;
        value.try_gpu_dot_into(&*h, &mut *v)?;
        let shared = v.len();
        for group in 0..GROUP {
            heads.step_mut(group * shared..(group + 1) * shared, 1)?.assign(&*v)?;
        }
        output.try_gemv(1.0, &*heads, 1.0, &mut *x)?;

        self.normalise(1)?;
        let Layer { gate_up, down, x, h, gates, act, .. } = self;
        gate_up.try_gpu_dot_into(&*h, &mut *gates)?;
        let inner = act.len();
        act.assign_product(&gates.step(..inner, 1), &gates.step(inner.., 1))?;
        down.try_gemv(1.0, &*act, 1.0, &mut *x)
    }
}

/// Weights of a variance that keeps the size of what they are multiplied with.
fn weights(seed: u64, m: usize, n: usize) -> Array2<bf16> {
    let scale = (12.0 / n as f32).sqrt();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    Array2::from_shape_simple_fn((m, n), || {
        // xorshift (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bf16::from_f32(((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * scale)
    })
}

/// The least time in which the device reads so many bytes, if it has a pass that does no more.
fn roof(device: &Device, bytes: usize) -> gemv::Result<Option<Duration>> {
    let params = device.backend().read_params();
    if params.is_empty() {
        return Ok(None);
    }
    let n = 4096;
    let a = device.zeros::<f32, _>((bytes.div_ceil(4 * n), n))?;
    let (x, mut y) = (device.zeros::<f32, _>(n)?, device.zeros(a.dim().0)?);
    let mut best = None;
    for params in params {
        let mut pass = || device.product(&a, &x).with(&params).to(&mut y);
        pass()?; // compiled
        for _ in 0..3 {
            let time = device.backend().timed(&mut pass)?;
            best = Some(best.map_or(time, |best: Duration| best.min(time)));
        }
    }
    Ok(best)
}
