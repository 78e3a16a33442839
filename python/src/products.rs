//! `matvec`, `matmul` and `vecdot`: what fits, where the result goes, and the product itself.

use gemv::unstable::float_mode::in_default;
use gemv::unstable::fork::Once;
use gemv::unstable::{Dtype, Job, Number, for_types};
use gemv::{Accumulator, Device, Element, Engine};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyComplex, PyComplexMethods, PyFloat, PyInt, PyString, PyTuple};

use crate::array::Array;
use crate::errors;
use crate::ffi::place::{Library, Operand, Place, Plain};
use crate::ffi::{numpy, torch};
use crate::layout::{Axis, Layout, broadcast, merged};
use crate::operands;

/// A function of the array API.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Function {
    Matvec,
    Matmul,
    Vecdot(isize),
}

impl Function {
    fn name(self) -> &'static str {
        match self {
            Function::Matvec => "matvec",
            Function::Matmul => "matmul",
            Function::Vecdot(_) => "vecdot",
        }
    }
}

/// Which axes of m rows and k columns a result has.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    Matrix,
    /// k is 1 and has no axis.
    Column,
    /// Both are 1 and have none.
    Number,
}

/// A product that fits: a batch of matrices, m × n, times a batch of vectors, n × k.
struct Problem<'py> {
    /// As the caller gave them.
    operands: [Operand<'py>; 2],
    /// Which of them is the matrix.
    matrix: usize,
    /// Of whose library the result is: that of the vectors, as the caller sees it.
    receiver: usize,
    /// That of the matrix, and that of the vectors; both with the axes of a matrix as the last two.
    layouts: [Layout; 2],
    conj: bool,
    form: Form,
    /// Whether the result is the transpose of the product.
    transposed: bool,
    /// Of the result, row by row.
    result: Layout,
}

impl<'py> Problem<'py> {
    #[inline]
    fn new(of: Function, mut operands: [Operand<'py>; 2]) -> PyResult<Problem<'py>> {
        if operands.iter().any(Operand::is_packed) {
            operands = with_packed(of, operands)?;
        }
        let found = match of {
            Function::Matvec => matvec_shapes(&operands),
            Function::Matmul => matmul_shapes(&operands),
            Function::Vecdot(axis) => vecdot_shapes(&operands, axis)?,
        };
        let Some(Shapes { matrix, layouts, form, dim }) = found else {
            return Err(do_not_fit(of, &operands));
        };
        let (conj, transposed) = (matches!(of, Function::Vecdot(_)), false);
        // A resident array is the matrix of whoever multiplies by it, on either side.
        let is_resident =
            |of: usize| matches!(operands[of].library, Library::Resident | Library::Packed);
        let receiver = match 1 - matrix {
            vectors if is_resident(vectors) && !is_resident(matrix) => matrix,
            vectors => vectors,
        };
        let mut problem =
            Problem { operands, matrix, receiver, layouts, conj, form, transposed, result: dim };
        let (a, x) = (problem.matrix().dtype, problem.vectors().dtype);
        if !a.multiplies(x) {
            if !x.multiplies(a) {
                return Err(no_product(of.name(), &problem.operands));
            }
            // `A X` is the transpose of `Xᵀ Aᵀ`, whose sums have the same terms in the same order. Such pairs are real.
            problem.matrix = 1 - problem.matrix;
            problem.layouts = [problem.layouts[1].transposed(), problem.layouts[0].transposed()];
            (problem.transposed, problem.conj) = (true, false);
        }
        Ok(problem)
    }

    #[inline]
    fn matrix(&self) -> &Operand<'py> {
        &self.operands[self.matrix]
    }

    #[inline]
    fn vectors(&self) -> &Operand<'py> {
        &self.operands[1 - self.matrix]
    }

