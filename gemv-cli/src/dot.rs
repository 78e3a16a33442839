//! `gemv dot`: the product of arrays in NumPy files.

use std::fmt::Display;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use gemv::unstable::{Params, for_types, packed};
use gemv::{Accumulator, Dtype, Element, GpuDot, Times, ToDevice};
use gemv_lab::device::open_device;
use gemv_lab::files::{Output, is_same};
use gemv_lab::parse::parse_bytes;
use gemv_shard::SumElement;
use half::{bf16, f16};
use indicatif::{ProgressBar, ProgressStyle};
use ndarray::{Array3, Axis, ShapeBuilder};

use crate::npy::{self, Npy, Number};
use crate::weights;

/// Multiply a matrix and a vector, or several, in NumPy files: y = alpha A x + beta y.
///
/// The files (.npy, formats 1.0 to 3.0) hold arrays of C or Fortran order and of either byte order,
/// all of one type: float16, float32, float64, complex64, complex128, or bfloat16 as numpy.save
/// writes an array of ml_dtypes (type V2; view the result with y.view(ml_dtypes.bfloat16)). A may also be
/// narrower: of float16 or bfloat16 with the others of float32, or of float32 with the others of float64.
///
/// A matrix m x n takes a vector of n entries, or a matrix n x k, whose columns are k vectors; the
/// result has m entries, or is m x k. A batch of matrices (three axes: batch x m x n) takes a vector
/// for each (batch x n), or a matrix for each (batch x n x k); the result is batch x m, or batch x m x
/// k. Each column has the bits of its own product.
///
/// The result has the shape that numpy.matmul gives, but in two cases. A vector may have one axis or one
/// column, and its result has one axis. And batch x n are the vectors of a batch, where numpy.matmul
/// takes two axes for one matrix, to be multiplied by all. One array is not repeated for a batch.
///
/// A member of an archive is named behind it (arrays.npz:x);
/// of a single one the archive's name will do. One of the arrays may be - for standard input.
///
/// A may be a matrix of a file of weights, GGUF or safetensors, named behind it
/// (model.gguf:blk.0.ffn_up.weight); gemv info FILE lists them. A packed one, such as of Q4_K, takes x of
/// float16, bfloat16 or float32.
///
/// A matrix that is larger than --window is read in parts, by all processors, and never held whole: memory
/// holds the vectors and at most the window, however large the file is. A GPU gets the next part while it
/// computes. On the CPU a file by rows (C order) is faster, since its parts stay in the caches.
///
/// The result has the same bits on every device.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The matrix, m x n, or a batch of them, batch x m x n
    #[arg(value_name = "A.npy|FILE:NAME")]
    a: PathBuf,
    /// The vector, n entries (m with --transpose), or the matrix, n x k; for a batch of matrices batch x n
    /// or batch x n x k
    #[arg(value_name = "x.npy")]
    x: PathBuf,
    /// Write the result here, as a .npy file of x's type, - for standard output [default: as text.
    /// A vector has one entry a line, an array of two axes one row a line with spaces between the
    /// entries, one of three axes an empty line between its matrices; a comma separates the parts of a
    /// complex number]
    #[arg(short, long, value_name = "y.npy")]
    output: Option<PathBuf>,
    /// Multiply the product by this; "re,im" for complex arrays
    #[arg(long, value_name = "NUMBER", default_value = "1", allow_hyphen_values = true)]
    #[arg(value_parser = Factor::parse)]
    alpha: Factor,
    /// Add --y multiplied by this; 0 does not use what is in it
    #[arg(long, value_name = "NUMBER", requires = "y", allow_hyphen_values = true)]
    #[arg(value_parser = Factor::parse)]
    beta: Option<Factor>,
    /// The array that --beta is for, of the result's shape; the file is not written to (unless -o names
    /// it)
    #[arg(long, value_name = "y0.npy", requires = "beta")]
    y: Option<PathBuf>,
    /// Use the transpose of A, or of each matrix of a batch
    #[arg(short, long)]
    transpose: bool,
    /// Use the complex conjugate of A
    #[arg(long)]
    conj: bool,
    /// Compute there, such as cpu or cuda:0 (see gemv info) [default: GEMV_BACKEND, or what the
    /// library chooses]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Use this kernel and these parameters in place of the table's, such as "row rows=4"
    #[arg(long, value_name = "PARAMS", conflicts_with = "conj")]
    params: Option<Params>,
    /// Refuse a result of more bytes than this that is also larger than A and x together: a number, or one with
    /// K, M or G. (A file of a few bytes may announce a matrix of any number of rows without columns.)
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = parse_bytes)]
    max_result: u64,
    /// Read a matrix of more bytes than this in parts, and hold no more of it at a time: a number, or one
    /// with K, M or G. (With one vector, of a file by itself, without --conj and --params. The arrays are
    /// read whole otherwise.)
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = parse_bytes)]
    window: u64,
}

