//! A product: operands to where the device reads them, launches, and Y back.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use gemv_core::{
    Bytes, Checked, Desc, Dtype, Error, Job, Memory, Params, Result, Tensor, TensorMut,
    zeros_on_host,
};
use gemv_gpu::{Kernel, Plan, Signature, assert_layout};
use ocl::core;

use crate::cl::{Args, Borrowed, Queue};
use crate::discover::Found;
use crate::memory::{Block, Slot, State};
use crate::programs::{Entry, Programs};

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
    /// Their device keeps them.
    pub(crate) entries: OnceLock<Vec<Weak<Entry>>>,
    /// Set when the entry points have been tested.
    pub(crate) ready: OnceLock<()>,
}

impl Choice {
    /// The same kernel and parameters for another problem, which they fit.
    pub(crate) fn of(&self, desc: Desc, found: &Found) -> Choice {
        let plan = self.kernel.plan(&desc, &self.params, &found.caps);
        let (entries, ready) = Default::default();
        Choice { desc, plan, state: self.state.clone(), entries, ready, ..*self }
    }

    /// The same problem by other parameters, which fit it.
    pub(crate) fn with(&self, kernel: &'static Kernel, params: Params, found: &Found) -> Choice {
        let (desc, state) = (self.desc, self.state.clone());
        let plan = kernel.plan(&desc, &params, &found.caps);
        let (entries, ready) = Default::default();
        Choice { desc, kernel, params, plan, state, entries, ready }
    }

    /// The matrix' and the vectors' type.
    pub(crate) fn types(&self) -> (Dtype, Dtype) {
        (self.desc.dtype, self.desc.vectors)
    }

    /// The entry points of its launches, compiled at the first call. The device's lock is not held.
    pub(crate) fn entries(&self, programs: &Programs) -> Result<Vec<Arc<Entry>>> {
        if let Some(entries) = self.entries.get() {
            return Ok(entries.iter().map(of_device).collect());
        }
        let names: Vec<_> = self.plan.launches.iter().map(|launch| launch.entry).collect();
        let entries = programs.entries(self.kernel, (&self.params, self.types()), &names)?;
        self.entries.get_or_init(|| entries.iter().map(Arc::downgrade).collect());
        Ok(entries)
    }
}

fn of_device(entry: &Weak<Entry>) -> Arc<Entry> {
    entry.upgrade().expect("kept by the device, which is open")
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

/// Where a device finds an operand. Strides are in elements.
pub(crate) struct Operand<'a> {
    pub(crate) mem: Place<'a>,
    pub(crate) first: usize,
    pub(crate) strides: [isize; 3],
}

pub(crate) enum Place<'a> {
    Device(core::Mem),
    Host(Borrowed<'a>),
}

impl Operand<'_> {
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

/// Computes one job. A host Y is written on return; a product of resident operands alone may
/// still be in flight.
///
/// # Panics
/// If the choice is for another problem or not compiled, or an operand is another device's or of another type.
pub(crate) fn product(
    found: &Found,
    state: &mut State,
    choice: &Choice,
    job: &mut Checked<Job<'_>>,
) -> Result<()> {
    let result = run(found, state, choice, job);
    state.buffers.trim();
    result
}

