//! Packed matrices: rounded from numbers, or of a file.

use std::error::Error;

use gemv::half::{bf16, f16};
use gemv::{Device, Dtype, Format, Packed, ToDevice};
use gemv_weights::{Elements, WeightFile};
use ndarray::{Array2, ArrayView2};
use rayon::prelude::*;

use crate::weight::{Weight, Weights};

/// A layer's tensors in GGUF and in safetensors.
const NAMES: [(&str, &str); 9] = [
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
];

/// Rounds a matrix, by all processors, and uploads it.
pub fn rounded(device: &Device, format: Format, a: &Array2<bf16>) -> gemv::Result<Weight> {
    let mut bytes = vec![0; format.row_bytes(a.ncols()).map_err(gemv::Error::Packed)? * a.nrows()];
    let row = format.row_bytes(a.ncols()).map_err(gemv::Error::Packed)?;
    bytes.par_chunks_mut(row).enumerate().try_for_each(|(i, blocks)| {
        let row: Vec<f32> = a.row(i).iter().map(|v| v.to_f32()).collect();
        format.quantize(&row, blocks).map_err(gemv::Error::Packed)
    })?;
    Ok(Weight::Packed(Packed::new(format, a.dim(), bytes)?.to_device(device)?, 1.0))
}

/// A layer of a file, by the names of llama.cpp or of transformers.
pub fn layer(device: &Device, path: &str, layer: usize) -> Result<Weights, Box<dyn Error>> {
    let file = WeightFile::open(path)?;
    let is_gguf = file.tensors().any(|tensor| tensor.name().starts_with("blk."));
    let name = |i: usize| match is_gguf {
        true => format!("blk.{layer}.{}.weight", NAMES[i].0),
        false => format!("model.layers.{layer}.{}.weight", NAMES[i].1),
    };
    let weight = |i: usize| -> Result<Weight, Box<dyn Error>> {
        let matrix = file.matrix(&name(i))?;
        let dim = (matrix.rows, matrix.columns);
        match matrix.elements {
            Elements::Plain(Dtype::Bf16) => {
                let numbers = numbers(&matrix.bytes, bf16::from_le_bytes);
                let a = ArrayView2::from_shape(dim, &numbers)?;
                Ok(Weight::Plain(device.matrix(&a)?))
            }
            Elements::Packed(format) => {
                let a = Packed::new(format, dim, matrix.bytes)?;
                Ok(Weight::Packed(a.to_device(device)?, matrix.alpha))
            }
            other => {
                Err(format!("{path}: {:?} is {other}, neither bf16 nor packed", name(i)).into())
            }
        }
    };
    let norm = |i: usize| -> Result<Option<Vec<bf16>>, Box<dyn Error>> {
        let norm = file.matrix(&name(i))?;
        let wide = |bytes| bf16::from_f32(f32::from_le_bytes(bytes));
        Ok(Some(match norm.elements {
            Elements::Plain(Dtype::F32) => numbers(&norm.bytes, wide),
            Elements::Plain(Dtype::Bf16) => numbers(&norm.bytes, bf16::from_le_bytes),
            Elements::Plain(Dtype::F16) => {
                numbers(&norm.bytes, |bytes| bf16::from_f32(f16::from_le_bytes(bytes).to_f32()))
            }
            other => return Err(format!("{path}: {:?} is {other}", name(i)).into()),
        }))
    };
    let weights = Weights {
        query: weight(0)?,
        key: weight(1)?,
        value: weight(2)?,
        output: weight(3)?,
        gate_up: vec![weight(4)?, weight(5)?],
        down: weight(6)?,
        norms: [norm(7)?, norm(8)?],
    };
    let (heads, hidden) = weights.query.dim();
    let (shared, _) = weights.key.dim();
    let (inner, _) = weights.gate_up[0].dim();
    let dims: Vec<_> = weights.all().iter().map(|(_, weight)| weight.dim()).collect();
    let (narrow, up) = ((shared, hidden), (inner, hidden));
    let want = [(heads, hidden), narrow, narrow, (hidden, heads), up, up, (hidden, inner)];
    let norms = weights.norms.iter().flatten().all(|norm| norm.len() == hidden);
    if dims != want || !norms || shared == 0 || heads % shared != 0 {
        return Err(
            format!("{path}: the shapes of layer {layer} do not fit together: {dims:?}").into()
        );
    }
    Ok(weights)
}

fn numbers<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> bf16) -> Vec<bf16> {
    bytes.as_chunks().0.iter().map(|bytes| number(*bytes)).collect()
}