    /// An operand of the result's element type, the receiver if it is.
    #[inline]
    fn of_type(&self) -> &Operand<'py> {
        let receiver = &self.operands[self.receiver];
        if receiver.dtype == self.vectors().dtype { receiver } else { self.vectors() }
    }

    /// A result of the shape of this product as a batch of m × k.
    #[inline]
    fn of_result(&self, layout: &Layout) -> Layout {
        let layout = match self.form {
            Form::Matrix => *layout,
            Form::Column => layout.with_column(),
            Form::Number => layout.with_column().with_column(),
        };
        if self.transposed { layout.transposed() } else { layout }
    }

    /// The device of the operands that are resident, or that of products of host arrays.
    fn device(&self, py: Python<'_>) -> PyResult<&Device> {
        let foreign = |of: &Operand<'_>| {
            of.device.is_some() && matches!(of.library, Library::Torch(_) | Library::Interface(_))
        };
        match self.operands.each_ref().map(|operand| operand.device.as_ref()) {
            [Some(one), Some(other)]
                if one != other
                    && one.info().id == other.info().id
                    && !self.matrix().is_packed()
                    && self.operands.iter().any(|of| matches!(of.library, Library::Resident)) =>
            {
                let id = &one.info().id;
                Err(errors::value(format!(
                    "one operand is a gemv.Array on {id}, and the other is in memory of its own library there: pass both as \
                     arrays of that library, or gemv.asarray of a copy on the host, with device='{id}', for the other"
                )))
            }
            [Some(one), Some(other)] if one != other && self.matrix().is_packed() => {
                let (one, other) = (&one.info().id, &other.info().id);
                let places = match one == other {
                    true => {
                        format!("the packed matrix and the vectors are on two streams of {one}")
                    }
                    false => {
                        format!("the packed matrix is on {one}, and the vectors are on {other}")
                    }
                };
                Err(errors::value(format!("{places}: pass both on one{}", self.hint())))
            }
            [Some(one), Some(other)] if one != other => Err(two_devices(one, other)),
            [Some(device), Some(_)] => Ok(device),
            // A tensor of the host is not sent to a GPU without a word; an array of this package is there to be multiplied.
            [Some(device), None] | [None, Some(device)] if self.operands.iter().any(foreign) => {
                Err(errors::value(format!(
                    "the operands are on two devices, {} and the host: pass both on one{}",
                    device.info().id,
                    self.hint()
                )))
            }
            [Some(device), None] | [None, Some(device)] => Ok(device),
            [None, None] => default(py),
        }
    }

    /// How a packed matrix comes to the vectors.
    fn hint(&self) -> &'static str {
        match self.matrix().is_packed() {
            true => ", such as a.to_device(x) of the packed matrix a in the host's memory",
            false => "",
        }
    }

    /// Multiplications, about.
    fn work(&self) -> usize {
        self.result.entries().saturating_mul(self.layouts[0].last::<1>().0[0])
    }

    /// Computes it.
    #[inline]
    fn run(
        &self,
        py: Python<'_>,
        device: &Device,
        alpha: Number,
        beta: Number,
        y: &mut Place,
        layout: &Layout,
    ) -> PyResult<()> {
        let (a, x) = (self.matrix(), self.vectors());
        let alpha = match &a.place {
            Place::Packed(of) if of.scale != 1.0 && !alpha.is_zero() => {
                Number::new(in_default(|| of.scale * alpha.get::<f32>()))
            }
            _ => alpha,
        };
        let work = Batch {
            alpha,
            beta,
            conj: self.conj,
            types: [a.dtype, x.dtype],
            places: [&a.place, &x.place],
            layouts: [self.layouts[0], self.layouts[1], self.of_result(layout)],
        };
        // Other threads of Python wait for less than it takes to let them run.
        let small = self.work() < SMALL && device.info().host;
        if small { work.run(device, y) } else { py.detach(|| work.run(device, y)) }
            .map_err(errors::of)
    }
}

#[cold]
fn two_devices(one: &Device, other: &Device) -> PyErr {
    let (one, other) = (&one.info().id, &other.info().id);
    errors::value(match one == other {
        true => format!("the operands are on two streams of {one}: pass arrays of one stream"),
        false => {
            format!("the operands are on two devices, {one} and {other}: pass arrays of one device")
        }
    })
}

/// Multiplications during which the interpreter's lock is kept: about a microsecond.
const SMALL: usize = 1 << 13;

