//! One product: operands to where the device reads them, launches, and y back.

use std::collections::HashMap;

use gemv_core::ndarray::ArrayView2;
use gemv_core::{
    Accumulator, Dtype, Element, Error, Job, Layout, MatrixRef, Memory, Params, Result, Span,
    VectorMut, VectorRef, span,
};
use gemv_gpu::Kernel;
use ocl::core;

use crate::backend::{OpenCl, block, within};
use crate::cl::{Args, Borrowed, Failure, OPTIONS, Queue};
use crate::discover::Found;

/// What a device's lock guards.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) queue: Queue,
    /// By kernel and defines: parameters that only the launch depends on share a program.
    programs: HashMap<Key, Program>,
    /// A short way to the same.
    known: HashMap<(Params, Dtype), Program>,
    /// Buffers for host operands, kept from one product to the next.
    scratch: [Option<(core::Mem, usize)>; SLOTS],
    /// Stands for an operand that is not read: null arguments are not safe on every runtime.
    nothing: core::Mem,
}

/// A kernel's name and its program's defines.
type Key = (&'static str, Vec<(String, String)>);

#[derive(Debug, Clone)]
struct Program(core::Program, HashMap<&'static str, core::Kernel>);

const SLOTS: usize = 4;
const A: usize = 0;
const X: usize = 1;
const Y: usize = 2;
const WORK: usize = 3;
/// Larger buffers are given back after the product.
const KEPT: usize = 64 << 20;

/// Waits for the queue when it goes out of scope, on every way out: nothing that a launch reads
/// may be dropped before.
struct Finish<'q>(&'q Queue);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        // The error, if there is one, has been returned by the call before.
        let _ = self.0.finish();
    }
}

/// Where a device finds an operand.
struct Operand<'a, const N: usize> {
    mem: Place<'a>,
    first: usize,
    strides: [isize; N],
}

enum Place<'a> {
    Device(core::Mem),
    Host(Borrowed<'a>),
}

impl<const N: usize> Operand<'_, N> {
    fn mem(&self) -> &core::Mem {
        match &self.mem {
            Place::Device(mem) => mem,
            Place::Host(borrowed) => &borrowed.mem,
        }
    }
}

impl State {
    pub(crate) fn new(queue: Queue) -> Result<State, Failure> {
        let nothing = queue.buffer(64)?;
        let (programs, known) = Default::default();
        Ok(State { queue, programs, known, scratch: [const { None }; SLOTS], nothing })
    }

    /// A buffer that is not shared with anything.
    pub(crate) fn new_buffer(&self, found: &Found, bytes: usize) -> Result<core::Mem> {
        let out =
            |free| Error::OutOfMemory { device: found.info.id.clone(), asked: bytes as u64, free };
        if bytes as u64 > found.largest {
            return Err(out(Some(found.largest)));
        }
        self.queue.buffer(bytes).map_err(|e| match e.is_memory() {
            true => out(None),
            false => e.on(&found.info.id),
        })
    }

    fn scratch(&mut self, found: &Found, slot: usize, bytes: usize) -> Result<core::Mem> {
        if let Some((mem, size)) = &self.scratch[slot]
            && *size >= bytes
        {
            return Ok(mem.clone());
        }
        // The old one goes first, so that both need not fit.
        self.scratch[slot] = None;
        let size = bytes.next_multiple_of(4096).min(found.largest.max(bytes as u64) as usize);
        let mem = self.new_buffer(found, size)?;
        self.scratch[slot] = Some((mem.clone(), size));
        Ok(mem)
    }

    fn trim(&mut self) {
        for slot in &mut self.scratch {
            slot.take_if(|s| s.1 > KEPT);
        }
    }

