//! A product on the device: operands brought there, launches queued, Y brought back.

use std::sync::{Arc, Mutex};

#[cfg(feature = "packed")]
use gemv_core::PackedMatrix;
use gemv_core::ndarray::{Dimension, Ix3};
use gemv_core::{Checked, Desc, Dtype, Job, Memory, Owner, Result, Tensor, Window};
use gemv_gpu::{Signature, assert_layout};

use crate::cyclic;
use crate::driver::{Arguments, Block, Cublas, Fused, Gpu, Launch, Operand, Staging};
use crate::lock::lock;
use crate::resident::resident;

/// Memory that is used again from call to call.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) staging: Arc<Staging>,
    pub(crate) a: Reused,
    pub(crate) x: Reused,
    pub(crate) y: Reused,
    pub(crate) workspace: Reused,
    pub(crate) counters: Reused,
    /// Workspace and counters of graphs that another library captures.
    graphs: (OfGraph, OfGraph),
}

/// Scratch memory of graphs that another library captures. Each graph has its own: it may be replayed on any stream, beside
/// other work.
#[derive(Debug, Default)]
struct OfGraph {
    /// For the next graph.
    next: Option<Block>,
    /// Of the last capture, by its number.
    taken: Option<(u64, Block)>,
}

/// A block that grows on demand.
#[derive(Debug, Default)]
pub(crate) struct Reused(Option<Block>);

/// An operand of the host of more bytes than this has a block of its own for one call: gigabytes are not kept
/// for a next call that may never come.
const KEPT: usize = 64 << 20;

impl Scratch {
    pub(crate) fn new(staging: &Arc<Staging>) -> Scratch {
        let (a, x, y, workspace, counters, graphs) = Default::default();
        Scratch { staging: staging.clone(), a, x, y, workspace, counters, graphs }
    }

    /// Has so many bytes of workspace and of counters, for what is queued next and for the next graph.
    fn has(&mut self, (workspace, counters): (usize, usize), gpu: &Arc<Gpu>) -> Result<()> {
        if workspace > 0 {
            self.workspace.of(workspace, gpu)?;
        }
        if counters > 0 {
            let (block, new) = self.counters.of(counters, gpu)?;
            if new {
                gpu.clear(block)?;
            }
        }
        if gpu.is_on_foreign_stream() {
            self.graphs.0.has(workspace, gpu)?;
            self.graphs.1.has(counters, gpu)?;
        }
        Ok(())
    }
}

impl OfGraph {
    fn has(&mut self, bytes: usize, gpu: &Arc<Gpu>) -> Result<()> {
        if self.next.as_ref().map_or(0, Block::bytes) < bytes {
            self.next = None;
            self.next = Some(gpu.alloc_anywhere(bytes.next_power_of_two())?);
        }
        Ok(())
    }

    /// So many bytes for the graph that is captured.
    fn take(&mut self, bytes: usize, gpu: &Arc<Gpu>) -> Result<&Block> {
        let id = gpu.capture()?.id;
        let has = |(of, block): &(u64, Block)| *of == id && block.bytes() >= bytes;
        if !self.taken.as_ref().is_some_and(has) {
            match self.next.take_if(|block| block.bytes() >= bytes) {
                Some(block) => self.taken = Some((id, block)),
                None => gpu.refuse_while_captured("cuMemAlloc")?,
            }
        }
        Ok(&self.taken.as_ref().expect("refused without one").1)
    }
}

impl Reused {
    /// The block, with at least this many bytes; true if it is new.
    pub(crate) fn of(&mut self, bytes: usize, gpu: &Arc<Gpu>) -> Result<(&Block, bool)> {
        let new = self.0.as_ref().is_none_or(|b| b.bytes() < bytes);
        if new {
            // The old one is freed first: both together may be too much. While the stream records,
            // memory can be neither freed nor allocated.
            gpu.refuse_while_recording("cuMemAlloc")?;
            self.0 = None;
            self.0 = Some(gpu.alloc(bytes.next_power_of_two().min(bytes.saturating_add(KEPT)))?);
        }
        Ok((self.0.as_ref().expect("just made"), new))
    }

    /// Sets it to zero, in the order of the stream: a record may use this very block.
    pub(crate) fn reset(&mut self, gpu: &Gpu) {
        if self.0.as_ref().is_some_and(|block| gpu.clear(block).is_err()) {
            // No launch succeeds any more, but the next call may say why.
            self.0 = None;
        }
    }
}

/// What was proved for a problem, and computes it.
#[derive(Debug)]
pub(crate) enum Choice {
    Kernels(Launches),
    /// Not a product: the sums of lanes of one of so many processes. All operands are resident.
    Cyclic(Launches, usize),
    /// The library of a GPU, for this problem.
    Cublas(Arc<Cublas>, Desc),
}