/// The device of products of host arrays, opened once.
fn default(py: Python<'_>) -> PyResult<&'static Device> {
    static DEFAULT: Once<gemv::Result<Device>> = Once::new();
    let device = match DEFAULT.get() {
        Some(device) => device,
        None => py.detach(|| DEFAULT.get_or_init(|| Engine::global().default_device())),
    };
    device.as_ref().map_err(|e| errors::of(e.clone()))
}

/// Operands that fit, as a matrix and vectors.
struct Shapes {
    matrix: usize,
    layouts: [Layout; 2],
    form: Form,
    dim: Layout,
}

fn matvec_shapes([a, x]: &[Operand<'_>; 2]) -> Option<Shapes> {
    let (a, x) = (&a.layout, &x.layout);
    if a.axes() < 2 || x.axes() < 1 {
        return None;
    }
    let ([m, n], [rows]) = (a.last::<2>().0, x.last::<1>().0);
    let dim = broadcast(&a.batch(2), &x.batch(1)).filter(|_| n == rows)?.with(m);
    Some(Shapes { matrix: 0, layouts: [*a, x.with_column()], form: Form::Column, dim })
}

fn matmul_shapes(operands: &[Operand<'_>; 2]) -> Option<Shapes> {
    let (a, x) = (&operands[0].layout, &operands[1].layout);
    match (a.axes(), x.axes()) {
        (0, _) | (_, 0) => None,
        (1, 1) => {
            let layouts = [a.with_row(), x.with_column()];
            let dim = (a.dim() == x.dim()).then(Layout::default)?;
            Some(Shapes { matrix: 0, layouts, form: Form::Number, dim })
        }
        // A vector times a matrix: the transpose times the vector.
        (1, _) => {
            let [n, k] = x.last::<2>().0;
            let dim = (a.dim() == [n]).then(|| x.batch(2).with(k))?;
            let layouts = [x.transposed(), a.with_column()];
            Some(Shapes { matrix: 1, layouts, form: Form::Column, dim })
        }
        (_, 1) => matvec_shapes(operands),
        _ => {
            let ([m, n], [rows, k]) = (a.last::<2>().0, x.last::<2>().0);
            let dim = broadcast(&a.batch(2), &x.batch(2)).filter(|_| n == rows)?.with(m).with(k);
            Some(Shapes { matrix: 0, layouts: [*a, *x], form: Form::Matrix, dim })
        }
    }
}

fn vecdot_shapes(operands: &[Operand<'_>; 2], axis: isize) -> PyResult<Option<Shapes>> {
    let last = |operand: &Operand<'_>| {
        let at = axis.checked_add_unsigned(operand.layout.axes()).filter(|_| axis < 0);
        let at = at.and_then(|at| usize::try_from(at).ok());
        at.map(|at| operand.layout.with_last(at)).ok_or_else(|| {
            errors::value(format!(
                "vecdot: an array of shape {} has no axis {axis}: it counts from the end, and is negative",
                errors::shape(operand.layout.dim())
            ))
        })
    };
    let (one, other) = (last(&operands[0])?, last(&operands[1])?);
    let fits = one.last::<1>().0 == other.last::<1>().0;
    let dim = broadcast(&one.batch(1), &other.batch(1)).filter(|_| fits);
    let layouts = [one.with_row(), other.with_column()];
    Ok(dim.map(|dim| Shapes { matrix: 0, layouts, form: Form::Number, dim }))
}

/// A product with a packed matrix, if there is one: it is on the left, and takes vectors that are summed in float32.
#[cold]
fn with_packed<'py>(of: Function, operands: [Operand<'py>; 2]) -> PyResult<[Operand<'py>; 2]> {
    let [a, x] = &operands;
    if x.is_packed() || matches!(of, Function::Vecdot(_)) {
        return Err(errors::kind(format!(
            "{}: a packed matrix is on the left of its products, a @ x: pass dequantize() of it here",
            of.name()
        )));
    }
    if !matches!(x.dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16) {
        return Err(errors::kind(format!(
            "{}: a packed matrix and {} have no product: pass vectors of float32, float16 or bfloat16",
            of.name(),
            x.dtype.numpy_name()
        )));
    }
    debug_assert!(a.is_packed());
    let [mut a, x] = operands;
    a.dtype = x.dtype;
    Ok([a, x])
}

#[cold]
fn do_not_fit(of: Function, [a, x]: &[Operand<'_>; 2]) -> PyErr {
    let (a, x) = (errors::shape(a.layout.dim()), errors::shape(x.layout.dim()));
    errors::value(match of {
        Function::Matvec => {
            format!("matvec: shapes {a} and {x} do not fit: (..., m, n) and (..., n) give (..., m)")
        }
        Function::Matmul => {
            format!(
                "matmul: shapes {a} and {x} do not fit: (..., m, n) and (..., n, k) give (..., m, k)"
            )
        }
        Function::Vecdot(axis) => {
            format!(
                "vecdot: shapes {a} and {x} do not fit along axis {axis}: (..., n) and (..., n) give (...)"
            )
        }
    })
}

#[cold]
fn no_product(of: &str, [a, x]: &[Operand<'_>; 2]) -> PyErr {
    let wide = |of: Dtype| matches!(of, Dtype::F64 | Dtype::C64);
    let common =
        match (a.dtype.is_complex() || x.dtype.is_complex(), wide(a.dtype) || wide(x.dtype)) {
            (true, true) => Dtype::C64,
            (true, false) => Dtype::C32,
            (false, true) => Dtype::F64,
            (false, false) => Dtype::F32,
        };
    let (a, x, common) = (a.dtype.numpy_name(), x.dtype.numpy_name(), common.numpy_name());
    let pairs = Dtype::MIXED.map(|(a, x)| format!("{} with {}", a.numpy_name(), x.numpy_name()));
    errors::kind(format!(
        "{of}: {a} and {x} have no product: both are of one type, or {}: pass both as {common}",
        pairs.join(", or ")
    ))
}

/// A batch of products, in which nothing is of Python.
struct Batch<'a> {
    alpha: Number,
    beta: Number,
    conj: bool,
    types: [Dtype; 2],
    places: [&'a Place; 2],
    /// Of A, X and Y, with the axes of a matrix as the last two.
    layouts: [Layout; 3],
}

impl Batch<'_> {
    fn run(&self, device: &Device, y: &mut Place) -> gemv::Result<()> {
        if let Place::Packed(of) = self.places[0]
            && of.device().is_none()
            && !device.backend().packed_in_place()
        {
            // For this one product, as other arrays of the host are.
            let there = Place::Packed(of.on(device)?);
            return Batch { places: [&there, self.places[1]], ..*self }.run(device, y);
        }
        let [.., of_y] = &self.layouts;
        if of_y.axes() == 2 && self.layouts[0].axes() == 2 && self.layouts[1].axes() == 2 {
            return self.one(device, y, [0; 3], Axis { entries: 1, apart: [0; 3] });
        }
        if of_y.is_empty() {
            return Ok(());
        }
        let batch = of_y.batch(2);
        let all = self.layouts.map(|layout| layout.batch(2).as_batch(&batch));
        let mut axes = merged(all.each_ref());
        let last = axes.pop().unwrap_or(Axis { entries: 1, apart: [0; 3] });
        // One launch for each entry of the other axes.
        let launches = axes.iter().map(|axis| axis.entries).product::<usize>();
        for mut launch in 0..launches {
            let mut offsets = [0isize; 3];
            for axis in axes.iter().rev() {
                let index = (launch % axis.entries) as isize;
                launch /= axis.entries;
                for (offset, apart) in offsets.iter_mut().zip(axis.apart) {
                    *offset += index * apart;
                }
            }
            self.one(device, y, offsets, last)?;
        }
        Ok(())
    }

    #[inline]
    fn one(
        &self,
        device: &Device,
        y: &mut Place,
        offsets: [isize; 3],
        batch: Axis,
    ) -> gemv::Result<()> {
        let by_columns = batch.entries > 1 && matches!(self.places[0], Place::Packed(_));
        if by_columns && self.layouts[2].last::<2>().0[1] != 1 {
            // A packed matrix has no batch.
            return (0..batch.entries as isize).try_for_each(|entry| {
                let at = [0, 1, 2].map(|of| offsets[of] + entry * batch.apart[of]);
                self.one(device, y, at, Axis { entries: 1, apart: [0; 3] })
            });
        }
        let three = |of: usize| {
            let ([rows, columns], [rs, cs]) = self.layouts[of].last::<2>();
            match by_columns {
                // Single vectors that share a matrix are columns.
                true => ([1, rows, batch.entries], [0, rs, batch.apart[of]]),
                false => ([batch.entries, rows, columns], [batch.apart[of], rs, cs]),
            }
        };
        let tensor = |of: usize| {
            let (dim, strides) = three(of);
            self.places[of].tensor(self.types[of], offsets[of], dim, strides)
        };
        let (dim, strides) = three(2);
        let (a, x, y) =
            (tensor(0), tensor(1), y.tensor_mut(self.types[1], offsets[2], dim, strides));
        device.compute(Job { alpha: self.alpha, a, conj: self.conj, x, beta: self.beta, y })
    }
}

/// A factor that a caller has given. It is read before the operands: to read it may run a program's own code, which may
/// change arrays whose addresses are taken.
#[derive(Clone, Copy)]
struct Factor {
    re: f64,
    im: f64,
    /// Whether it is complex, by its type or its value.
    is_complex: bool,
}

impl Factor {
    fn read(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Factor> {
        let py = value.py();
        if value.is_exact_instance_of::<PyFloat>() || value.is_exact_instance_of::<PyInt>() {
            return Ok(Factor { re: value.extract()?, im: 0.0, is_complex: false });
        }
        let no_number = || {
            let of = value.get_type().fully_qualified_name();
            let of = of.map(|of| of.to_string()).unwrap_or_default();
            errors::kind(format!("{name} is a {of}, and has to be a number"))
        };
        // `complex` reads texts, and takes no part away.
        if value.is_instance_of::<PyString>() {
            return Err(no_number());
        }
        let number = match py.get_type::<PyComplex>().call1((value,)) {
            Err(e) if e.is_instance_of::<PyTypeError>(py) => return Err(no_number()),
            other => other?.cast_into::<PyComplex>().map_err(PyErr::from)?,
        };
        let (re, im) = (number.real(), number.imag());
        Ok(Factor { re, im, is_complex: value.is_instance_of::<PyComplex>() || im != 0.0 })
    }

    /// As a number of the type in which vectors of this type are summed.
    fn of_type(self, dtype: Dtype, name: &str) -> PyResult<Number> {
        let Factor { re, im, is_complex } = self;
        if is_complex && !dtype.is_complex() {
            return Err(errors::kind(format!(
                "{name} is complex, and has to be a real number for vectors of {}",
                dtype.numpy_name()
            )));
        }
        Ok(for_types!((dtype, dtype), T, _V => {
            Number::new(<T as Element>::Acc::from_parts(re, im))
        }))
    }
}

/// The factors and the place that a caller may give.
#[derive(Clone, Copy, Default)]
struct Options<'a, 'py> {
    alpha: Option<Factor>,
    beta: Option<Factor>,
    out: Option<&'a Bound<'py, PyAny>>,
}

impl<'a, 'py> Options<'a, 'py> {
    fn read(
        alpha: Option<&Bound<'py, PyAny>>,
        beta: Option<&Bound<'py, PyAny>>,
        out: Option<&'a Bound<'py, PyAny>>,
    ) -> PyResult<Options<'a, 'py>> {
        let alpha = alpha.map(|value| Factor::read(value, "alpha")).transpose()?;
        let beta = beta.map(|value| Factor::read(value, "beta")).transpose()?;
        Ok(Options { alpha, beta, out })
    }

    /// Both factors for vectors of this type: 1 and 0 where none are given.
    fn factors(&self, dtype: Dtype) -> PyResult<(Number, Number)> {
        let (one, zero) = units(dtype);
        Ok((
            self.alpha.map_or(Ok(one), |alpha| alpha.of_type(dtype, "alpha"))?,
            self.beta.map_or(Ok(zero), |beta| beta.of_type(dtype, "beta"))?,
        ))
    }
}

/// The product of two objects.
#[inline]
fn multiply<'py>(
    of: Function,
    a: &Bound<'py, PyAny>,
    x: &Bound<'py, PyAny>,
    options: Options<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let [one, other] = match of {
        Function::Matvec => ["a", "x"],
        Function::Matmul => ["a", "b"],
        Function::Vecdot(_) => ["x1", "x2"],
    };
    product(a.py(), of, [operands::of(a, one)?, operands::of(x, other)?], options)
}

/// The product of two operands: in `out`, or in a new array of the library of the vectors.
#[inline]
fn product<'py>(
    py: Python<'py>,
    of: Function,
    operands: [Operand<'py>; 2],
    options: Options<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let problem = Problem::new(of, operands)?;
    let dtype = problem.vectors().dtype;
    let (alpha, beta) = options.factors(dtype)?;
    let device = problem.device(py)?;
    let result = &problem.result;
    if let Some(out) = options.out {
        let mut y = operands::of(out, "out")?;
        check_out(&problem, &y)?;
        let layout = y.layout;
        problem.run(py, device, alpha, beta, &mut y.place, &layout)?;
        return Ok(out.clone());
    }
    if !beta.is_zero() {
        return Err(errors::value("beta scales what is in out, which is not given"));
    }
    match &problem.operands[problem.receiver].library {
        Library::Packed => unreachable!("the result is of the library of the vectors"),
        Library::NumPy(_) => {
            let y = match &problem.of_type().library {
                Library::NumPy(like) => numpy::new_like(like, result.dim())?,
                _ => numpy::new(py, dtype, result.dim())?,
            };
            in_numpy(py, &problem, device, alpha, beta, y)
        }
        Library::Torch(x) => {
            let receiver = &problem.operands[problem.receiver];
            let (y, mut place, layout) = torch::new_beside(receiver, x, dtype, result, false)?;
            problem.run(py, device, alpha, beta, &mut place, &layout)?;
            Ok(y)
        }
        Library::Interface(x) => {
            let shape = PyTuple::new(py, result.dim())?;
            let y = interop(py, "empty_like")?.call1((x, shape, dtype.numpy_name()))?;
            let Operand { layout, mut place, .. } = operands::of(&y, "the result")?;
            problem.run(py, device, alpha, beta, &mut place, &layout)?;
            Ok(y)
        }
        Library::Resident => {
            let memory = py.detach(|| device.backend().alloc(dtype, result.entries()));
            let mut place = Place::New { memory: memory.map_err(errors::of)? };
            problem.run(py, device, alpha, beta, &mut place, result)?;
            Array::of_place(device.clone(), place, dtype, *result).into_object(py)
        }
        Library::Other(x, _) => {
            let y = numpy::new(py, dtype, result.dim())?;
            let y = in_numpy(py, &problem, device, alpha, beta, y)?;
            interop(py, "to_library_of")?.call1((x, y))
        }
    }
}

/// `mine @ other`, or `other @ mine`. Python asks the other object where it is no array: it may have a product with this.
pub fn operator<'py>(
    mine: Operand<'py>,
    other: &Bound<'py, PyAny>,
    mine_is_left: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = other.py();
    let name = if mine_is_left { "the right operand of @" } else { "the left operand of @" };
    let Some(other) = operands::if_any(other, name)? else {
        return Ok(py.NotImplemented().into_bound(py));
    };
    let operands = if mine_is_left { [mine, other] } else { [other, mine] };
    product(py, Function::Matmul, operands, Options::default())
}

/// In a new array of NumPy.
#[inline]
fn in_numpy<'py>(
    py: Python<'py>,
    problem: &Problem<'py>,
    device: &Device,
    alpha: Number,
    beta: Number,
    y: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut place = numpy::place(&y);
    problem.run(py, device, alpha, beta, &mut place, &problem.result)?;
    if problem.result.axes() == 0 { numpy::scalar(y) } else { Ok(y) }
}