fn run(
    found: &Found,
    state: &mut State,
    choice: &Choice,
    job: &mut Checked<Job<'_>>,
) -> Result<()> {
    let desc = &choice.desc;
    assert_eq!(job.desc(), *desc, "a choice for another problem");
    if job.y.is_empty() {
        return Ok(());
    }
    let Job { alpha, a: a_in, conj, x: x_in, beta, .. } = **job;
    let ([batch, m, n], rhs) = (a_in.dim(), x_in.dim()[2]);
    let entries = choice.entries.get().expect("compiled before");

    // Copies of operands with gaps; they outlive `Finish` below.
    let (a_data, x_data);
    let (a, x) = if !alpha.is_zero() && n > 0 {
        (a_data, x_data) = (a_in.span()?, span_of_x(&x_in)?);
        #[cfg(feature = "packed")]
        let packed = a_in.packed_matrix().map(|matrix| packed(&matrix, state));
        #[cfg(not(feature = "packed"))]
        let packed = None;
        let a = match packed {
            Some(a) => a,
            None => {
                let a = there(found, state, Slot::A, &a_in, a_data.as_ref())?;
                assert_layout(desc.layout, [batch, m, n], a.strides);
                a
            }
        };
        (a, there(found, state, Slot::X, &x_in, x_data.as_ref())?)
    } else {
        (unread(state), unread(state))
    };
    let y_at = output(found, state, &job.y, !beta.is_zero())?;
    let (workspace, bytes) = workspace(found, state, choice)?;
    let counters = state.buffers.counters(&state.queue, found, choice.plan.counters)?;

    let State { queue, .. } = &*state;
    let in_place = a.is_borrowed() || x.is_borrowed();
    let finish = in_place.then(|| Finish(queue));
    let launch = |b: usize, c: usize| -> Result<()> {
        for (launch, entry) in choice.plan.launches.iter().zip(entries) {
            let entry = of_device(entry);
            let kernel = &*entry.kernel();
            let args = Args::of(kernel).unsigned(m).unsigned(n);
            let args = match choice.kernel.signature {
                Signature::Gemm => {
                    let args = args.unsigned(rhs).unsigned(batch);
                    [&a, &x, &y_at].into_iter().fold(args, strided)
                }
                // One column of one entry: a part of the same memory.
                Signature::Gemv => {
                    let first = |of: &Operand<'_>, column: usize| {
                        let [batch, _, col] = of.strides;
                        let at = b as isize * batch + column as isize * col;
                        of.first.wrapping_add_signed(at)
                    };
                    let args = args.mem(a.mem()).unsigned(first(&a, 0));
                    let args = args.signed(a.strides[1]).signed(a.strides[2]);
                    let args = args.mem(x.mem()).unsigned(first(&x, c)).signed(x.strides[1]);
                    args.mem(y_at.mem()).unsigned(first(&y_at, c)).signed(y_at.strides[1])
                }
            };
            args.factor(alpha, desc.vectors)
                .factor(beta, desc.vectors)
                .flag(conj)
                .mem(&workspace)
                .mem(&counters)
                .done()
                .and_then(|()| queue.launch(kernel, launch))
                .map_err(|e| found.failed(e, bytes))?;
        }
        Ok(())
    };
    match choice.kernel.signature {
        Signature::Gemm => launch(0, 0)?,
        Signature::Gemv => (0..batch)
            .flat_map(|b| (0..rhs).map(move |c| (b, c)))
            .try_for_each(|(b, c)| launch(b, c))?,
    }
    fetch(found, queue, finish, job.y(), (y_at.mem(), bytes))
}

/// An operand of three axes.
fn strided<'k>(args: Args<'k>, of: &Operand<'_>) -> Args<'k> {
    let [batch, row, col] = of.strides;
    args.mem(of.mem()).unsigned(of.first).signed(row).signed(col).signed(batch)
}

/// An operand that no kernel reads.
pub(crate) fn unread(state: &State) -> Operand<'static> {
    Operand { mem: Place::Device(state.buffers.dummy.clone()), first: 0, strides: [0; 3] }
}

/// A resident operand of a job that was checked: it lies within its block.
///
/// # Panics
/// If the block is another device's, or of another type.
pub(crate) fn resident(
    queue: &Queue,
    dtype: Dtype,
    memory: &dyn Memory,
    first: usize,
    strides: [isize; 3],
) -> Operand<'static> {
    let block = Block::of(memory, dtype, queue);
    Operand { mem: Place::Device(block.mem().clone()), first, strides }
}

