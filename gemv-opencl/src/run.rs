//! One product: operands to where the device reads them, launches, and y back.

use std::sync::{Mutex, OnceLock, Weak};

use gemv_core::ndarray::{ArrayView2, Dimension, Ix1, Ix2};
use gemv_core::{
    Accumulator, Checked, Desc, Element, Error, Input, Job, Layout, Memory, Output, Params, Result,
    Span, Times, Window, packed, span, zeros_on_host,
};
use gemv_gpu::{Kernel, Plan};
use ocl::core;

use crate::cl::{Args, Borrowed, Queue};
use crate::discover::Found;
use crate::memory::{Block, Slot, State};
use crate::programs::Entry;

/// What was proved of a problem and parameters, for as many products as come.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) desc: Desc,
    pub(crate) kernel: &'static Kernel,
    pub(crate) params: Params,
    pub(crate) plan: Plan,
    /// The device that it is for.
    pub(crate) state: Weak<Mutex<State>>,
    /// Compiled by the first product: to prepare a choice is cheap, to compile may take seconds.
    pub(crate) entries: OnceLock<Vec<Entry>>,
    /// Set when the entry points have been tested.
    pub(crate) ready: OnceLock<()>,
}

impl Choice {
    /// The same kernel and parameters for another problem, which they fit.
    pub(crate) fn of(&self, desc: Desc, found: &Found) -> Choice {
        let plan = (self.kernel.plan)(&desc, &self.params, &found.caps);
        let (entries, ready) = Default::default();
        Choice { desc, plan, state: self.state.clone(), entries, ready, ..*self }
    }

    pub(crate) fn entries(&self, found: &Found, state: &mut State) -> Result<&[Entry]> {
        if let Some(entries) = self.entries.get() {
            return Ok(entries);
        }
        let names = self.plan.launches.iter().map(|launch| launch.entry);
        let program = (&self.params, (self.desc.dtype, self.desc.vectors));
        let State { queue, programs, .. } = state;
        let entries = programs.entries(queue, &found.info.id, self.kernel, program, names)?;
        Ok(self.entries.get_or_init(|| entries))
    }
}

/// Waits for the queue when it goes out of scope, on every way out: memory of the host that a launch
/// reads in place may be dropped after it.
pub(crate) struct Finish<'q>(pub(crate) &'q Queue);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        // The error, if there is one, has been returned by the call before.
        let _ = self.0.finish();
    }
}

/// Where a device finds an operand.
pub(crate) struct Operand<'a, const N: usize> {
    pub(crate) mem: Place<'a>,
    pub(crate) first: usize,
    pub(crate) strides: [isize; N],
}

pub(crate) enum Place<'a> {
    Device(core::Mem),
    Host(Borrowed<'a>),
}

impl<const N: usize> Operand<'_, N> {
    pub(crate) fn mem(&self) -> &core::Mem {
        match &self.mem {
            Place::Device(mem) => mem,
            Place::Host(borrowed) => &borrowed.mem,
        }
    }

    /// Whether it is memory of the host's.
    pub(crate) fn is_borrowed(&self) -> bool {
        matches!(self.mem, Place::Host(_))
    }
}

/// Computes one product. A host y is written on return; a product of resident operands alone may
/// still be in flight.
///
/// # Panics
/// If the choice is for another problem, or an operand is another device's or of another type.
pub(crate) fn product<T: Element + Times<V>, V: Element>(
    found: &Found,
    state: &mut State,
    choice: &Choice,
    job: Checked<Job<'_, T, V>>,
) -> Result<()> {
    let result = run(found, state, choice, job);
    state.buffers.trim();
    result
}