/// A function for arrays of other libraries.
fn interop<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    PyModule::import(py, intern!(py, "gemv._interop"))?.getattr(name)
}

/// Refuses an `out` that the result cannot be written to.
fn check_out(problem: &Problem<'_>, y: &Operand<'_>) -> PyResult<()> {
    let dtype = problem.vectors().dtype;
    if y.dtype != dtype {
        let (has, is) = (y.dtype.numpy_name(), dtype.numpy_name());
        return Err(errors::kind(format!("out has entries of {has}, and the result is of {is}")));
    }
    if y.layout.dim() != problem.result.dim() {
        let (has, is) = (errors::shape(y.layout.dim()), errors::shape(problem.result.dim()));
        return Err(errors::value(format!("out has shape {has}, and the result has {is}")));
    }
    if matches!(y.library, Library::Resident) {
        return Err(errors::kind(
            "out is resident on a device, where a product of resident arrays is a new array: leave out away",
        ));
    }
    if !y.place.is_writable() {
        return Err(errors::value("out is read-only"));
    }
    let of = problem.operands.iter().find_map(|operand| operand.device.as_ref());
    if let (Some(one), Some(other)) = (of, &y.device)
        && one != other
    {
        return Err(two_devices(one, other));
    }
    if let (None, Some(device)) = (of, &y.device) {
        let id = &device.info().id;
        return Err(errors::value(format!(
            "out is on {id}, and the operands are in the host's memory"
        )));
    }
    if !y.layout.is_distinct() {
        return Err(errors::value("out has several entries at one place in memory"));
    }
    if problem.operands.iter().any(|operand| operand.overlaps(y)) {
        return Err(errors::value(
            "out overlaps an operand in memory, which the product would read and write: pass out=None, or other memory",
        ));
    }
    Ok(())
}

