//! Decodes by layers of random weights, with gemv and with candle's own `matmul`: the time of a step for 1, 2, 4 and 8 rows,
//! and whether the bits of a row depend on how many there are.
//!
//! ```text
//! cargo run --release --manifest-path gemv-candle/Cargo.toml --example decode
//! cargo run --release --manifest-path gemv-candle/Cargo.toml --features cuda --example decode -- cuda
//! ```
//!
//! A second argument is the number of entries of a token: 1024, or 4096 on CUDA, where an 8B model has them.
//!
//! It fails if a row's bits depend on the others with gemv, or if CUDA's are not the CPU's.

use std::time::Instant;

use gemv_candle::candle_core::{D, DType, Device, Error, Result, Tensor};

const ROWS: [usize; 4] = [1, 2, 4, 8];

/// A product of rows with a weight `[out, in]`.
type Multiply = fn(&Tensor, &Tensor) -> Result<Tensor>;

type Way = (&'static str, Multiply);

const WAYS: [Way; 2] = [("gemv", gemv_candle::linear), ("candle", |x, w| x.matmul(&w.t()?))];

/// Entries of a token, of what is between two weights, numbers of layers and of tokens.
#[derive(Clone, Copy)]
struct Sizes {
    hidden: usize,
    inner: usize,
    layers: usize,
    tokens: usize,
}

/// The gated layers of a language model, without attention.
struct Model {
    embedding: Tensor,
    layers: Vec<[Tensor; 3]>,
    head: Tensor,
}

impl Model {
    fn random(sizes: Sizes, device: &Device) -> Result<Model> {
        let Sizes { hidden, inner, layers, tokens } = sizes;
        let weight =
            |out: usize, n: usize| Tensor::randn(0f32, 1.0 / (n as f32).sqrt(), (out, n), device);
        let layer =
            |_| Ok([weight(inner, hidden)?, weight(inner, hidden)?, weight(hidden, inner)?]);
        Ok(Model {
            embedding: Tensor::randn(0f32, 1.0, (tokens, hidden), device)?,
            layers: (0..layers).map(layer).collect::<Result<_>>()?,
            head: weight(tokens, hidden)?,
        })
    }

    fn to_dtype(&self, dtype: DType) -> Result<Model> {
        let layer = |[gate, up, down]: &[Tensor; 3]| {
            Ok([gate.to_dtype(dtype)?, up.to_dtype(dtype)?, down.to_dtype(dtype)?])
        };
        Ok(Model {
            embedding: self.embedding.to_dtype(dtype)?,
            layers: self.layers.iter().map(layer).collect::<Result<_>>()?,
            head: self.head.to_dtype(dtype)?,
        })
    }

    /// The logits that follow these tokens, one row each.
    fn logits(&self, tokens: &Tensor, multiply: Multiply) -> Result<Tensor> {
        let mut x = self.embedding.index_select(tokens, 0)?;
        for [gate, up, down] in &self.layers {
            let h = normalized(&x)?;
            let inner = (multiply(&h, gate)?.silu()? * multiply(&h, up)?)?;
            x = (x + multiply(&inner, down)?)?;
        }
        multiply(&normalized(&x)?, &self.head)
    }
}

fn normalized(x: &Tensor) -> Result<Tensor> {
    x.broadcast_div(&(x.sqr()?.mean_keepdim(D::Minus1)? + 1e-6)?.sqrt()?)
}

fn bits(of: &Tensor) -> Result<Vec<u32>> {
    let numbers = of.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    Ok(numbers.into_iter().map(f32::to_bits).collect())
}

/// Rows whose bits are other ones together than alone, and all rows.
fn depending(model: &Model, multiply: Multiply) -> Result<(usize, usize)> {
    let tokens = Tensor::arange(0u32, ROWS[3] as u32, model.head.device())?;
    let alone = |row| bits(&model.logits(&tokens.narrow(0, row, 1)?, multiply)?);
    let alone = (0..ROWS[3]).map(alone).collect::<Result<Vec<_>>>()?;
    let (mut other, mut all) = (0, 0);
    for &k in &ROWS[1..] {
        let together = model.logits(&tokens.narrow(0, 0, k)?, multiply)?;
        for (row, alone) in alone.iter().enumerate().take(k) {
            other += usize::from(bits(&together.get(row)?)? != *alone);
            all += 1;
        }
    }
    Ok((other, all))
}

/// The least time of some work that is queued several times, for each way; they take turns.
fn times(device: &Device, ways: &[Way], work: impl Fn(Multiply) -> Result<()>) -> Result<Vec<f64>> {
    let at_once = if device.is_cuda() { 20 } else { 1 };
    let mut least = vec![f64::MAX; ways.len()];
    for _ in 0..10 {
        for ((_, multiply), least) in ways.iter().zip(&mut least) {
            device.synchronize()?;
            let start = Instant::now();
            for _ in 0..at_once {
                work(*multiply)?;
            }
            device.synchronize()?;
            *least = least.min(start.elapsed().as_secs_f64() / f64::from(at_once));
        }
    }
    Ok(least)
}

fn print_times(
    what: &str,
    device: &Device,
    ways: &[Way],
    work: impl Fn(usize, Multiply) -> Result<()>,
) -> Result<()> {
    println!("  {what}, in microseconds");
    for k in ROWS {
        let times = times(device, ways, |multiply| work(k, multiply))?;
        let text =
            ways.iter().zip(&times).map(|((name, _), time)| format!("{name} {:9.1}", time * 1e6));
        let ratio = times.get(1).map(|theirs| format!(", ratio {:.2}", theirs / times[0]));
        let text = text.collect::<Vec<_>>().join(", ");
        println!("    {k} rows: {text}{}", ratio.unwrap_or_default());
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let cuda = match args.next().as_deref() {
        None | Some("cpu") => false,
        Some("cuda") => true,
        Some(other) => return Err(Error::msg(format!("{other:?} is neither cpu nor cuda"))),
    };
    let device = if cuda { Device::new_cuda(0)? } else { Device::Cpu };
    let hidden = match args.next() {
        None => 1024 << (2 * u32::from(cuda)),
        Some(text) => text.parse().map_err(Error::wrap)?,
    };
    let sizes = Sizes { hidden, inner: hidden * 7 / 2, layers: 4, tokens: 8 * hidden };
    let Sizes { inner, layers, tokens, .. } = sizes;
    println!(
        "{layers} layers of {hidden} and {inner}, {tokens} tokens, on {:?}",
        device.location()
    );
    let weights = Model::random(sizes, &device)?;
    for dtype in [DType::F32, DType::BF16] {
        println!("{}", dtype.as_str());
        let model = weights.to_dtype(dtype)?;
        let (gate, x) = (&model.layers[0][0], normalized(&model.embedding.narrow(0, 0, 16)?)?);
        let mut ways = Vec::new();
        for (name, multiply) in WAYS {
            // candle has no product of some types on some devices.
            match multiply(&x.narrow(0, 0, 1)?, gate).and_then(|_| depending(&model, multiply)) {
                Ok((other, all)) => {
                    println!("  {name}: {other} of {all} rows have other bits together than alone");
                    if name == "gemv" && other > 0 {
                        return Err(Error::msg("a row of gemv depends on the others"));
                    }
                    ways.push((name, multiply));
                }
                Err(why) if name == "candle" => println!("  {name}: {why}"),
                Err(why) => return Err(why),
            }
        }
        if cuda {
            for k in ROWS {
                let x = x.narrow(0, 3, k)?;
                let here = bits(&gemv_candle::linear(&x, gate)?)?;
                let (x, gate) = (x.to_device(&Device::Cpu)?, gate.to_device(&Device::Cpu)?);
                if here != bits(&gemv_candle::linear(&x, &gate)?)? {
                    return Err(Error::msg(format!("{k} rows have other bits than on the CPU")));
                }
            }
            println!("  gemv: the CPU's bits");
        }
        print_times(&format!("{inner} x {hidden} by rows"), &device, &ways, |k, multiply| {
            multiply(&x.narrow(0, 0, k)?, gate).map(drop)
        })?;
        let tokens = Tensor::arange(0u32, ROWS[3] as u32, &device)?;
        print_times("a step, to the next tokens", &device, &ways, |k, multiply| {
            model.logits(&tokens.narrow(0, 0, k)?, multiply)?.argmax(D::Minus1).map(drop)
        })?;
    }
    Ok(())
}