fn run<T: Element + Times<V>, V: Element>(
    found: &Found,
    state: &mut State,
    choice: &Choice,
    job: Checked<Job<'_, T, V>>,
) -> Result<()> {
    let desc = job.desc();
    assert_eq!(desc, choice.desc, "a choice for another problem");
    if desc.m == 0 {
        return Ok(());
    }
    let job = job.into_inner();
    let entries = choice.entries(found, state)?;

    // Owned copies of operands with gaps; they outlive `Finish` below.
    let (a_data, x_data);
    let reads = job.alpha != V::Acc::ZERO && desc.n > 0;
    let a = match job.a {
        _ if !reads => unread::<2>(state),
        Input::Device(a) => resident::<T, _, _>(&state.queue, &a),
        Input::Host(a) => {
            a_data = matrix_span(&a, desc.layout)?;
            host(found, state, Slot::A, &a_data)?
        }
    };
    let x = match job.x {
        _ if !reads => unread::<1>(state),
        Input::Device(x) => resident::<V, _, _>(&state.queue, &x),
        Input::Host(x) => {
            let mut data = span(&x)?;
            // A copy of n elements makes the loads of every row contiguous. One element that is repeated has no need of
            // it, and may be repeated more often than there is memory.
            if !matches!(data.stride(0), 0 | 1)
                && x.len() > 1
                && let Ok(copy) = packed(&x)
            {
                data = Span { data: copy.into(), first: 0, strides: Ix1(1) };
            }
            x_data = data;
            host(found, state, Slot::X, &x_data)?
        }
    };
    let y_at: Operand<'_, 1> = output(found, state, &job.y, job.beta != V::Acc::ZERO)?;
    let (workspace, bytes) = workspace::<V>(found, state, choice)?;
    let counters = state.buffers.counters(&state.queue, found, choice.plan.counters)?;

    let State { queue, programs, .. } = &*state;
    let in_place = a.is_borrowed() || x.is_borrowed();
    let finish = in_place.then(|| Finish(queue));
    for (launch, &entry) in choice.plan.launches.iter().zip(entries) {
        let kernel = programs.get(entry);
        Args::of(kernel)
            .unsigned(desc.m)
            .unsigned(desc.n)
            .mem(a.mem())
            .unsigned(a.first)
            .signed(a.strides[0])
            .signed(a.strides[1])
            .mem(x.mem())
            .unsigned(x.first)
            .signed(x.strides[0])
            .mem(y_at.mem())
            .unsigned(y_at.first)
            .signed(y_at.strides[0])
            .factor::<V>(job.alpha)
            .factor::<V>(job.beta)
            .flag(job.conj)
            .mem(&workspace)
            .mem(&counters)
            .done()
            .and_then(|()| queue.launch(kernel, launch))
            .map_err(|e| found.failed(e, bytes))?;
    }
    fetch(found, queue, finish, job.y, (y_at.mem(), bytes))
}

/// An operand that no kernel reads.
pub(crate) fn unread<const N: usize>(state: &State) -> Operand<'static, N> {
    Operand { mem: Place::Device(state.buffers.dummy.clone()), first: 0, strides: [0; N] }
}

/// A resident operand of a job that was checked: it lies within its block.
///
/// # Panics
/// If the block is another device's, or of another type.
pub(crate) fn resident<T: Element, D: Dimension, const N: usize>(
    queue: &Queue,
    window: &Window<&dyn Memory, D>,
) -> Operand<'static, N> {
    let block = Block::of(window.memory, T::DTYPE, queue);
    let strides = std::array::from_fn(|axis| window.stride(axis));
    Operand { mem: Place::Device(block.mem().clone()), first: window.first, strides }
}

/// Where the launches write y. That of a host y is packed, and has its old values if they are read.
pub(crate) fn output<T: Element, D: Dimension + Copy, const N: usize>(
    found: &Found,
    state: &mut State,
    y: &Output<'_, T, D>,
    reads: bool,
) -> Result<Operand<'static, N>> {
    let y = match y {
        Output::Device(Window { memory, first, dim, strides }) => {
            let (first, dim, strides) = (*first, *dim, *strides);
            let y = Window { memory: &**memory, first, dim, strides };
            return Ok(resident::<T, D, N>(&state.queue, &y));
        }
        Output::Host(y) => y,
    };
    let bytes = y.len() * size_of::<T>();
    let mem = state.buffers.get(&state.queue, found, Slot::Y, bytes)?;
    if reads {
        let wrote = match y.as_slice() {
            Some(y) => state.queue.write(&mem, y),
            None => state.queue.write(&mem, &packed(&y.view())?),
        };
        wrote.map_err(|e| found.failed(e, bytes))?;
    }
    let strides =
        std::array::from_fn(|axis| y.shape()[axis + 1..].iter().product::<usize>() as isize);
    Ok(Operand { mem: Place::Device(mem), first: 0, strides })
}