/// matvec(a, x, /, *, alpha=1, beta=0, out=None)
/// --
///
/// The matrix-vector product ``alpha * a @ x + beta * out``, in the one order of additions.
///
/// Parameters
/// ----------
/// a : array, shape (..., m, n), or gemv.Packed
///     Any strides: no copy is made.
/// x : array, shape (..., n)
///     Of the type of ``a``, or float32 with a matrix of float16 or bfloat16, float64 with one of float32.
/// alpha, beta : numbers, optional
///     ``beta`` needs ``out``, which is not read where it is 0.
/// out : array, shape (..., m), optional
///     Where the result goes; it overlaps neither ``a`` nor ``x``.
///
/// Returns
/// -------
/// array, shape (..., m)
///     ``out``, or a new array of the library of ``x``: NumPy, torch, JAX, or a resident :class:`gemv.Array` if both are.
///     Leading axes are broadcast.
///
/// Raises
/// ------
/// ValueError
///     If the shapes do not fit, an array is in the memory of a GPU, or ``out`` cannot be written.
/// TypeError
///     If an argument is no array, its entries are of another type, or two types have no product.
/// MemoryError, RuntimeError
///     From the device.
///
/// Examples
/// --------
/// >>> import numpy as np, gemv
/// >>> a = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
/// >>> gemv.matvec(a, np.array([1.0, -1.0]))
/// array([-1., -1., -1.])
/// >>> gemv.matvec(a.T, np.ones(3), out=np.zeros(2))
/// array([ 9., 12.])
#[pyfunction]
#[pyo3(signature = (a, x, /, *, alpha=None, beta=None, out=None), text_signature = None)]
pub fn matvec<'py>(
    a: &Bound<'py, PyAny>,
    x: &Bound<'py, PyAny>,
    alpha: Option<&Bound<'py, PyAny>>,
    beta: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    if alpha.is_none()
        && beta.is_none()
        && out.is_none()
        && let Some(y) = plain(a, x)
    {
        return y;
    }
    if alpha.is_none()
        && beta.is_none()
        && out.is_none()
        && let Some(y) = plain_tensors(a, x, true)?
    {
        return Ok(y);
    }
    multiply(Function::Matvec, a, x, Options::read(alpha, beta, out)?)
}

