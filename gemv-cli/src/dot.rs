//! `gemv dot`: the product of arrays in NumPy files.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use gemv::unstable::{Desc, Params};
use gemv::{Accumulator, Dtype, Element, Engine, MatrixRef, VectorMut};
use half::{bf16, f16};
use ndarray::{Array1, Array2, ArrayView1, ShapeBuilder};
use num_complex::Complex;

use crate::npy::{self, Npy, Number};

/// Multiply a matrix and a vector in NumPy files: y = alpha A x + beta y.
///
/// The files (.npy, formats 1.0 to 3.0) hold arrays of C or Fortran order and of either byte order,
/// all of one type: float16, float32, float64, complex64, complex128, or bfloat16 as numpy.save
/// writes an array of ml_dtypes (type V2; view the result with y.view(ml_dtypes.bfloat16)).
///
/// A vector may have one axis or one column. A member of an archive is named behind it (arrays.npz:x);
/// of a single one the archive's name will do. One of the arrays may be - for standard input.
///
/// The result has the same bits on every device.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The matrix, m x n
    #[arg(value_name = "A.npy")]
    a: PathBuf,
    /// The vector, n entries (m with --transpose)
    #[arg(value_name = "x.npy")]
    x: PathBuf,
    /// Write the result here, as a .npy file of the same type, - for standard output [default: as text, one entry a line,
    /// parts of a complex number separated by a comma]
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
    /// The vector that --beta is for; the file is not written to (unless -o names it)
    #[arg(long, value_name = "y0.npy", requires = "beta")]
    y: Option<PathBuf>,
    /// Use the transpose of A
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
            T::DTYPE
        );
        let im = self.im.as_deref().map_or(Ok(0.0), part)?;
        Ok(T::Acc::from_parts(part(&self.re)?, im))
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    let inputs = [Some(&args.a), Some(&args.x), args.y.as_ref()];
    let piped = inputs.into_iter().flatten().filter(|path| path.as_os_str() == "-").count();
    ensure!(piped < 2, "only one of the arrays can be standard input");
    let a = Npy::open(&args.a)?;
    match a.dtype() {
        Dtype::F32 => product::<f32>(&args, a),
        Dtype::F64 => product::<f64>(&args, a),
        Dtype::F16 => product::<f16>(&args, a),
        Dtype::Bf16 => product::<bf16>(&args, a),
        Dtype::C32 => product::<Complex<f32>>(&args, a),
        Dtype::C64 => product::<Complex<f64>>(&args, a),
    }
}

fn product<T: Number>(args: &Args, a: Npy) -> Result<()> {
    // Everything is checked before anything large is read.
    let [rows, columns] = a.shape()?;
    let x = vector::<T>(args.x.clone(), &a)?;
    let y = args.y.clone().map(|path| vector::<T>(path, &a)).transpose()?;
    let (m, n) = if args.transpose { (columns, rows) } else { (rows, columns) };
    let fits = |file: &Npy, what: &str, len: usize| -> Result<()> {
        let (is, name) = (file.vector_len()?, file.name());
        let of = if args.transpose { "the transpose of " } else { "" };
        let entries = if is == 1 { "entry" } else { "entries" };
        ensure!(
            is == len,
            "{name}: the vector has {is} {entries}, but {of}{} is {m} x {n}, so {what} needs {len}",
            a.name()
        );
        Ok(())
    };
    fits(&x, "x", n)?;
    y.as_ref().map_or(Ok(()), |y| fits(y, "y", m))?;
    let alpha = args.alpha.value::<T>("--alpha")?;
    let beta = args.beta.as_ref().map_or(Ok(T::Acc::ZERO), |b| b.value::<T>("--beta"))?;
    let engine = Engine::global();
    let strides = if a.fortran() != args.transpose { (1, m) } else { (n, 1) };
    let strides = (strides.0 as isize, strides.1 as isize);
    let device = match (&args.device, &args.params) {
        (Some(name), _) => engine.device(name)?,
        // Parameters belong to a backend, so the device must not depend on the shape.
        (None, Some(_)) => engine.default_device()?,
        (None, None) => engine.device_for(&Desc::new(T::DTYPE, m, n, strides, 0))?.clone(),
    };

    if let Some(params) = &args.params {
        let reads = device.backend().read_params();
        let only_reads = reads.iter().any(|read| read.kernel() == params.kernel());
        ensure!(!only_reads, "{} only reads the matrix; it computes no product", params.kernel());
    }

    let shape = (rows, columns).set_f(a.fortran());
    let a = Array2::from_shape_vec(shape, a.read::<T>()?).context("the shape of its own header")?;
    let a = if args.transpose { a.reversed_axes() } else { a };
    let x = Array1::from_vec(x.read::<T>()?);
    let mut y = match y {
        Some(y) => Array1::from_vec(y.read::<T>()?),
        None => zeros(m)?,
    };
    let (matrix, result) = (MatrixRef::Host(a.view()), VectorMut::Host(y.view_mut()));
    match &args.params {
        Some(params) => device.gemv_as(params, alpha, matrix, &x, beta, result)?,
        None if args.conj => device.gemv_conj(alpha, matrix, &x, beta, result)?,
        None => device.gemv(alpha, matrix, &x, beta, result)?,
    }

    match &args.output {
        Some(path) => npy::write(path, y.as_slice().context("a vector without gaps")?),
        None => Ok(print(y.view())?),
    }
}

/// A vector for the result. That of a matrix without columns can be longer than any file.
fn zeros<T: Number>(len: usize) -> Result<Array1<T>> {
    let mut y = Vec::new();
    y.try_reserve_exact(len).with_context(|| format!("no memory for {len} entries of y"))?;
    y.resize(len, T::default());
    Ok(Array1::from_vec(y))
}

/// Opens a vector of the matrix's type.
fn vector<T: Number>(path: PathBuf, a: &Npy) -> Result<Npy> {
    let file = Npy::open(&path)?;
    file.vector_len()?;
    ensure!(
        file.dtype() == T::DTYPE,
        "{}: the array holds {}, but {} holds {}; both must be of one type",
        file.name(),
        file.dtype(),
        a.name(),
        T::DTYPE
    );
    Ok(file)
}

fn print<T: Number>(y: ArrayView1<'_, T>) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    y.iter().try_for_each(|v| writeln!(out, "{}", v.text()))?;
    out.flush()
}
