//! One token through one layer of a transformer of eight billion parameters (the shapes of Llama 3 8B),
//! in bf16: six products with matrices that are read once a token.
//!
//! ```text
//! cargo run --release --features half,packed --bin decode_layer -- \
//!     [--device cuda:0] [--tokens 20] [--shrink 1] [--format q4_k | --weights FILE [--layer 0]] \
//!     [--columns 1] [--plot FILE.svg]
//! ```
//!
//! With `--format` the matrices are packed; with `--weights` they are those of a layer of a GGUF file or one of safetensors
//! (feature `packed`). With `--columns` each product is computed for so many tokens at once too, and compared with one by one.
//!
//! It is the first token of a text, whose attention has one position: the weight of its own value is 1.
//! The gate of the feed-forward part is bilinear (Shazeer, 2020). The weights are made up, unless they are of a file. All else
//! is as in the model: norms, grouped heads (one group after the other), residuals. The layer is recorded as a plan, and the
//! time is set beside that of a pass that only reads.
#![deny(unsafe_code)]

#[cfg(feature = "packed")]
mod packed;
mod weight;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use gemv::half::bf16;
use gemv::{Device, DeviceScalar, DeviceVector};
use gemv_examples::{count, curves, hash, output};
use ndarray::{Array1, Array2};
use weight::{Weight, Weights};

/// Decodes tokens by one layer of a language model.
#[derive(Parser)]
struct Args {
    /// Where: cpu, opencl:0, cuda:0, reference; by default the CPU, or what GEMV_BACKEND names.
    #[arg(long)]
    device: Option<String>,
    /// Tokens that are timed.
    #[arg(long, default_value_t = 20, value_parser = count)]
    tokens: usize,
    /// Divides the sizes of the layer: a power of two up to 32.
    #[arg(long, default_value_t = 1, value_parser = shrink)]
    shrink: usize,
    /// A packed format of the matrices (feature `packed`); by default bf16.
    #[arg(long)]
    format: Option<String>,
    /// A file of weights, GGUF or safetensors (feature `packed`).
    #[arg(long, conflicts_with = "format")]
    weights: Option<String>,
    /// Which layer of the file.
    #[arg(long, default_value_t = 0)]
    layer: usize,
    /// Tokens that are also computed at once.
    #[arg(long, default_value_t = 1, value_parser = count)]
    columns: usize,
    /// Where the picture goes; by default target/decode_layer.svg.
    #[arg(long)]
    plot: Option<PathBuf>,
}

fn shrink(text: &str) -> Result<usize, String> {
    let divisor = text.parse().ok().filter(|of: &usize| *of <= 32 && of.is_power_of_two());
    divisor.ok_or("it is no power of two up to 32".into())
}

#[cfg(not(feature = "packed"))]
const NO_PACKED: &str = "this program was built without the feature \"packed\"";

/// Layers of the whole model.
const LAYERS: f64 = 32.0;
/// Query heads that share one key and one value.
const GROUP: usize = 4;

fn main() -> ExitCode {
    gemv_examples::exit(env!("CARGO_BIN_NAME"), run(Args::parse()))
}

fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let Args { device, tokens, shrink, format, weights: file, layer: index, columns, plot } = args;
    let device = gemv_examples::device(device.as_deref())?;
    let weights = match &file {
        None => {
            let (hidden, inner) = (4096 / shrink, 14_336 / shrink);
            let upload = |device: &Device, a: Array2<bf16>| match format.as_deref() {
                None | Some("bf16") => Ok(Weight::Plain(device.matrix(&a)?)),
                #[cfg(feature = "packed")]
                Some(format) => Ok(packed::rounded(device, format.parse()?, &a)?),
                #[cfg(not(feature = "packed"))]
                Some(_) => Err(NO_PACKED.into()),
            };
            Weights::made_up(&device, (hidden, hidden / GROUP, inner), upload)?
        }
        #[cfg(feature = "packed")]
        Some(path) => packed::layer(&device, path, index)?,
        #[cfg(not(feature = "packed"))]
        Some(path) => return Err(format!("layer {index} of {path}: {NO_PACKED}").into()),
    };
    let (hidden, inner) = weights.down.dim();
    let mut formats: Vec<_> = weights.all().iter().map(|(_, weight)| weight.name()).collect();
    formats.sort_unstable();
    formats.dedup();
    let formats = formats.join(", ");
    let layer = Layer::new(&device, weights)?;
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
    println!("weights            {:.1} MB of {formats}, read once a token", bytes as f64 / 1e6);
    println!(
        "time               {:.1} us a layer, {:.1} GB/s",
        1e6 * time,
        bytes as f64 / time / 1e9
    );
    if shrink == 1 && file.is_none() {
        println!("the whole model    {:.1} tokens/s of {LAYERS} layers", 1.0 / (LAYERS * time));
    }
    match roof(&device, bytes)? {
        Some(roof) => println!("of the read bandwidth {:.1} %", 100.0 * roof.as_secs_f64() / time),
        None => println!("of the read bandwidth unknown: the device has no pass that only reads"),
    }
    println!("hash of the bits   {:016x}", hash(&x));

    let mut parts = layer.products(&device)?;
    let products: f64 = parts.iter().map(|part| part.1).sum();
    if columns > 1 {
        let together = layer.together(&device, columns)? / products;
        println!(
            "{columns} tokens at once {together:>7.2} times the time of one, with the same bits"
        );
    }
    parts.push(("all else".into(), (1e6 * time - products).max(0.0)));
    for (name, microseconds) in &parts {
        println!("{name:<19}{microseconds:.1} us");
    }
    let plot = match plot {
        Some(path) => path,
        None => output("decode_layer.svg")?,
    };
    let title = format!("a layer of an 8B model in {formats}, one token, on {}", info.name);
    curves::bars(&plot, &title, "microseconds", &parts)?;
    println!("the parts' times   {}", plot.display());
    Ok(())
}