/// The product of a matrix and a vector of NumPy, if it is one that fits, of entries; else the general way says why.
#[inline]
fn plain<'py>(a: &Bound<'py, PyAny>, x: &Bound<'py, PyAny>) -> Option<PyResult<Bound<'py, PyAny>>> {
    let (matrix, vector) = (numpy::plain::<2>(a)?, numpy::plain::<1>(x)?);
    let [m, n] = matrix.dim;
    if vector.dim[0] != n || !matrix.dtype.multiplies(vector.dtype) {
        return None;
    }
    let py = a.py();
    let device = match default(py) {
        Ok(device) => device,
        Err(e) => return Some(Err(e)),
    };
    let y = match numpy::new_like(x, &[m]) {
        Ok(y) => y,
        Err(e) => return Some(Err(e)),
    };
    let mut place = numpy::place(&y);
    Some(run_plain(py, device, &matrix, &vector, &mut place).map(|()| y))
}

/// The same of torch's tensors.
#[inline]
fn plain_tensors<'py>(
    a: &Bound<'py, PyAny>,
    x: &Bound<'py, PyAny>,
    refuse_gradients: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(tensors) = torch::plain(a, x, refuse_gradients)? else { return Ok(None) };
    let torch::PlainTensors { matrix, vector, device, y, mut place } = tensors;
    let py = a.py();
    let device = match &device {
        Some(device) => device,
        None => default(py)?,
    };
    run_plain(py, device, &matrix, &vector, &mut place)?;
    Ok(Some(y))
}