/// A factor as text, so that it is rounded once, to the type of the computation.
#[derive(Debug, Clone)]
struct Factor {
    re: String,
    im: Option<String>,
}

impl Factor {
    fn parse(text: &str) -> Result<Factor, String> {
        let (re, im) = match text.split_once(',') {
            Some((re, im)) => (re.trim(), Some(im.trim())),
            None => (text.trim(), None),
        };
        for part in [Some(re), im].into_iter().flatten() {
            part.parse::<f64>().map_err(|_| format!("{part:?} is no number"))?;
        }
        Ok(Factor { re: re.into(), im: im.map(Into::into) })
    }

    fn value<T: Element>(&self, option: &str) -> Result<T::Acc> {
        let part = |text: &str| -> Result<f64> {
            // An f32 that is widened here is narrowed back to itself.
            let single = || Ok(text.parse::<f32>()?.into());
            if T::DTYPE.needs_f64() { Ok(text.parse()?) } else { single() }
        };
        ensure!(
            self.im.is_none() || T::DTYPE.is_complex(),
            "{option} is complex, but the arrays hold {}",
            T::DTYPE.numpy_name()
        );
        let im = self.im.as_deref().map_or(Ok(0.0), part)?;
        Ok(T::Acc::from_parts(part(&self.re)?, im))
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    let inputs = [Some(&args.a), Some(&args.x), args.y.as_ref()];
    let piped = inputs.into_iter().flatten().filter(|path| path.as_os_str() == "-").count();
    ensure!(piped < 2, "only one of the arrays can be standard input");
    let a = match weights::open(&args.a)? {
        Some(weights::Matrix::Packed(a)) => return packed_product(&args, &a),
        Some(weights::Matrix::Plain(a)) => a,
        None => Npy::open(&args.a)?,
    };
    let x = Npy::open(&args.x)?;
    let (matrix, vectors) = (a.dtype(), x.dtype());
    ensure!(
        matrix.multiplies(vectors),
        "{}: the array holds {}, but {} holds {}; both must be of one type, or the matrix and x of {}: {}",
        x.name(),
        vectors.numpy_name(),
        a.name(),
        matrix.numpy_name(),
        Dtype::MIXED
            .map(|(a, x)| format!("{} and {}", a.numpy_name(), x.numpy_name()))
            .join(", or "),
        one_type(matrix, vectors)
    );
    for_types!((matrix, vectors), T, V => product::<T, V, _>(&args, a, x))
}

/// How to give a matrix and a vector types that have a product: by as few copies as it takes, without loss.
fn one_type(matrix: Dtype, vectors: Dtype) -> String {
    let holds = |wide: Dtype, narrow: Dtype| match (wide, narrow) {
        (Dtype::F16, Dtype::Bf16) | (Dtype::Bf16, Dtype::F16) => false,
        (Dtype::C32, Dtype::F64) => false,
        (wide, narrow) => {
            (wide.bytes(), wide.is_complex()) >= (narrow.bytes(), narrow.is_complex())
        }
    };
    let widest = [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64, Dtype::C32, Dtype::C64];
    let both = widest.into_iter().find(|wide| holds(*wide, matrix) && holds(*wide, vectors));
    let both = both.unwrap_or(Dtype::C64);
    // x is the smaller copy, where it is enough.
    let (a, x) = if matrix.multiplies(both) { (matrix, both) } else { (both, both) };
    let save = |name: &str, dtype: Dtype| format!("{name}.astype({:?})", dtype.numpy_name());
    let saved = [(a != matrix).then(|| save("A", a)), (x != vectors).then(|| save("x", x))];
    format!("save {}", saved.into_iter().flatten().collect::<Vec<_>>().join(" and "))
}

/// The shapes of a product.
struct Shapes {
    batch: usize,
    m: usize,
    n: usize,
    rhs: usize,
    /// Of the result.
    y: Vec<usize>,
}

impl Shapes {
    /// What the product of these two is.
    fn of(args: &Args, dim: &[usize], x: &Npy) -> Result<Shapes> {
        let a = args.a.display();
        let (batch, [rows, columns]) = match *dim {
            [rows, columns] => (None, [rows, columns]),
            [batch, rows, columns] => (Some(batch), [rows, columns]),
            _ => bail!("{} has 2, and a batch of matrices 3", axes(&a, dim, "a matrix")),
        };
        let (m, n) = if args.transpose { (columns, rows) } else { (rows, columns) };
        let of = if args.transpose { "the transpose of " } else { "" };
        let is = format!("{of}{a} is {m} x {n}");
        let (rhs, y) = match (batch, x.dim()) {
            (None, &[len]) | (None, &[len, 1]) => {
                let entries = if len == 1 { "entry" } else { "entries" };
                ensure!(
                    len == n,
                    "{}: the vector has {len} {entries}, but {is}, so x needs {n}",
                    x.name()
                );
                (1, vec![m])
            }
            (None, &[len, k]) => {
                let there = format!("{}: the right-hand sides are {len} x {k}", x.name());
                ensure!(len == n, "{there}, but {is}, so x needs {n} rows");
                (k, vec![m, k])
            }
            (None, _) => {
                bail!("{} has 1, and a matrix of several 2", axes(&x.name(), x.dim(), "a vector"))
            }
            (Some(batch), &[entries, len, ref sides @ ..]) if sides.len() < 2 => {
                let (what, needs) = match sides {
                    [] => ("the vectors are", ""),
                    _ => ("the right-hand sides are", " x k"),
                };
                let there = format!("{}: {what} {}", x.name(), dims(x.dim()));
                let each = format!("{of}each of the {batch} matrices of {a} is {m} x {n}");
                let fits = (entries, len) == (batch, n);
                ensure!(fits, "{there}, but {each}, so x needs {batch} x {n}{needs}");
                (sides.first().copied().unwrap_or(1), [&[batch, m], sides].concat())
            }
            (Some(_), _) => {
                bail!(
                    "{} has 2 or 3: batch x n or batch x n x k",
                    axes(&x.name(), x.dim(), "for a batch of matrices it")
                )
            }
        };
        Ok(Shapes { batch: batch.unwrap_or(1), m, n, rhs, y })
    }