/// The launches of a problem with chosen parameters.
#[derive(Debug)]
pub(crate) struct Launches {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) desc: Desc,
    /// What the kernel's entry points take.
    pub(crate) signature: Signature,
    pub(crate) launches: Vec<Launch>,
    /// Bytes of scratch memory, and of counters that are 0 before and after.
    pub(crate) workspace: usize,
    pub(crate) counters: usize,
}

impl Choice {
    /// The launches, if they are this crate's.
    fn launches(&self) -> Option<&Launches> {
        match self {
            Choice::Kernels(of) | Choice::Cyclic(of, _) => Some(of),
            Choice::Cublas(..) => None,
        }
    }
}

/// An epilogue that programs take: which number of the bias an entry has, see [`Fused`].
#[derive(Debug)]
pub(crate) struct Behind<'a> {
    bias: Option<Window<&'a dyn Memory, Ix3>>,
    by: usize,
    count: usize,
    stride: isize,
}

impl<'a> Behind<'a> {
    /// `None` where the place of an entry of this Y does not say which number it has: the bias has one for each place along
    /// one axis at most, and Y no gaps that a division would not leave out.
    pub(crate) fn of<M>(
        bias: Option<Window<&'a dyn Memory, Ix3>>,
        y: &Window<M, Ix3>,
    ) -> Option<Behind<'a>> {
        let mut behind = Behind { bias, by: 1, count: 1, stride: 0 };
        let Some(bias) = bias else { return Some(behind) };
        if bias.dim != y.dim || bias.memory.owner() != Owner::Backend {
            return None;
        }
        let long = |axis: &usize| y.dim[*axis] > 1;
        let mut varies = (0..3).filter(|axis| long(axis) && bias.strides[*axis] != 0);
        let Some(axis) = varies.next() else { return Some(behind) };
        let apart = usize::try_from(y.stride(axis)).ok().filter(|_| varies.next().is_none())?;
        let whole = apart.checked_mul(y.dim[axis])?;
        let mut near = 0;
        for other in (0..3).filter(|other| *other != axis && long(other)) {
            let stride = usize::try_from(y.stride(other)).ok()?;
            match stride % whole {
                0 => {}
                _ => near += stride * (y.dim[other] - 1),
            }
        }
        (behind.by, behind.count, behind.stride) = (apart, y.dim[axis], bias.stride(axis));
        (near < apart).then_some(behind)
    }
}

/// Computes one job. A host Y is written at the very end. A resident one is written by the launches,
/// which are queued and not waited for.
///
/// # Panics
/// If the choice is for another problem or another GPU, or an operand is another GPU's or of another type.
pub(crate) fn run(
    gpu: &Arc<Gpu>,
    scratch: &Mutex<Scratch>,
    job: &mut Checked<Job<'_>>,
    choice: &Choice,
    epilogue: Option<&Behind<'_>>,
) -> Result<()> {
    let (of_gpu, desc) = match choice {
        Choice::Kernels(of) | Choice::Cyclic(of, _) => (Arc::ptr_eq(&of.gpu, gpu), of.desc),
        Choice::Cublas(cublas, desc) => (cublas.is_of(gpu), *desc),
    };
    assert!(of_gpu, "a choice of another GPU");
    assert_eq!(desc, job.desc(), "a choice for another problem");
    if let Choice::Cyclic(_, processes) = choice {
        cyclic::check(job, *processes);
    }
    if job.y.is_empty() {
        return Ok(());
    }
    let _guard = gpu.enter()?;
    let mut scratch = lock(scratch);
    let done = queue(gpu, &mut scratch, job, choice, epilogue);
    if done.is_err() && !gpu.recording() && !gpu.captured() {
        // A launch that was not queued may have left counters behind that are not 0. (What is
        // recorded has not run.)
        scratch.counters.reset(gpu);
    }
    done
}

/// Has the scratch memory that a choice needs.
pub(crate) fn reserve(gpu: &Arc<Gpu>, scratch: &Mutex<Scratch>, choice: &Choice) -> Result<()> {
    let Some(of) = choice.launches() else { return Ok(()) };
    let _guard = gpu.enter()?;
    lock(scratch).has((of.workspace, of.counters), gpu)
}

