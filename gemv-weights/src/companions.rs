//! Matrices, put together from their tensors where there are several.

use gemv_desc::Dtype;
use gemv_packed::{
    Format, Fp8Scales, Fp8Tensors, Group, Int4Tensors, Mxfp4Tensors, Nvfp4Tensors, Scale,
};
use half::{bf16, f16};

use crate::entry::Elements;
use crate::error::Result;
use crate::file::{Tensor, WeightFile};
use crate::map::MatrixBytes;

/// A matrix of a file, row after row. It keeps the file open.
///
/// ```
/// use gemv::{GpuDot, unstable::Packed};
/// use gemv_weights::{Elements, WeightFile};
/// # gemv::Engine::global().set_default("reference").unwrap();
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/model.gguf");
///
/// let matrix = WeightFile::open(path)?.matrix("blk.0.ffn_up.weight")?;
/// let Elements::Packed(format) = matrix.elements else { panic!("numbers") };
/// // Nothing is copied.
/// let a = Packed::new(format, (matrix.rows, matrix.columns), matrix.bytes)?;
/// let y = a.gpu_dot(&vec![1.0_f32; a.ncols()]);
/// assert_eq!(y.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// What its elements are: numbers, or blocks of a packed format.
    pub elements: Elements,
    /// The elements: the file's own bytes, or blocks that were put together.
    pub bytes: MatrixBytes,
    /// A factor of the product, for its `alpha`: the scale of the tensor in NVFP4, else 1.
    pub alpha: f32,
}

const I32: Elements = Elements::Other("I32");
const U8: Elements = Elements::Other("U8");
const E4M3: Elements = Elements::Other("F8_E4M3");
const E8M0: Elements = Elements::Other("F8_E8M0");

impl WeightFile {
    /// The matrix of this name. All axes of its tensor but the last are rows.
    ///
    /// | in the file | the matrix |
    /// |---|---|
    /// | a tensor of numbers, or of a packed format of GGUF | its own bytes; the `scale` of an NVFP4 tensor `weight` of GGUF is its `alpha` |
    /// | `weight` in F8_E4M3 with `weight_scale_inv` or `weight_scale` | [`Format::Fp8`]: a scale for 128 × 128 elements, for a row, or for all |
    /// | `qweight`, `qzeros`, `scales`, `g_idx` or none | [`Format::Int4`]: GPTQ or AWQ, by the shapes. `g_idx` must be in order |
    /// | `weight` in U8 with `weight_scale` in F8_E4M3 and `weight_scale_2` | [`Format::Nvfp4`]; `weight_scale_2` is its `alpha` |
    /// | `weight_packed` with `weight_scale` in F8_E4M3 and `weight_global_scale` | the same; `alpha` is 1 / `weight_global_scale` |
    /// | `weight_packed` with `weight_scale` in U8 or F8_E8M0 | [`Format::Mxfp4`] |
    /// | `.._blocks` with `.._scales`, both U8 | the same; the last two axes of `.._blocks` are columns |
    ///
    /// The name may be that of the tensor, that of the layer, or end in `.weight` where the file has `.qweight` or
    /// `.weight_packed`. See [`gptq_version`](Self::gptq_version).
    ///
    /// # Errors
    ///
    /// There is no such tensor, or one that belongs to it; they are of other types, or their shapes do not fit together.
    pub fn matrix(&self, name: &str) -> Result<Matrix> {
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        let ends = ["", ".weight", ".qweight", ".weight_packed", "_blocks"];
        let names = ends
            .iter()
            .map(|end| if end.is_empty() { name.into() } else { format!("{layer}{end}") });
        let tensor = names.into_iter().find_map(|name: String| self.find(&name));
        let Some(tensor) = tensor else {
            return Err(self.tensor(name).err().expect("it is not there"));
        };
        match tensor.elements() {
            Elements::Packed(Format::Nvfp4) => {
                let scale =
                    tensor.name().strip_suffix(".weight").map(|layer| format!("{layer}.scale"));
                let alpha = scale.and_then(|name| self.find(&name)).map(|of| self.number(&of));
                self.whole(&tensor, alpha.transpose()?.unwrap_or(1.0))
            }
            Elements::Plain(_) | Elements::Packed(_) => self.whole(&tensor, 1.0),
            E4M3 => self.fp8(&tensor),
            I32 if tensor.name().ends_with(".qweight") => self.int4(&tensor),
            U8 if tensor.name().ends_with("_blocks") => self.mxfp4(&tensor),
            U8 => self.fp4(&tensor),
            other => Err(self.error(format!(
                "the tensor {:?} is {other}, of which there are no products",
                tensor.name()
            ))),
        }
    }