    fn program(
        &mut self,
        found: &Found,
        kernel: &'static Kernel,
        params: &Params,
        dtype: Dtype,
        entries: &[&'static str],
    ) -> Result<Program> {
        if let Some(known) = self.known.get(&(*params, dtype))
            && entries.iter().all(|e| known.1.contains_key(e))
        {
            return Ok(known.clone());
        }
        let text = kernel.program(dtype, params);
        let key = (kernel.name, text.defines.clone());
        let on = |e: Failure| e.on(&found.info.id);
        let program = match self.programs.get(&key) {
            Some(program) => program.clone(),
            None => {
                let mut options = String::from(OPTIONS);
                for (name, value) in &text.defines {
                    options += &format!(" -D{name}={value}");
                }
                let built = self.queue.build(&text.source, &options).map_err(|e| match e {
                    Ok(log) => Error::Build {
                        kernel: format!("{params} for {dtype}"),
                        device: found.info.id.clone(),
                        log,
                    },
                    Err(failure) => on(failure),
                })?;
                Program(built, HashMap::new())
            }
        };
        let Program(built, mut by_entry) = program;
        for &entry in entries {
            if !by_entry.contains_key(entry) {
                let kernel = core::create_kernel(&built, entry)
                    .map_err(|e| on(Failure::new("clCreateKernel", e)))?;
                by_entry.insert(entry, kernel);
            }
        }
        let program = Program(built, by_entry);
        self.programs.insert(key, program.clone());
        self.known.insert((*params, dtype), program.clone());
        Ok(program)
    }
}

impl OpenCl {
    pub(crate) fn product<T: Element>(
        &self,
        state: &mut State,
        job: Job<'_, T>,
        params: &Params,
    ) -> Result<()> {
        let result = self.run(state, job, params);
        state.trim();
        result
    }

    fn run<T: Element>(&self, state: &mut State, job: Job<'_, T>, params: &Params) -> Result<()> {
        let desc = job.desc();
        let kernel = self.kernel(&desc, params)?;
        let found = &self.found;
        if desc.m == 0 {
            return Ok(());
        }
        let plan = (kernel.plan)(&desc, params, &found.caps);
        let entries: Vec<&'static str> = plan.launches.iter().map(|l| l.entry).collect();
        let program = state.program(found, kernel, params, T::DTYPE, &entries)?;

        // Owned copies of operands with gaps; they outlive `Finish` below.
        let (a_data, x_data);
        let reads = job.alpha != T::Acc::ZERO && desc.n > 0;
        let nothing = || Place::Device(state.nothing.clone());
        let a = match job.a {
            _ if !reads => Operand { mem: nothing(), first: 0, strides: [0, 0] },
            MatrixRef::Device(a) => {
                let block = block(a.memory(), T::DTYPE);
                let ((m, n), (rs, cs)) = (a.dim(), a.strides());
                assert!(within(block.len(), a.first(), &[(m, rs), (n, cs)]));
                let mem = Place::Device(block.mem().clone());
                Operand { mem, first: a.first(), strides: [rs, cs] }
            }
            MatrixRef::Host(a) => {
                a_data = matrix_span(&a, desc.layout);
                self.host(state, A, &a_data)?
            }
        };
        let nothing = || Place::Device(state.nothing.clone());
        let x = match job.x {
            _ if !reads => Operand { mem: nothing(), first: 0, strides: [0] },
            VectorRef::Device(x) => {
                let block = block(x.memory(), T::DTYPE);
                assert!(within(block.len(), x.first(), &[(x.len(), x.stride())]));
                let mem = Place::Device(block.mem().clone());
                Operand { mem, first: x.first(), strides: [x.stride()] }
            }
            VectorRef::Host(x) => {
                let mut data: Span<'_, T, 1> = span(&x);
                if data.strides[0] != 1 && x.len() > 1 {
                    // n elements moved once save every row a gather.
                    let packed: Vec<T> = x.iter().copied().collect();
                    data = Span { data: packed.into(), first: 0, strides: [1] };
                }
                x_data = data;
                self.host(state, X, &x_data)?
            }
        };
        let mut y = job.y;
        let y_at = match &y {
            VectorMut::Device(y) => {
                let block = block(y.memory(), T::DTYPE);
                assert!(within(block.len(), y.first(), &[(y.len(), y.stride())]));
                let mem = Place::Device(block.mem().clone());
                Operand { mem, first: y.first(), strides: [y.stride()] }
            }
            VectorMut::Host(y) => {
                let bytes = desc.m * size_of::<T>();
                let mem = state.scratch(found, Y, bytes)?;
                if job.beta != T::Acc::ZERO {
                    let wrote = match y.as_slice() {
                        Some(y) => state.queue.write(&mem, y),
                        None => state.queue.write(&mem, &y.to_vec()),
                    };
                    wrote.map_err(|e| self.failed(e, bytes))?;
                }
                Operand { mem: Place::Device(mem), first: 0, strides: [1] }
            }
        };
        let work_bytes = plan.workspace as usize * T::DTYPE.acc_bytes();
        let work = match plan.workspace {
            0 => state.nothing.clone(),
            _ => state.scratch(found, WORK, work_bytes)?,
        };

        let asked = work_bytes;
        let finish = Finish(&state.queue);
        for launch in &plan.launches {
            let kernel = &program.1[launch.entry];
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
                .factor::<T>(job.alpha)
                .factor::<T>(job.beta)
                .flag(job.conj)
                .mem(&work)
                .mem(&state.nothing)
                .done()
                .and_then(|()| state.queue.launch(kernel, launch))
                .map_err(|e| self.failed(e, asked))?;
        }
        // Waits here, so that a failed launch shows before y is touched.
        state.queue.finish().map_err(|e| self.failed(e, asked))?;
        drop(finish);

        if let VectorMut::Host(y) = &mut y {
            let read = match y.as_slice_mut() {
                Some(y) => state.queue.read(y_at.mem(), 0, y),
                None => {
                    let mut packed = vec![T::default(); desc.m];
                    let read = state.queue.read(y_at.mem(), 0, &mut packed);
                    if read.is_ok() {
                        y.iter_mut().zip(packed).for_each(|(y, v)| *y = v);
                    }
                    read
                }
            };
            read.map_err(|e| self.failed(e, 0))?;
        }
        Ok(())
    }

