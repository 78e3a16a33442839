//! [CLBlast](https://github.com/CNugteren/CLBlast) as a rival of the products, for benchmarks: `vendor-clblast`.
//!
//! With beta = 0 it reads y all the same. So what a host y becomes is set to zero before; a NaN in a resident y stays.

use gemv_core::{Checked, Desc, Dtype, Error, Job, Layout, Number, Params, Result};
use ocl::core::Mem;

use crate::cl::{Clblast, Place, Queue, clblast};
use crate::discover::Found;
use crate::memory::{Slot, State};
use crate::run::{Finish, fetch, output, there};

pub(crate) const NAME: &str = "vendor-clblast";

/// Loads the CLBlast that [`CLBLAST_ENV`](crate::CLBLAST_ENV) names, once a process.
///
/// ```
/// match gemv::opencl::load_clblast() {
///     Ok(()) => println!("`gemv bench` compares with it"),
///     Err(why) => assert!(why.contains("GEMV_CLBLAST"), "{why}"),
/// }
/// ```
///
/// # Errors
/// A sentence that says why there is none.
pub fn load_clblast() -> Result<(), &'static str> {
    clblast().map(|_| ())
}

/// A problem that the library takes.
#[derive(Debug)]
pub(crate) struct Choice {
    desc: Desc,
    library: &'static Clblast,
}

impl Choice {
    /// # Errors
    /// Why it does not take it.
    pub(crate) fn new(desc: &Desc, params: &Params) -> Result<Choice, String> {
        let library = clblast().map_err(|why| format!("{NAME} is not there: {why}"))?;
        let refused = [
            (*params != Params::new(NAME), "takes no arguments"),
            (desc.is_mixed(), "is for a matrix and vectors of one type"),
            (![Dtype::F32, Dtype::F64].contains(&desc.dtype), "is for f32 and f64"),
            (desc.layout == Layout::Strided, "knows matrices by rows and by columns only"),
            (desc.batch > 1, "is for one product"),
            (desc.n == 0, "is for matrices with columns"),
        ];
        match refused.into_iter().find(|(refused, _)| *refused) {
            Some((_, why)) => Err(format!("{NAME} {why}")),
            None => Ok(Choice { desc: *desc, library }),
        }
    }
}

/// Computes one job. A host Y is written on return; one of resident operands alone may still be in flight.
///
/// # Panics
/// If the choice is for another problem, or an operand is another device's or of another type.
pub(crate) fn product(
    found: &Found,
    state: &mut State,
    choice: &Choice,
    job: &mut Checked<Job<'_>>,
) -> Result<()> {
    assert_eq!(job.desc(), choice.desc, "a choice for another problem");
    let Job { alpha, a: a_in, x: x_in, beta, .. } = **job;
    let (a_data, x_data) = (a_in.span()?, x_in.span()?);
    let a = there(found, state, Slot::A, &a_in, a_data.as_ref())?;
    let x = there(found, state, Slot::X, &x_in, x_data.as_ref())?;
    let y = output(found, state, &job.y, !beta.is_zero())?;
    if job.y.window().is_none() && beta.is_zero() {
        // The library reads it.
        let zeroed = state.queue.zero(y.mem(), job.y.len() * job.y.dtype().bytes());
        zeroed.map_err(|e| found.failed(e, 0))?;
    }
    let queue = &state.queue;
    let finish = (a.is_borrowed() || x.is_borrowed()).then(|| Finish(queue));
    let operands = [&a, &x, &y].map(|of| (of.mem(), of.first, [of.strides[1], of.strides[2]]));
    enqueue(found, queue, choice, (alpha, beta), operands)?;
    fetch(found, queue, finish, job.y(), (y.mem(), 0))
}

/// The library's call for A, X and Y: their buffers, first elements, and distances of rows and of columns.
fn enqueue(
    found: &Found,
    queue: &Queue,
    choice: &Choice,
    (alpha, beta): (Number, Number),
    operands: [(&Mem, usize, [isize; 2]); 3],
) -> Result<()> {
    let Choice { desc, library } = choice;
    let Desc { m, n, rhs, .. } = *desc;
    if m == 0 {
        return Ok(());
    }
    let dims = [(m, n), (n, rhs), (m, rhs)];
    let lies = |((mem, first, strides), dim)| {
        let (by_rows, far) = leading(dim, strides)?;
        Some(Place { mem, first, by_rows, far })
    };
    let [Some(a), Some(x), Some(y)] = zip(operands, dims).map(lies) else {
        return Err(Error::Params {
            device: found.info.id.clone(),
            desc: *desc,
            params: NAME.into(),
            reason: format!("{NAME} has one distance for each operand, which is positive"),
        });
    };
    let factor = |of: Number| match desc.vectors {
        Dtype::F32 => of.get::<f32>().into(),
        _ => of.get::<f64>(),
    };
    let factors = (factor(alpha), factor(beta));
    library
        .enqueue(queue, desc.dtype, [m, n, rhs], factors, [a, x, y])
        .map_err(|e| found.failed(e, 0))
}

fn zip<A, B, const N: usize>(a: [A; N], b: [B; N]) -> [(A, B); N] {
    let mut b = b.into_iter();
    a.map(|a| (a, b.next().expect("as many")))
}

/// Whether a matrix lies by rows, and the distance of its rows, or else of its columns; none if neither axis has stride 1 or
/// the distance is too small.
fn leading((rows, cols): (usize, usize), [row, col]: [isize; 2]) -> Option<(bool, usize)> {
    // The stride of an axis of one entry means nothing.
    let along = |count: usize, stride: isize| count == 1 || stride == 1;
    let apart = |count: usize, stride: isize, least: usize| match count {
        1 => Some(least),
        _ => usize::try_from(stride).ok().filter(|far| *far >= least),
    };
    let by_rows = || apart(rows, row, cols).filter(|_| along(cols, col));
    let by_columns = || apart(cols, col, rows).filter(|_| along(rows, row));
    by_rows().map(|far| (true, far)).or_else(|| by_columns().map(|far| (false, far)))
}
