//! The seam.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gemv_core::{
    AnyJob, AnySlice, AnySliceMut, Backend, BuiltinTable, Desc, DeviceInfo, Dtype, Error,
    KernelInfo, Memory, Params, Prepared, Result, for_any,
};
use gemv_gpu::{self as gpu, Kernel};
use ocl::core;

use crate::discover::{self, Found};
use crate::run::State;
use crate::{NAME, cl, kernels};

/// An OpenCL device, opened: a context, an in-order queue, and the programs built so far.
pub struct OpenCl {
    pub(crate) found: Found,
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for OpenCl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenCl({}: {})", self.found.info.id, self.found.info.name)
    }
}

pub(crate) fn open(ordinal: usize) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(OpenCl::open(ordinal)?))
}

/// A block of memory on one device.
pub(crate) struct Block {
    /// `None` only while it is being dropped.
    mem: Option<core::Mem>,
    len: usize,
    dtype: Dtype,
    state: Arc<Mutex<State>>,
}

impl Block {
    pub(crate) fn mem(&self) -> &core::Mem {
        self.mem.as_ref().expect("alive")
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} x {})", self.len, self.dtype)
    }
}

impl Memory for Block {
    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // Released under the lock, as every call to the runtime.
        let _held = lock(&self.state);
        self.mem = None;
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // What a panic can leave behind is a cache without an entry, which is in order.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The block behind an operand, which the engine has checked to be of this device.
///
/// # Panics
/// If it is another backend's, or holds another type.
pub(crate) fn block(memory: &dyn Memory, dtype: Dtype) -> &Block {
    let any: &dyn std::any::Any = memory;
    let block = any.downcast_ref::<Block>().expect("memory of an OpenCL device");
    assert_eq!(block.dtype, dtype, "memory of another type");
    block
}

impl OpenCl {
    /// Opens the device of this ordinal in what is found.
    ///
    /// ```
    /// use gemv_core::{Device, ndarray::array};
    /// use gemv_opencl::OpenCl;
    /// use std::sync::Arc;
    ///
    /// if let Ok(opencl) = OpenCl::open(0) {
    ///     let device = Device::new(Arc::new(opencl));
    ///     let y = device.try_gpu_dot(&array![[1.0f32, 2.0]], &array![3.0, 4.0])?;
    ///     assert_eq!(y, array![11.0]);
    /// }
    /// assert!(OpenCl::open(1000).is_err());
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DriverMissing`], [`Error::NoDevice`], or the driver's refusal.
    pub fn open(ordinal: usize) -> Result<OpenCl> {
        let all = discover::found()?;
        let found = all.get(ordinal).ok_or_else(|| Error::NoDevice {
            asked: format!("{NAME}:{ordinal}"),
            found: all.iter().map(|f| f.info.id.as_str()).collect::<Vec<_>>().join(", "),
        })?;
        // One at a time: see `discover::found`.
        static OPENING: Mutex<()> = Mutex::new(());
        let _one = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = cl::Queue::open(found.platform, found.device)
            .and_then(State::new)
            .map_err(|e| e.on(&found.info.id))?;
        Ok(OpenCl { found: found.clone(), state: Arc::new(Mutex::new(queue)) })
    }

    /// The kernel that these parameters name, if they are legal.
    pub(crate) fn kernel(&self, desc: &Desc, params: &Params) -> Result<&'static Kernel> {
        let name = params.kernel();
        let refuse = |reason| Error::Params {
            device: self.found.info.id.clone(),
            desc: *desc,
            params: params.to_string(),
            reason,
        };
        let kernel = kernels::find(name.as_str())
            .ok_or_else(|| refuse(format!("there is no kernel {name}")))?;
        kernel.fits(desc, params, &self.found.caps).map_err(&refuse)?;
        // A CPU has kernels of its own, and no table names this for one. In the process that compiled
        // the program, some sums were wrong; Oclgrind and GPUs find nothing.
        if self.found.caps.cpu
            && desc.dtype.is_complex()
            && name.as_str() == "col"
            && kernel.arg(params, "vec") > 1
        {
            return Err(refuse("PoCL 3.1 computes pairs by vectors wrongly here: vec=1".into()));
        }
        Ok(kernel)
    }

    fn allocate(
        &self,
        dtype: Dtype,
        len: usize,
        fill: impl FnOnce(&State, &core::Mem) -> Result<(), cl::Failure>,
    ) -> Result<Box<dyn Memory>> {
        self.has(dtype)?;
        let state = lock(&self.state);
        let bytes = len.checked_mul(dtype.bytes()).ok_or_else(|| Error::OutOfMemory {
            device: self.found.info.id.clone(),
            asked: u64::MAX,
            free: self.found.info.memory,
        })?;
        let mem = state.new_buffer(&self.found, bytes)?;
        fill(&state, &mem).map_err(|e| self.failed(e, bytes))?;
        Ok(Box::new(Block { mem: Some(mem), len, dtype, state: self.state.clone() }))
    }

    /// Drivers may allocate as late as at the first use.
    pub(crate) fn failed(&self, failure: cl::Failure, asked: usize) -> Error {
        if failure.is_memory() {
            let device = self.found.info.id.clone();
            return Error::OutOfMemory { device, asked: asked as u64, free: None };
        }
        failure.on(&self.found.info.id)
    }

    fn has(&self, dtype: Dtype) -> Result<()> {
        if !dtype.needs_f64() || self.found.caps.fp64 {
            return Ok(());
        }
        Err(Error::Unsupported {
            device: self.found.info.id.clone(),
            dtype,
            reason: "it has no double precision (cl_khr_fp64)".into(),
        })
    }
}

impl Backend for OpenCl {
    fn device(&self) -> &DeviceInfo {
        &self.found.info
    }

    fn accepts(&self, desc: &Desc) -> Result<()> {
        self.has(desc.dtype)
    }

    fn candidates(&self, desc: &Desc) -> Vec<Params> {
        let of = |k: &Kernel| (k.candidates)(desc, &self.found.caps);
        // The shared kernels run on CPUs, and are tested there, but are never the best.
        match self.found.caps.cpu {
            true => kernels::own().flat_map(of).collect(),
            false => kernels::all().flat_map(of).collect(),
        }
    }

    fn fits(&self, desc: &Desc, params: &Params) -> Result<()> {
        self.kernel(desc, params).map(|_| ())
    }

    fn launch_id(&self, desc: &Desc, params: &Params) -> u64 {
        let kernel = kernels::find(params.kernel().as_str());
        kernel.map_or(0, |k| k.launch_id(desc, params, &self.found.caps))
    }

    fn tables(&self) -> Vec<BuiltinTable> {
        let default = BuiltinTable {
            name: "opencl/default.txt",
            text: include_str!("../tables/default.txt"),
        };
        let pocl =
            BuiltinTable { name: "opencl/pocl.txt", text: include_str!("../tables/pocl.txt") };
        let nvidia =
            BuiltinTable { name: "opencl/nvidia.txt", text: include_str!("../tables/nvidia.txt") };
        match (self.found.caps.cpu, self.found.info.vendor.as_str()) {
            // The kernels for CPUs suit every CPU runtime.
            (true, _) => vec![pocl, default],
            (_, "nvidia") => vec![nvidia, default],
            _ => vec![default],
        }
    }

    fn upload(&self, data: AnySlice<'_>) -> Result<Box<dyn Memory>> {
        let dtype = data.dtype();
        for_any!(AnySlice, data, data => {
            self.allocate(dtype, data.len(), |state, mem| state.queue.write(mem, data))
        })
    }

    fn alloc(&self, dtype: Dtype, len: usize) -> Result<Box<dyn Memory>> {
        self.allocate(dtype, len, |state, mem| {
            state.queue.zero(mem, len * dtype.bytes())?;
            state.queue.finish()
        })
    }

    fn download(&self, from: &dyn Memory, first: usize, to: AnySliceMut<'_>) -> Result<()> {
        let block = block(from, to.dtype());
        let state = lock(&self.state);
        for_any!(AnySliceMut, to, to => {
            assert!(to.len() <= block.len && first <= block.len - to.len(), "beyond the block");
            state.queue.read(block.mem(), first, to).map_err(|e| self.failed(e, 0))
        })
    }

    fn gemv(&self, job: AnyJob<'_>, prepared: &Prepared) -> Result<()> {
        let params = prepared.params();
        for_any!(AnyJob, job, job => self.product(&mut lock(&self.state), job, params))
    }

    fn classic(&self, desc: &Desc) -> Vec<Params> {
        let all = gpu::baselines();
        all.flat_map(|k| (k.candidates)(desc, &self.found.caps)).collect()
    }

    fn read_params(&self) -> Vec<Params> {
        gpu::read_params(&self.found.caps)
    }

    fn kernels(&self) -> Vec<KernelInfo> {
        kernels::infos()
    }

    fn fingerprint(&self) -> String {
        let all: String = kernels::infos().iter().map(|k| k.fingerprint.as_str()).collect();
        gemv_core::fingerprint(&[&all], &[])
    }
}

/// The largest index that an operand touches lies within its block.
pub(crate) fn within(len: usize, first: usize, axes: &[(usize, isize)]) -> bool {
    if axes.iter().any(|a| a.0 == 0) {
        return true;
    }
    let (mut lo, mut hi) = (first as i128, first as i128);
    for &(count, stride) in axes {
        let far = (count as i128 - 1) * stride as i128;
        lo += far.min(0);
        hi += far.max(0);
    }
    lo >= 0 && hi < len as i128
}