#[inline]
fn run_plain(
    py: Python<'_>,
    device: &Device,
    matrix: &Plain,
    vector: &Plain,
    place: &mut Place,
) -> PyResult<()> {
    let [m, n] = matrix.dim;
    let mut compute = || {
        let [rs, cs] = matrix.strides;
        let a = matrix.place.tensor(matrix.dtype, 0, [1, m, n], [0, rs, cs]);
        let x = vector.place.tensor(vector.dtype, 0, [1, n, 1], [0, vector.strides[0], 0]);
        let y = place.tensor_mut(vector.dtype, 0, [1, m, 1], [0, 1, 0]);
        let (alpha, beta) = units(vector.dtype);
        device.compute(Job { alpha, a, conj: false, x, beta, y })
    };
    let small = m.saturating_mul(n) < SMALL && device.info().host;
    if small { compute() } else { py.detach(compute) }.map_err(errors::of)
}

/// The factors 1 and 0 for vectors of this type.
#[inline]
fn units(dtype: Dtype) -> (Number, Number) {
    for_types!((dtype, dtype), T, _V => {
        (Number::new(<T as Element>::Acc::ONE), Number::new(<T as Element>::Acc::ZERO))
    })
}

/// matmul(a, b, /, *, alpha=1, beta=0, out=None)
/// --
///
/// The matrix product ``alpha * a @ b + beta * out``; each column has the bits of :func:`gemv.matvec`.
///
/// Parameters
/// ----------
/// a : array, shape (..., m, n) or (n,), or gemv.Packed
/// b : array, shape (..., n, k) or (n,)
///     Types as those of :func:`gemv.matvec`; a matrix of float64 also with one of float32.
/// alpha, beta : numbers, optional
///     ``beta`` needs ``out``, which is not read where it is 0.
/// out : array, optional
///     Where the result goes; it overlaps neither operand.
///
/// Returns
/// -------
/// array, shape (..., m, k)
///     Without m where ``a`` is a vector, without k where ``b`` is; as of :func:`gemv.matvec`.
///
/// Raises
/// ------
/// ValueError, TypeError, MemoryError, RuntimeError
///     As :func:`gemv.matvec`.
///
/// Examples
/// --------
/// >>> import numpy as np, gemv
/// >>> a = np.array([[1.0, 2.0], [3.0, 4.0]])
/// >>> gemv.matmul(a, a)
/// array([[ 7., 10.],
///        [15., 22.]])
/// >>> gemv.matmul(np.ones(2), a)
/// array([4., 6.])
#[pyfunction]
#[pyo3(signature = (a, b, /, *, alpha=None, beta=None, out=None), text_signature = None)]
pub fn matmul<'py>(
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    alpha: Option<&Bound<'py, PyAny>>,
    beta: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    multiply(Function::Matmul, a, b, Options::read(alpha, beta, out)?)
}

