//! [CLBlast](https://github.com/CNugteren/CLBlast) as a rival of the products, for benchmarks: `vendor-clblast`.
//!
//! With beta = 0 it reads y all the same. So what a host y becomes is set to zero before; a NaN in a resident y stays.

use gemv_core::ndarray::Dimension;
use gemv_core::{
    Accumulator, Checked, Desc, Dtype, Element, Error, GemmJob, Input, Job, Layout, Output, Params,
    Result, Span, Times, span,
};
use ocl::core::Mem;

use crate::cl::{Clblast, Place, Queue, clblast};
use crate::discover::Found;
use crate::memory::{Slot, State};
use crate::run::{Finish, Operand, fetch, host, output, resident};

pub(crate) const NAME: &str = "vendor-clblast";

/// Loads the CLBlast that [`CLBLAST_ENV`](crate::CLBLAST_ENV) names, once a process.
///
/// ```
/// match gemv_opencl::load_clblast() {
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

/// Computes one product. A host y is written on return; one of resident operands alone may still be in flight.
///
/// # Panics
/// If the choice is for another problem, or an operand is another device's or of another type.
pub(crate) fn gemv<T: Element + Times<V>, V: Element>(
    found: &Found,
    state: &mut State,
    choice: &Choice,
    job: Checked<Job<'_, T, V>>,
) -> Result<()> {
    assert_eq!(job.desc(), choice.desc, "a choice for another problem");
    let job = job.into_inner();
    let (mut a_data, mut x_data) = (None, None);
    let a: Operand<'_, 2> = input(found, state, Slot::A, job.a, &mut a_data)?;
    let x: Operand<'_, 1> = input(found, state, Slot::X, job.x, &mut x_data)?;
    let y: Operand<'_, 1> = place_y(found, state, &job.y, job.beta)?;
    let queue = &state.queue;
    let finish = (a.is_borrowed() || x.is_borrowed()).then(|| Finish(queue));
    let column = |of: &Operand<'_, 1>| [of.strides[0], 1];
    let operands = [
        (a.mem(), a.first, a.strides),
        (x.mem(), x.first, column(&x)),
        (y.mem(), y.first, column(&y)),
    ];
    enqueue::<V>(found, queue, choice, (job.alpha, job.beta), operands)?;
    fetch(found, queue, finish, job.y, (y.mem(), 0))
}

/// The same for several right-hand sides.
pub(crate) fn gemm<T: Element + Times<V>, V: Element>(
    found: &Found,
    state: &mut State,
    choice: &Choice,
    job: Checked<GemmJob<'_, T, V>>,
) -> Result<()> {
    assert_eq!(job.desc(), choice.desc, "a choice for another problem");
    let job = job.into_inner();
    let (mut a_data, mut x_data) = (None, None);
    let a: Operand<'_, 3> = input(found, state, Slot::A, job.a, &mut a_data)?;
    let x: Operand<'_, 3> = input(found, state, Slot::X, job.x, &mut x_data)?;
    let y: Operand<'_, 3> = place_y(found, state, &job.y, job.beta)?;
    let queue = &state.queue;
    let finish = (a.is_borrowed() || x.is_borrowed()).then(|| Finish(queue));
    let operands = [&a, &x, &y].map(|of| (of.mem(), of.first, [of.strides[1], of.strides[2]]));
    enqueue::<V>(found, queue, choice, (job.alpha, job.beta), operands)?;
    fetch(found, queue, finish, job.y, (y.mem(), 0))
}

/// Where the library reads A or X. `kept` is what a view of the host's memory becomes.
fn input<'k, 'a, T: Element, D: Dimension + Copy, const N: usize>(
    found: &Found,
    state: &mut State,
    slot: Slot,
    of: Input<'a, T, D>,
    kept: &'k mut Option<Span<'a, T, D>>,
) -> Result<Operand<'k, N>> {
    match of {
        Input::Device(window) => Ok(resident::<T, D, N>(&state.queue, &window)),
        Input::Host(view) => host(found, state, slot, kept.insert(span(&view)?)),
    }
}

/// Where the library writes Y, which it reads.
fn place_y<V: Element, D: Dimension + Copy, const N: usize>(
    found: &Found,
    state: &mut State,
    y: &Output<'_, V, D>,
    beta: V::Acc,
) -> Result<Operand<'static, N>> {
    let reads = beta != V::Acc::ZERO;
    let place = output(found, state, y, reads)?;
    if let (Output::Host(y), false) = (y, reads) {
        let zeroed = state.queue.zero(place.mem(), y.len() * size_of::<V>());
        zeroed.map_err(|e| found.failed(e, 0))?;
    }
    Ok(place)
}

/// The library's call for A, X and Y: their buffers, first elements, and distances of rows and of columns.
fn enqueue<V: Element>(
    found: &Found,
    queue: &Queue,
    choice: &Choice,
    (alpha, beta): (V::Acc, V::Acc),
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
    let factors = (alpha.parts().0, beta.parts().0);
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