/// The workspace of a choice, and its bytes.
pub(crate) fn workspace<T: Element>(
    found: &Found,
    state: &mut State,
    choice: &Choice,
) -> Result<(core::Mem, usize)> {
    let bytes = choice.plan.workspace as usize * T::DTYPE.acc_bytes();
    let mem = match bytes {
        0 => state.buffers.dummy.clone(),
        _ => state.buffers.get(&state.queue, found, Slot::Workspace, bytes)?,
    };
    Ok((mem, bytes))
}

/// Ends what was launched: a host y is read from where the launches wrote it. `bytes` were asked for.
pub(crate) fn fetch<T: Element, D: Dimension + Copy>(
    found: &Found,
    queue: &Queue,
    finish: Option<Finish<'_>>,
    y: Output<'_, T, D>,
    (from, bytes): (&core::Mem, usize),
) -> Result<()> {
    if finish.is_some() || matches!(y, Output::Host(_)) {
        // Waits here, so that a failed launch shows before y is touched.
        queue.finish().map_err(|e| found.failed(e, bytes))?;
    } else {
        // Everything is in the device's memory: later calls, in the same queue, come after it.
        queue.flush().map_err(|e| found.failed(e, bytes))?;
    }
    drop(finish);

    let Output::Host(mut y) = y else { return Ok(()) };
    let read = match y.as_slice_mut() {
        Some(y) => queue.read(from, 0, y),
        None => {
            let mut new = zeros_on_host(y.len())?;
            let read = queue.read(from, 0, &mut new);
            if read.is_ok() {
                y.iter_mut().zip(new).for_each(|(y, v)| *y = v);
            }
            read
        }
    };
    read.map_err(|e| found.failed(e, 0))
}

/// An operand on the host: in place where the device can read it there, else uploaded.
pub(crate) fn host<'a, T: Element, D: Dimension, const N: usize>(
    found: &Found,
    state: &mut State,
    slot: Slot,
    span: &'a Span<'_, T, D>,
) -> Result<Operand<'a, N>> {
    let data: &'a [T] = &span.data;
    let bytes = size_of_val(data);
    // Kernels address whole elements: a pair that lies at an odd half is copied.
    let whole = (data.as_ptr() as usize).is_multiple_of(size_of::<T>());
    let mem = if found.shares_memory && whole && !data.is_empty() {
        if bytes as u64 > found.largest {
            let (device, free) = (found.info.id.clone(), Some(found.largest));
            return Err(Error::OutOfMemory { device, asked: bytes as u64, free });
        }
        Place::Host(state.queue.borrow(data).map_err(|e| found.failed(e, bytes))?)
    } else {
        let mem = state.buffers.get(&state.queue, found, slot, bytes)?;
        state.queue.write(&mem, data).map_err(|e| found.failed(e, bytes))?;
        Place::Device(mem)
    };
    Ok(Operand { mem, first: span.first, strides: std::array::from_fn(|axis| span.stride(axis)) })
}

/// The memory behind a matrix, in the layout that it was described with: a view with gaps is
/// packed, and what packing makes of it must still suit the kernel that was chosen.
fn matrix_span<'a, T: Element>(a: &ArrayView2<'a, T>, layout: Layout) -> Result<Span<'a, T, Ix2>> {
    let found = span(a)?;
    let (m, n) = a.dim();
    let now = Layout::of(m, n, found.stride(0), found.stride(1));
    if now == layout || layout == Layout::Strided {
        return Ok(found);
    }
    Ok(match layout {
        Layout::Col => Span { data: packed(&a.t())?.into(), first: 0, strides: Ix2(1, m) },
        _ => Span { data: packed(a)?.into(), first: 0, strides: Ix2(n, 1) },
    })
}