    fn whole(&self, of: &Tensor<'_>, alpha: f32) -> Result<Matrix> {
        let (rows, columns) = of.rows_and_columns();
        Ok(Matrix { rows, columns, elements: of.elements(), bytes: self.shared(of), alpha })
    }

    fn packed(
        &self,
        rows: usize,
        columns: usize,
        format: Format,
        of: &Tensor<'_>,
        bytes: gemv_packed::Result<Vec<u8>>,
    ) -> Result<Matrix> {
        let bytes = bytes.map_err(|e| self.error(format!("the tensor {:?}: {e}", of.name())))?;
        Ok(Matrix {
            rows,
            columns,
            elements: Elements::Packed(format),
            bytes: MatrixBytes::owned(bytes),
            alpha: 1.0,
        })
    }

    /// A tensor that belongs to another.
    fn beside(&self, of: &Tensor<'_>, name: String) -> Result<Tensor<'_>> {
        let missing =
            || self.error(format!("the tensor {:?} has no {name:?} beside it", of.name()));
        self.find(&name).ok_or_else(missing)
    }

    /// Its elements as f32.
    fn numbers(&self, of: &Tensor<'_>) -> Result<Vec<f32>> {
        let (pairs, quads) =
            (of.bytes().as_chunks::<2>().0.iter(), of.bytes().as_chunks::<4>().0.iter());
        Ok(match of.elements() {
            Elements::Plain(Dtype::F32) => quads.map(|b| f32::from_le_bytes(*b)).collect(),
            Elements::Plain(Dtype::F16) => pairs.map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            Elements::Plain(Dtype::Bf16) => {
                pairs.map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
            }
            E8M0 => of.bytes().iter().map(|e| power(*e)).collect(),
            other => {
                return Err(self.error(format!(
                    "the scales {:?} are {other}, not f32, f16, bf16 or F8_E8M0",
                    of.name()
                )));
            }
        })
    }

    /// The only element of a tensor.
    fn number(&self, of: &Tensor<'_>) -> Result<f32> {
        match self.numbers(of)?[..] {
            [number] => Ok(number),
            ref all => Err(self.error(format!(
                "the scale {:?} has {} elements, not one",
                of.name(),
                all.len()
            ))),
        }
    }

    fn fp8(&self, weight: &Tensor<'_>) -> Result<Matrix> {
        let (rows, columns) = weight.rows_and_columns();
        let name = weight.name();
        let inverse = self.find(&format!("{name}_scale_inv"));
        let scale = match inverse {
            Some(scale) => scale,
            None => self.beside(weight, format!("{name}_scale"))?,
        };
        let numbers = self.numbers(&scale)?;
        let of_blocks = [rows.div_ceil(128), columns / 128];
        let scales = match numbers.len() {
            1 => Fp8Scales::Tensor(numbers[0]),
            _ if scale.shape() == of_blocks => Fp8Scales::Blocks(&numbers),
            len if len == rows && matches!(scale.shape(), [_] | [_, 1]) => {
                Fp8Scales::Rows(&numbers)
            }
            _ => {
                let shape = scale.shape();
                let [m, n] = of_blocks;
                return Err(self.error(format!(
                    "the scales {:?} have the shape {shape:?}: for {rows} × {columns} elements [{m}, {n}], [{rows}], [{rows}, 1] and [1] are known", scale.name()
                )));
            }
        };
        let blocks = Fp8Tensors { rows, columns, codes: weight.bytes(), scales }.pack();
        self.packed(rows, columns, Format::Fp8, weight, blocks)
    }

    fn int4(&self, qweight: &Tensor<'_>) -> Result<Matrix> {
        let layer = qweight.name().strip_suffix("qweight").expect("a name that ends so");
        let (qzeros, scales) = (
            self.beside(qweight, format!("{layer}qzeros"))?,
            self.beside(qweight, format!("{layer}scales"))?,
        );
        let fits =
            |reason: String| self.error(format!("the tensor {:?}: {reason}", qweight.name()));
        let shapes = (qweight.shape(), qzeros.shape(), scales.shape());
        let (&[k, w], &[_, z], &[groups, rows]) = shapes else {
            return Err(fits(format!(
                "it, qzeros and scales have the shapes {shapes:?}, where each has two axes"
            )));
        };
        let scale = match scales.elements() {
            Elements::Plain(Dtype::F16) => Scale::F16,
            Elements::Plain(Dtype::Bf16) => Scale::Bf16,
            other => return Err(fits(format!("its scales are {other}, not f16 or bf16"))),
        };
        if qzeros.elements() != I32 {
            return Err(fits(format!("its zeros are {}, not I32", qzeros.elements())));
        }
        // Both have zeros in words of 8 rows; GPTQ has words of 8 columns, AWQ of 8 rows.
        let (gptq, columns) = match rows {
            0 => return Err(fits("it has no rows".into())),
            rows if z.checked_mul(8) != Some(rows) => {
                return Err(fits(format!(
                    "{z} words of zeros for {rows} rows: its codes have not 4 bits"
                )));
            }
            rows if w == rows => (true, k.saturating_mul(8)),
            rows if w.checked_mul(8) == Some(rows) => (false, k),
            _ => {
                return Err(fits(format!(
                    "the shapes {shapes:?} of it, qzeros and scales are neither those of GPTQ nor of AWQ"
                )));
            }
        };
        let group = columns.checked_div(groups).filter(|group| group * groups == columns);
        let group = group.and_then(Group::of).ok_or_else(|| {
            fits(format!(
                "{groups} groups of {columns} columns: groups of 32, 64, 128 and 256 are known"
            ))
        })?;
        if let Some(order) = self.find(&format!("{layer}g_idx")) {
            let words = order.bytes().as_chunks::<4>().0;
            let of = |column: usize| (column / group.columns()) as i32;
            let in_order = words
                .iter()
                .enumerate()
                .all(|(column, word)| i32::from_le_bytes(*word) == of(column));
            if order.elements() != I32 || words.len() != columns || !in_order {
                return Err(fits("its g_idx is not in order: columns were sorted (act-order), which no format here has".into()));
            }
        }
        let (qweight_bytes, qzeros, scales) = (qweight.bytes(), qzeros.bytes(), scales.bytes());
        let tensors =
            Int4Tensors { rows, columns, group, scale, qweight: qweight_bytes, qzeros, scales };
        let blocks = if gptq { tensors.gptq(self.gptq_version) } else { tensors.awq() };
        self.packed(rows, columns, Format::Int4 { group, scale }, qweight, blocks)
    }

    /// Codes of e2m1, two in a byte: NVFP4 or MXFP4, by the type of their scales.
    fn fp4(&self, weight: &Tensor<'_>) -> Result<Matrix> {
        let name = weight.name();
        let layer = name.strip_suffix("_packed").unwrap_or(name);
        let scale = self.beside(weight, format!("{layer}_scale"))?;
        let (rows, half) = weight.rows_and_columns();
        let (columns, codes, scales) = (half.saturating_mul(2), weight.bytes(), scale.bytes());
        match scale.elements() {
            E4M3 => {
                let (global, second) =
                    (format!("{layer}_global_scale"), format!("{layer}_scale_2"));
                let alpha = match self.find(&global) {
                    Some(global) => 1.0 / self.number(&global)?,
                    None => self.number(&self.beside(weight, second)?)?,
                };
                let blocks = Nvfp4Tensors { rows, columns, codes, scales }.pack();
                Ok(Matrix { alpha, ..self.packed(rows, columns, Format::Nvfp4, weight, blocks)? })
            }
            U8 | E8M0 => {
                let blocks = Mxfp4Tensors { rows, columns, codes, scales }.pack();
                self.packed(rows, columns, Format::Mxfp4, weight, blocks)
            }
            other => Err(self.error(format!(
                "the scales {:?} are {other}, not F8_E4M3, F8_E8M0 or U8",
                scale.name()
            ))),
        }
    }

    fn mxfp4(&self, codes: &Tensor<'_>) -> Result<Matrix> {
        let layer = codes.name().strip_suffix("_blocks").expect("a name that ends so");
        let scales = self.beside(codes, format!("{layer}_scales"))?;
        let (rows, of_row) = scales.rows_and_columns();
        if scales.elements() != U8 {
            return Err(self.error(format!(
                "the scales {:?} are {}, not U8",
                scales.name(),
                scales.elements()
            )));
        }
        let columns = of_row.saturating_mul(32);
        let blocks =
            Mxfp4Tensors { rows, columns, codes: codes.bytes(), scales: scales.bytes() }.pack();
        self.packed(rows, columns, Format::Mxfp4, codes, blocks)
    }
}

/// What an e8m0 stands for: 2^(e - 127), or NaN.
fn power(e: u8) -> f32 {
    match e {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        e => f32::from_bits(u32::from(e) << 23),
    }
}