fn queue(
    gpu: &Arc<Gpu>,
    scratch: &mut Scratch,
    job: &mut Checked<Job<'_>>,
    choice: &Choice,
    epilogue: Option<&Behind<'_>>,
) -> Result<()> {
    let launches = choice.launches();
    let needs = launches.map_or((0, 0), |of| (of.workspace, of.counters));
    let captured = gpu.captured();
    match choice {
        _ if !captured => scratch.has(needs, gpu)?,
        Choice::Cublas(..) => gpu.refuse_while_captured("cublasGemmEx")?,
        _ => {}
    }
    let Scratch { staging, a: a_block, x: x_block, y: y_block, workspace, counters, graphs } =
        scratch;
    let workspace = match needs.0 {
        0 => None,
        bytes if captured => Some(graphs.0.take(bytes, gpu)?),
        _ => workspace.0.as_ref(),
    };
    let counters = match needs.1 {
        0 => None,
        bytes if captured => Some(graphs.1.take(bytes, gpu)?),
        _ => counters.0.as_ref(),
    };
    // With alpha = 0 the kernel reads neither A nor X.
    let Job { alpha, beta, conj, .. } = **job;
    let (used, types) = (!alpha.is_zero(), (job.a.dtype(), job.x.dtype()));
    let (mut own_a, mut own_x) = (None, None);
    #[cfg(feature = "packed")]
    let packed = job.a.packed_matrix().map(|matrix| packed(&matrix, gpu));
    #[cfg(not(feature = "packed"))]
    let packed = None;
    let a = match packed {
        Some(a) => a,
        None => {
            let a = there(gpu, staging, (a_block, &mut own_a), &job.a, used)?;
            if let Some(of) = launches {
                assert_layout(of.desc.layout, a.dim, a.strides);
            }
            a
        }
    };
    let x = there(gpu, staging, (x_block, &mut own_x), &job.x, used)?;
    let launch = |y: Operand<'_>| -> Result<()> {
        // What is not used has some address all the same.
        let [workspace, counters] = [workspace, counters].map(|block| block.unwrap_or(y.block));
        let epilogue = epilogue.map(|of| {
            let bias = of.bias.map(|bias| at(&bias, gpu, types.1));
            Fused { bias, y, by: of.by, count: of.count, stride: of.stride }
        });
        let all = Arguments { types, a, x, y, alpha, beta, conj, workspace, counters, epilogue };
        let [batch, _, rhs] = y.dim;
        let of = match choice {
            Choice::Cublas(cublas, _) if batch == 1 && rhs == 1 => return cublas.gemv(&all),
            Choice::Cublas(cublas, _) => return cublas.gemm(&all),
            Choice::Kernels(of) | Choice::Cyclic(of, _) => of,
        };
        let all = match of.launches.iter().any(Launch::is_by_boxes) {
            true => all.with_rows_ascending(),
            false => all,
        };
        let each = |all: &Arguments<'_>| {
            if captured && needs.1 > 0 {
                gpu.clear_in_graph(counters)?;
            }
            of.launches.iter().try_for_each(|launch| gpu.launch(launch, of.signature, all, needs))
        };
        match of.signature {
            Signature::Gemv if batch > 1 || rhs > 1 => (0..batch)
                .flat_map(|b| (0..rhs).map(move |c| (b, c)))
                .try_for_each(|(b, c)| each(&all.column(b, c))),
            _ => each(&all),
        }
    };

    let mut y = job.y();
    if let Some(window) = y.window() {
        return launch(at(&window, gpu, types.1));
    }
    let (dim @ [_, m, rhs], size) = (y.dim(), types.1.bytes());
    let (block, _) = y_block.of(gpu.size_of(y.len() as u64, size)?, gpu)?;
    if !beta.is_zero()
        && let Some(old) = y.packed()?
    {
        staging.send(&old, block)?;
    }
    launch(Operand { block, first: 0, dim, strides: [(m * rhs) as isize, rhs as isize, 1] })?;
    let bytes = y.len() * size;
    // Whole, before any of Y is written.
    staging.receive(block, bytes, |new| y.assign(new))
}

/// An operand where the kernels read it: an array of the host is copied there, if it is read at all.
fn there<'b>(
    gpu: &Arc<Gpu>,
    staging: &Staging,
    (reused, own): (&'b mut Reused, &'b mut Option<Block>),
    operand: &Tensor<'b>,
    used: bool,
) -> Result<Operand<'b>> {
    if let Some(window) = operand.window() {
        return Ok(at(&window, gpu, operand.dtype()));
    }
    let span = operand.span()?.expect("it is in the host's memory");
    let block: &Block = match span.data.len() {
        size if size <= KEPT => reused.of(size, gpu)?.0,
        size => own.insert(gpu.alloc(size)?),
    };
    if used {
        staging.send(&span.data, block)?;
    }
    Ok(Operand { block, first: span.first, dim: operand.dim(), strides: span.strides })
}

/// A packed matrix, which is resident.
#[cfg(feature = "packed")]
fn packed<'a>(matrix: &PackedMatrix<'a>, gpu: &Arc<Gpu>) -> Operand<'a> {
    let (memory, first, strides) = gemv_gpu::packed_place(matrix);
    let block = &resident(memory, gpu, Dtype::F32).block;
    Operand { block, first, dim: [1, matrix.dim.0, matrix.dim.1], strides }
}

/// A resident operand.
fn at<'a>(window: &Window<&'a dyn Memory, Ix3>, gpu: &Arc<Gpu>, dtype: Dtype) -> Operand<'a> {
    let (batch, rows, columns) = window.dim.into_pattern();
    Operand {
        block: &resident(window.memory, gpu, dtype).block,
        first: window.first,
        dim: [batch, rows, columns],
        strides: [0, 1, 2].map(|axis| window.stride(axis)),
    }
}