/// The layer's weights, and what it computes with.
struct Layer {
    weights: Weights,
    /// Before attention and before the feed-forward part.
    norms: [DeviceVector<bf16>; 2],

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
    fn new(device: &Device, weights: Weights) -> gemv::Result<Layer> {
        let ((hidden, inner), (heads, _)) = (weights.down.dim(), weights.query.dim());
        let (shared, _) = weights.value.dim();
        let zeros = |len: usize| device.zeros::<bf16, _>(len);
        let norm = |which: usize| match &weights.norms[which] {
            Some(norm) => device.vector(norm),
            None => device.vector(&Array1::from_elem(hidden, bf16::ONE)),
        };
        let x =
            Array1::from_shape_fn(hidden, |i| bf16::from_f32((i * 37 % 101) as f32 / 50.0 - 1.0));
        Ok(Layer {
            norms: [norm(0)?, norm(1)?],
            weights,
            x: device.vector(&x)?,
            h: zeros(hidden)?,
            q: zeros(heads)?,
            k: zeros(shared)?,
            v: zeros(shared)?,
            heads: zeros(heads)?,
            gates: zeros(2 * inner)?,
            act: zeros(inner)?,
            norm: device.scalar(bf16::ZERO)?,
            root: device.scalar(bf16::from_f32((hidden as f32).sqrt()))?,
        })
    }

    /// Bytes of the matrices.
    fn bytes(&self) -> usize {
        self.weights.all().into_iter().map(|(_, weight)| weight.bytes()).sum()
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
        let time = |weight: &Weight| {
            let (m, n) = weight.dim();
            let (x, mut y) = (device.zeros::<bf16, _>(n)?, device.zeros(m)?);
            least(device, || weight.gemv(&x, 0.0, &mut y))
        };
        let all = self.weights.all().into_iter();
        all.map(|(name, weight)| Ok((name.to_owned(), time(weight)?))).collect()
    }

    /// The time of all products for so many tokens at once, in microseconds. Each token has the bits of its own product.
    fn together(&self, device: &Device, columns: usize) -> Result<f64, Box<dyn Error>> {
        let mut all = 0.0;
        for (name, weight) in self.weights.all() {
            let (m, n) = weight.dim();
            let entry = |(j, c)| bf16::from_f32(((j * 37 + c * 11) % 101) as f32 / 50.0 - 1.0);
            let x = Array2::from_shape_fn((n, columns), entry);
            let (resident, mut y) = (device.matrix(&x)?, device.zeros::<bf16, _>((m, columns))?);
            all += least(device, || weight.many(&resident, &mut y))?;
            let y = y.download()?;
            for (c, (x, y)) in x.columns().into_iter().zip(y.columns()).enumerate() {
                let (x, mut one) = (device.vector(&x)?, device.zeros::<bf16, _>(m)?);
                weight.gemv(&x, 0.0, &mut one)?;
                if hash(&one.download()?) != hash(y) {
                    return Err(
                        format!("{name}: token {c} of {columns} has other bits by itself").into()
                    );
                }
            }
        }
        Ok(all)
    }

    /// One token. The host waits for nothing.
    fn decode(&mut self) -> gemv::Result<()> {
        self.normalise(0)?;
        let Layer { weights, x, h, q, k, v, heads, .. } = self;
        weights.query.gemv(h, 0.0, &mut *q)?;
        weights.key.gemv(h, 0.0, &mut *k)?;
        weights.value.gemv(h, 0.0, &mut *v)?;
        let shared = v.len();
        for group in 0..heads.len() / shared {
            heads.step_mut(group * shared..(group + 1) * shared, 1)?.assign(&*v)?;
        }
        weights.output.gemv(heads, 1.0, &mut *x)?;

        self.normalise(1)?;
        let Layer { weights, x, h, gates, act, .. } = self;
        let inner = act.len();
        match &weights.gate_up[..] {
            [both] => both.gemv(h, 0.0, &mut *gates)?,
            parts => {
                for (i, part) in parts.iter().enumerate() {
                    part.gemv(h, 0.0, gates.step_mut(i * inner..(i + 1) * inner, 1)?)?;
                }
            }
        }
        act.assign_product(&gates.step(..inner, 1), &gates.step(inner.., 1))?;
        weights.down.gemv(act, 1.0, &mut *x)
    }
}

/// The least time of some, in microseconds, after one that compiles.
fn least(device: &Device, mut product: impl FnMut() -> gemv::Result<()>) -> gemv::Result<f64> {
    product()?;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        best = best.min(device.backend().timed(&mut product)?.as_secs_f64());
    }
    Ok(best * 1e6)
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