/// A packed matrix, which is resident.
#[cfg(feature = "packed")]
fn packed(matrix: &gemv_core::PackedMatrix<'_>, state: &State) -> Operand<'static> {
    let (memory, first, strides) = gemv_gpu::packed_place(matrix);
    let [tiles, row, column] = strides;
    resident(&state.queue, Dtype::F32, memory, first, [tiles, row, column])
}

/// The memory behind an X of the host. A copy of one vector of n elements makes the loads of every row contiguous. One element
/// that is repeated has no need of it, and may be repeated more often than there is memory.
fn span_of_x<'a>(x: &Tensor<'a>) -> Result<Option<Bytes<'a>>> {
    let ([batch, n, rhs], [_, stride, _]) = (x.dim(), x.strides());
    if batch == 1
        && rhs == 1
        && n > 1
        && !matches!(stride, 0 | 1)
        && let Ok(Some(data)) = x.packed()
    {
        return Ok(Some(Bytes { data, first: 0, strides: [0, 1, 0] }));
    }
    x.span()
}

/// Where the launches read A or X: `span` is the memory behind an array of the host.
pub(crate) fn there<'a>(
    found: &Found,
    state: &mut State,
    slot: Slot,
    of: &Tensor<'_>,
    span: Option<&'a Bytes<'_>>,
) -> Result<Operand<'a>> {
    if let Some(window) = of.window() {
        let strides = [0, 1, 2].map(|axis| window.stride(axis));
        return Ok(resident(&state.queue, of.dtype(), window.memory, window.first, strides));
    }
    let Bytes { data, first, strides } = span.expect("of an array of the host");
    let data: &'a [u8] = data;
    let bytes = data.len();
    // Kernels address whole elements: a pair that lies at an odd half is copied.
    let whole = (data.as_ptr() as usize).is_multiple_of(of.dtype().bytes());
    // In place where the device can read it there.
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
    Ok(Operand { mem, first: *first, strides: *strides })
}

/// Where the launches write Y. That of a host Y is packed, and has its old values if they are read.
pub(crate) fn output(
    found: &Found,
    state: &mut State,
    y: &TensorMut<'_>,
    reads: bool,
) -> Result<Operand<'static>> {
    if let Some(window) = y.window() {
        let strides = [0, 1, 2].map(|axis| window.stride(axis));
        return Ok(resident(&state.queue, y.dtype(), window.memory, window.first, strides));
    }
    let ([_, m, rhs], bytes) = (y.dim(), y.len() * y.dtype().bytes());
    let mem = state.buffers.get(&state.queue, found, Slot::Y, bytes)?;
    if reads && let Some(old) = y.packed()? {
        state.queue.write(&mem, &old).map_err(|e| found.failed(e, bytes))?;
    }
    let strides = [(m * rhs) as isize, rhs as isize, 1];
    Ok(Operand { mem: Place::Device(mem), first: 0, strides })
}

/// The workspace of a choice, and its bytes.
fn workspace(found: &Found, state: &mut State, choice: &Choice) -> Result<(core::Mem, usize)> {
    let bytes = choice.plan.workspace as usize * choice.desc.vectors.acc_bytes();
    let mem = match bytes {
        0 => state.buffers.dummy.clone(),
        _ => state.buffers.get(&state.queue, found, Slot::Workspace, bytes)?,
    };
    Ok((mem, bytes))
}

/// Ends what was launched: a host Y is read from where the launches wrote it. `bytes` were asked for.
pub(crate) fn fetch(
    found: &Found,
    queue: &Queue,
    finish: Option<Finish<'_>>,
    mut y: TensorMut<'_>,
    (from, bytes): (&core::Mem, usize),
) -> Result<()> {
    let host = y.window().is_none();
    if finish.is_some() || host {
        // Waits here, so that a failed launch shows before Y is touched.
        queue.finish().map_err(|e| found.failed(e, bytes))?;
    } else {
        // Everything is in the device's memory: later calls, in the same queue, come after it.
        queue.flush().map_err(|e| found.failed(e, bytes))?;
    }
    drop(finish);
    if !host {
        return Ok(());
    }
    let read = match y.slice_mut() {
        Some(all) => queue.read(from, 0, all),
        None => {
            let mut new = zeros_on_host(y.len() * y.dtype().bytes())?;
            queue.read(from, 0, &mut new).map(|()| y.assign(&new))
        }
    };
    read.map_err(|e| found.failed(e, 0))
}