    /// Refuses a result that is larger than its operands, and than what is allowed.
    fn allow(&self, element: usize, operands: u64, most: u64) -> Result<()> {
        let bytes = self.y.iter().fold(element as u128, |all, &d| all.saturating_mul(d as u128));
        ensure!(
            bytes <= u128::from(most.max(operands)),
            "the result ({}) has {bytes} bytes, far more than the operands: --max-result {bytes} allows it",
            dims(&self.y)
        );
        Ok(())
    }

    /// Whether it is one product with one vector.
    fn is_single(&self) -> bool {
        self.y.len() == 1
    }
}

/// A shape, as it is written everywhere.
fn dims(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
}

/// The beginning of a refusal: how many axes an array has, but what it should be.
fn axes(name: &dyn Display, dim: &[usize], what: &str) -> String {
    let is = dim.len();
    let axes = if is == 1 { "axis" } else { "axes" };
    format!("{name}: the array has {is} {axes}, but {what}")
}

fn product<T, V, S>(args: &Args, a: Npy, x: Npy) -> Result<()>
where
    T: Number + Times<V> + Times<S>,
    V: Number + Element<Acc = S>,
    S: SumElement,
{
    // Everything is checked before anything large is read.
    let shapes = Shapes::of(args, a.dim(), &x)?;
    shapes.allow(size_of::<V>(), a.bytes() + x.bytes(), args.max_result)?;
    let y = initial(args, &shapes, &x)?;
    let output = args.output.as_deref().map(|path| place(args, y.as_ref(), path)).transpose()?;
    let alpha = args.alpha.value::<V>("--alpha")?;
    let beta = args.beta.as_ref().map_or(Ok(V::Acc::ZERO), |b| b.value::<V>("--beta"))?;
    let device = open_device(args.device.as_deref())?;

    if let Some(params) = &args.params {
        let reads = device.backend().read_params();
        let only_reads = reads.iter().any(|read| read.kernel() == params.kernel());
        ensure!(!only_reads, "{} only reads the matrix; it computes no product", params.kernel());
    }

    let Shapes { batch, m, n, rhs, .. } = shapes;
    let whole = args.conj || args.params.is_some() || a.dim().len() != 2 || rhs != 1;
    let streamed = if whole { None } else { a.streamed(args.window)? };
    let x = array::<V>(x, (batch, n, rhs))?;
    let (rows, columns) = if args.transpose { (n, m) } else { (m, n) };
    // Before y is made: what a pipe or an archive announces may not be there.
    let held = match streamed {
        Some(_) => None,
        None => Some(array::<T>(a, (batch, rows, columns))?),
    };
    let mut y = result::<V>(y, (batch, m, rhs))?;
    if let Some(mut a) = streamed {
        if args.transpose {
            a = a.transposed();
        }
        let bar = progress();
        let told = |read, of| {
            bar.set_length(of);
            bar.set_position(read);
        };
        let x = x.flatten();
        let y = y.as_slice_mut().context("an array without gaps")?;
        let done = a.gemv::<T, V, S>(&device, alpha, &x, beta, y, told);
        bar.finish_and_clear();
        done?;
    } else if let Some(mut a) = held {
        if args.transpose {
            a.swap_axes(1, 2);
        }
        if args.conj {
            a.mapv_inplace(T::conj);
        }
        device.product(&a, &x).with_if(args.params.as_ref()).scaled(alpha, beta).to(&mut y)?;
    }

    finish(args, &shapes, output, &y)
}

/// A packed matrix times x, which has elements of these types.
fn packed_product(args: &Args, a: &weights::Packed) -> Result<()> {
    for (used, option) in [
        (args.transpose, "--transpose"),
        (args.conj, "--conj"),
        (args.params.is_some(), "--params"),
    ] {
        let (name, format) = (args.a.display(), a.blocks.format());
        ensure!(
            !used,
            "{option}: {name} is packed as {format}, and has products of its rows alone"
        );
    }
    let x = Npy::open(&args.x)?;
    match x.dtype() {
        Dtype::F32 => packed_with_f32(args, a, x),
        Dtype::F16 => packed_with_f16(args, a, x),
        Dtype::Bf16 => packed_with_bf16(args, a, x),
        other => bail!(
            "{}: the array holds {}, but {} is packed as {}, and takes {}, {} and {}",
            x.name(),
            other.numpy_name(),
            args.a.display(),
            a.blocks.format(),
            Dtype::F32.numpy_name(),
            Dtype::F16.numpy_name(),
            Dtype::Bf16.numpy_name()
        ),
    }
}

macro_rules! packed_with {
    ($($name:ident $v:ty;)*) => { $(
        fn $name(args: &Args, a: &weights::Packed, x: Npy) -> Result<()> {
            let (m, n) = a.blocks.dim();
            let shapes = Shapes::of(args, &[m, n], &x)?;
            let operands = a.blocks.bytes().len() as u64 + x.bytes();
            shapes.allow(size_of::<$v>(), operands, args.max_result)?;
            let y = initial(args, &shapes, &x)?;
            let output = args.output.as_deref().map(|path| place(args, y.as_ref(), path));
            let output = output.transpose()?;
            let mut alpha = args.alpha.value::<$v>("--alpha")?;
            if a.alpha != 1.0 {
                alpha *= a.alpha;
            }
            let beta = args.beta.as_ref().map_or(Ok(0.0), |b| b.value::<$v>("--beta"))?;
            let x = array::<$v>(x, (1, n, shapes.rhs))?;
            let mut y = result::<$v>(y, (1, m, shapes.rhs))?;
            let into = y.index_axis_mut(Axis(0), 0);
            let x = x.index_axis(Axis(0), 0);
            // On the default device the bytes of the file are not copied, unless its memory is another.
            match &args.device {
                Some(_) => {
                    let device = open_device(args.device.as_deref())?;
                    a.blocks.to_device(&device)?.try_gemv(alpha, &x, beta, into)?
                }
                None => a.blocks.try_gemv(alpha, &x, beta, into)?,
            }
            finish(args, &shapes, output, &y)
        }
    )* };
}
packed_with! {
    packed_with_f32 f32;
    packed_with_f16 f16;
    packed_with_bf16 bf16;
}

/// Writes the result.
fn finish<V: Number>(
    args: &Args,
    shapes: &Shapes,
    output: Option<Output>,
    y: &Array3<V>,
) -> Result<()> {
    match output {
        Some(output) => {
            let y = y.as_slice().context("an array without gaps")?;
            npy::write(output, &shapes.y, y).with_context(|| {
                format!(
                    "cannot write {}",
                    args.output.as_deref().unwrap_or(Path::new("-")).display()
                )
            })
        }
        None => Ok(print(shapes, y)?),
    }
}

/// The array that is added, which must be of the result's shape.
fn initial(args: &Args, shapes: &Shapes, x: &Npy) -> Result<Option<Npy>> {
    let y = args.y.clone().map(|path| operand(path, x)).transpose()?;
    if let Some(y) = &y {
        let column = shapes.is_single() && *y.dim() == [shapes.m, 1];
        let text = |shape: &[usize]| {
            if shape.is_empty() { "a single number".into() } else { dims(shape) }
        };
        ensure!(
            *y.dim() == *shapes.y || column,
            "{}: the array's shape is {}, but y needs {}",
            y.name(),
            text(y.dim()),
            text(&shapes.y)
        );
    }
    Ok(y)
}

/// Where the result goes. It may take the place of y alone, where that is a file of its own.
fn place(args: &Args, y: Option<&Npy>, path: &Path) -> Result<Output> {
    // An archive holds other arrays too.
    let y = args.y.as_ref().filter(|_| y.is_some_and(|y| !y.is_file()));
    for (operand, what) in [(Some(&args.a), "the matrix"), (Some(&args.x), "x"), (y, "y")] {
        let Some(operand) = operand.filter(|_| path != Path::new("-")) else { continue };
        ensure!(
            !is_same(path, weights::file(npy::parts(operand).0)),
            "{}: this is the file of {what}, which is not overwritten: name another one",
            path.display()
        );
    }
    Output::open(path)
}

/// What is shown of a matrix that is read in parts, where standard error is a terminal.
fn progress() -> ProgressBar {
    let style = "{bytes} of {total_bytes} [{elapsed}] {wide_bar} {bytes_per_sec}, {eta} left";
    let style = ProgressStyle::with_template(style).expect("a constant template");
    ProgressBar::new(0).with_style(style)
}

/// Reads an array, as a batch of matrices.
fn array<T: Number>(file: Npy, dim: (usize, usize, usize)) -> Result<Array3<T>> {
    let shape = dim.set_f(file.fortran());
    Array3::from_shape_vec(shape, file.read::<T>()?).context("the shape of its own header")
}

/// What the product is added to, or zeros. Its last index runs fastest, as in the file that is written.
fn result<T: Number>(y: Option<Npy>, dim: (usize, usize, usize)) -> Result<Array3<T>> {
    if let Some(y) = y {
        let y = array::<T>(y, dim)?;
        let standard = y.is_standard_layout();
        return Ok(if standard { y } else { Array3::from_shape_vec(dim, packed(&y.view())?)? });
    }
    let len = dim.0.checked_mul(dim.1).and_then(|len| len.checked_mul(dim.2));
    let len = len.context("the result has more entries than can be addressed")?;
    let mut y = Vec::new();
    y.try_reserve_exact(len).with_context(|| format!("no memory for {len} entries of y"))?;
    y.resize(len, T::default());
    Ok(Array3::from_shape_vec(dim, y)?)
}

/// Opens y, which must be of x's type.
fn operand(path: PathBuf, x: &Npy) -> Result<Npy> {
    let file = Npy::open(&path)?;
    ensure!(
        file.dtype() == x.dtype(),
        "{}: the array holds {}, but {} holds {}; both must be of one type: save y.astype({:?})",
        file.name(),
        file.dtype().numpy_name(),
        x.name(),
        x.dtype().numpy_name(),
        x.dtype().numpy_name()
    );
    Ok(file)
}

fn print<T: Number>(shapes: &Shapes, y: &Array3<T>) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut line = |values: &mut dyn Iterator<Item = &T>| {
        let mut between = "";
        for v in values {
            write!(out, "{between}{}", v.text())?;
            between = " ";
        }
        writeln!(out)
    };
    let entries = y.as_slice().unwrap_or_default();
    match *shapes.y {
        [_] => entries.iter().try_for_each(|v| line(&mut std::iter::once(v)))?,
        [rows, columns] => {
            (0..rows).try_for_each(|i| line(&mut entries[i * columns..(i + 1) * columns].iter()))?
        }
        _ => {
            for (b, y) in y.outer_iter().enumerate() {
                if b > 0 {
                    line(&mut std::iter::empty())?;
                }
                y.outer_iter().try_for_each(|y| line(&mut y.iter()))?;
            }
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `numpy.result_type` of each pair (NumPy 2.4), but where a narrower matrix has a product.
    #[test]
    fn types_that_have_a_product_after_a_copy() {
        for (matrix, vectors, save) in [
            (Dtype::F64, Dtype::F32, "save x.astype(\"float64\")"),
            (Dtype::F32, Dtype::F16, "save x.astype(\"float32\")"),
            (Dtype::F16, Dtype::Bf16, "save x.astype(\"float32\")"),
            (Dtype::Bf16, Dtype::F64, "save A.astype(\"float64\")"),
            (Dtype::F32, Dtype::C32, "save A.astype(\"complex64\")"),
            (Dtype::C32, Dtype::F32, "save x.astype(\"complex64\")"),
            (Dtype::F64, Dtype::C32, "save A.astype(\"complex128\") and x.astype(\"complex128\")"),
            (Dtype::C32, Dtype::F64, "save A.astype(\"complex128\") and x.astype(\"complex128\")"),
            (Dtype::C64, Dtype::F16, "save x.astype(\"complex128\")"),
        ] {
            assert_eq!(one_type(matrix, vectors), save, "{matrix} {vectors}");
        }
        for matrix in Dtype::ALL {
            for vectors in Dtype::ALL.into_iter().filter(|v| !matrix.multiplies(*v)) {
                assert!(one_type(matrix, vectors).contains("astype"), "{matrix} {vectors}");
            }
        }
    }
}