/// vecdot(x1, x2, /, *, axis=-1)
/// --
///
/// The dot product of the conjugate of ``x1`` with ``x2`` along an axis.
///
/// Parameters
/// ----------
/// x1, x2 : arrays, shape (..., n)
///     Types as those of :func:`gemv.matvec`. Other axes are broadcast.
/// axis : int, optional
///     The axis of n entries, counted from the end.
///
/// Returns
/// -------
/// array or scalar, shape (...)
///
/// Raises
/// ------
/// ValueError, TypeError, MemoryError, RuntimeError
///     As :func:`gemv.matvec`; ValueError if there is no such axis.
///
/// Examples
/// --------
/// >>> import numpy as np, gemv
/// >>> float(gemv.vecdot(np.array([1.0, 2.0]), np.array([3.0, 4.0])))
/// 11.0
/// >>> gemv.vecdot(np.array([1j, 2.0]), np.array([[1j, 1.0], [1.0, 0j]]))
/// array([3.+0.j, 0.-1.j])
#[pyfunction]
#[pyo3(signature = (x1, x2, /, *, axis=-1), text_signature = None)]
pub fn vecdot<'py>(
    x1: &Bound<'py, PyAny>,
    x2: &Bound<'py, PyAny>,
    axis: isize,
) -> PyResult<Bound<'py, PyAny>> {
    multiply(Function::Vecdot(axis), x1, x2, Options::default())
}

/// For the operator of torch, where torch asks for its gradients: the product if there is nothing between, else None.
#[pyfunction]
#[pyo3(signature = (a, x, /))]
pub fn _direct_mv<'py>(
    a: &Bound<'py, PyAny>,
    x: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if !torch::is_direct(a, x)? {
        return Ok(None);
    }
    torch::refuse_forward_mode(a.py())?;
    plain_tensors(a, x, false)
}

/// For the operator of torch: a matrix times a vector.
#[pyfunction]
#[pyo3(signature = (a, x, /))]
pub fn _mv<'py>(a: &Bound<'py, PyAny>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    of_tensors(a, x, "mv", [2, 1])
}

/// For the operator of torch: a matrix times a matrix, by columns if that is.
#[pyfunction]
#[pyo3(signature = (a, b, /))]
pub fn _mm<'py>(a: &Bound<'py, PyAny>, b: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    of_tensors(a, b, "mm", [2, 2])
}

/// For the operator of torch: a batch of matrices times another.
#[pyfunction]
#[pyo3(signature = (a, b, /))]
pub fn _bmm<'py>(a: &Bound<'py, PyAny>, b: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    of_tensors(a, b, "bmm", [3, 3])
}

/// Below torch's autograd, tensors still say that they need gradients, and the operator has them.
fn of_tensors<'py>(
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    of: &str,
    axes: [usize; 2],
) -> PyResult<Bound<'py, PyAny>> {
    let py = a.py();
    torch::refuse_forward_mode(py)?;
    if axes == [2, 1]
        && let Some(y) = plain_tensors(a, b, false)?
    {
        return Ok(y);
    }
    let tensor = |of: &Bound<'py, PyAny>, name| match torch::torch(of)? {
        Some(torch) => torch.operand(of, name, false),
        None => Err(errors::kind(format!("{name} is no tensor of torch"))),
    };
    let operands = [tensor(a, "a")?, tensor(b, "b")?];
    let [one, other] = operands.each_ref().map(|operand| operand.layout.axes());
    let batches = |one: &Layout, other: &Layout| axes[1] < 3 || one.dim()[0] == other.dim()[0];
    let shapes = || operands.each_ref().map(|operand| errors::shape(operand.layout.dim()));
    if [one, other] != axes || !batches(&operands[0].layout, &operands[1].layout) {
        let ([a, b], [one, other]) = (shapes(), axes);
        return Err(errors::value(format!(
            "{of}: shapes {a} and {b} do not fit: it takes {one} and {other} axes"
        )));
    }
    let (n, rows) =
        (operands[0].layout.dim()[one - 1], operands[1].layout.dim()[axes[1].max(2) - 2]);
    if n != rows {
        let [a, b] = shapes();
        return Err(errors::value(format!(
            "{of}: shapes {a} and {b} do not fit: a has {n} columns, and the other {rows} rows"
        )));
    }
    if !operands[0].dtype.multiplies(operands[1].dtype) {
        return Err(no_product(of, &operands));
    }
    let by_columns = axes == [2, 2] && operands[1].layout.is_by_columns();
    let problem = Problem::new(Function::Matmul, operands)?;
    let dtype = problem.vectors().dtype;
    let (alpha, beta) = units(dtype);
    let device = problem.device(py)?;
    let receiver = &problem.operands[1];
    let (y, mut place, layout) =
        torch::new_beside(receiver, b, dtype, &problem.result, by_columns)?;
    problem.run(py, device, alpha, beta, &mut place, &layout)?;
    Ok(y)
}