    /// An operand on the host: in place where the device can read it there, else uploaded.
    fn host<'a, T: Element, const N: usize>(
        &self,
        state: &mut State,
        slot: usize,
        span: &'a Span<'_, T, N>,
    ) -> Result<Operand<'a, N>> {
        let data: &'a [T] = &span.data;
        let bytes = size_of_val(data);
        // Kernels address whole elements: a pair that lies at an odd half is copied.
        let whole = (data.as_ptr() as usize).is_multiple_of(size_of::<T>());
        let mem = if self.found.shares_memory && whole && !data.is_empty() {
            if bytes as u64 > self.found.largest {
                let (device, free) = (self.found.info.id.clone(), Some(self.found.largest));
                return Err(Error::OutOfMemory { device, asked: bytes as u64, free });
            }
            Place::Host(state.queue.borrow(data).map_err(|e| self.failed(e, bytes))?)
        } else {
            let mem = state.scratch(&self.found, slot, bytes)?;
            state.queue.write(&mem, data).map_err(|e| self.failed(e, bytes))?;
            Place::Device(mem)
        };
        Ok(Operand { mem, first: span.first, strides: span.strides })
    }
}

/// The memory behind a matrix, in the layout that it was described with: a view with gaps is
/// packed, and what packing makes of it must still suit the kernel that was chosen.
fn matrix_span<'a, T: Element>(a: &ArrayView2<'a, T>, layout: Layout) -> Span<'a, T, 2> {
    let found: Span<'a, T, 2> = span(a);
    let (m, n) = a.dim();
    let now = Layout::of(m, n, found.strides[0], found.strides[1]);
    if now == layout || layout == Layout::Strided {
        return found;
    }
    if layout == Layout::Col {
        let data: Vec<T> = a.t().iter().copied().collect();
        return Span { data: data.into(), first: 0, strides: [1, m as isize] };
    }
    let data: Vec<T> = a.iter().copied().collect();
    Span { data: data.into(), first: 0, strides: [n as isize, 1] }
}
