//! The OpenCL side of [`Backend`].

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use gemv_core::float_mode::{in_default, is_default};
use gemv_core::fork::{check, forks};
use gemv_core::{
    AnySlice, AnySliceMut, AnyVectorJob, Backend, BuiltinTable, Checked, CompiledKernel, Desc,
    DeviceInfo, Dtype, Element, Error, Interop, Job, KernelInfo, KernelLaunch, Layout, Memory,
    Params, Prepared, Result, Table, Times, VectorJob, for_any, for_types,
};
#[cfg(feature = "packed")]
use gemv_core::{Format, PackedMatrix};
use gemv_gpu::{self as gpu, Caps, Kernel, Signature};
use ocl::core;

use crate::discover::{self, Found, NAME};
use crate::first_use::Of;
use crate::memory::{Block, Entered, State, lock, new_buffer};
#[cfg(feature = "packed")]
use crate::packed;
use crate::programs::Programs;
use crate::run::{self, Choice};
use crate::store::Store;
use crate::tables::tables;
use crate::{bugs, cl, clblast, first_use, kernel_source, kernels, vector};

/// An OpenCL device, opened: a context, an in-order queue, and the programs built so far.
pub struct OpenCl {
    found: Found,
    programs: Arc<Programs>,
    state: Arc<Mutex<State>>,
    /// Types of which [`prove`](Self::prove) has tested a product.
    proved: Mutex<Vec<Dtype>>,
    /// [`forks`] when it was opened.
    forks: u32,
}

/// In a child of the process that opened it nothing is released: the driver would wait for its threads.
impl Drop for OpenCl {
    fn drop(&mut self) {
        if self.here().is_err() {
            std::mem::forget((self.state.clone(), self.programs.clone()));
        }
    }
}

impl fmt::Debug for OpenCl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenCl({}: {})", self.found.info.id, self.found.info.name)
    }
}

pub(crate) fn open(ordinal: usize) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(OpenCl::open(ordinal)?))
}

impl OpenCl {
    /// Opens the device of this ordinal in what is found.
    ///
    /// ```
    /// use gemv::{Device, ndarray::array};
    /// use gemv::opencl::OpenCl;
    /// use std::sync::Arc;
    ///
    /// if let Ok(opencl) = OpenCl::open(0) {
    ///     let device = Device::new(Arc::new(opencl));
    ///     let y = device.try_gpu_dot(&array![[1.0f32, 2.0]], &array![3.0, 4.0])?;
    ///     assert_eq!(y, array![11.0]);
    /// }
    /// assert!(OpenCl::open(1000).is_err());
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DriverMissing`], [`Error::NoDevice`], [`Error::Refused`] where an earlier process has
    /// found that the device breaks the order, or the driver's refusal.
    pub fn open(ordinal: usize) -> Result<OpenCl> {
        let all = discover::found()?;
        let found = all.get(ordinal).ok_or_else(|| Error::NoDevice {
            asked: format!("{NAME}:{ordinal}"),
            found: all.iter().map(|f| f.info.id.as_str()).collect::<Vec<_>>().join(", "),
        })?;
        // A driver may compute on threads of this process, which keep the mode in which they are made.
        in_default(|| OpenCl::on(found.clone()))
    }

    fn on(found: Found) -> Result<OpenCl> {
        // A device that is the host is timed by the host's clock.
        let (platform, device, clock) = (found.platform, found.device, !found.info.host);
        OpenCl::with(found, |begins| cl::Queue::open(platform, device, begins, clock))
    }

    /// The device with a queue, which is told whether the driver begins what is enqueued without being asked.
    pub(crate) fn with(
        found: Found,
        queue: impl FnOnce(bool) -> std::result::Result<cl::Queue, cl::Failure>,
    ) -> Result<OpenCl> {
        found.usable(&found.info.refused)?;
        // One at a time: see `discover::found`.
        static OPENING: Mutex<()> = Mutex::new(());
        let _one = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        let store = Store::new(discover::cache(), &found.identity);
        // NVIDIA's driver for Linux begins at once, and a flush is not free.
        let begins = cfg!(target_os = "linux") && found.info.vendor == "nvidia";
        let id = &found.info.id;
        let queue = queue(begins).map_err(|e| e.on(id))?;
        let binaries = !bugs::BINARIES.is_in(&found.info.driver);
        let driver = &found.info.driver;
        let whole = bugs::LAZY.is_in(driver) || bugs::ONE_THREAD.is_in(driver);
        let programs = Arc::new(Programs::new(id, queue.compiler(), store, (binaries, whole)));
        let state = State::new(queue, programs.clone()).map_err(|e| e.on(id))?;
        Ok(OpenCl {
            found,
            programs,
            state: Arc::new(Mutex::new(state)),
            proved: Mutex::default(),
            forks: forks(),
        })
    }

    /// Whether this process opened it.
    ///
    /// # Errors
    /// [`Error::Forked`], if it is a child of the one that did.
    fn here(&self) -> Result<()> {
        check(self.forks, &self.found.info.id)
    }

    /// All that calls the driver, by one thread at a time.
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        self.here()?;
        Ok(lock(&self.state))
    }

    pub(crate) fn found(&self) -> &Found {
        &self.found
    }

    pub(crate) fn state(&self) -> &Arc<Mutex<State>> {
        &self.state
    }

    #[cfg(test)]
    pub(crate) fn programs(&self) -> &Programs {
        &self.programs
    }

    /// For what is done without the lock, but for launches.
    pub(crate) fn of(&self) -> Of<'_> {
        Of { found: &self.found, programs: &self.programs, shared: &self.state }
    }

    /// What a choice waits for before its first product; or a choice that need not wait.
    fn first_use(&self, choice: &Choice, chosen: bool) -> Result<Option<Choice>> {
        #[cfg(feature = "packed")]
        if choice.desc.packing.is_some() {
            packed::prepare(self.of(), &|data| self.upload(data), choice)?;
            return Ok(None);
        }
        for_types!((choice.desc.dtype, choice.desc.vectors), T, V => {
            first_use::prepare::<T, V>(self.of(), choice, chosen)
        })
    }

    fn choice<'p>(&self, prepared: &'p Prepared) -> &'p Choice {
        let choice = prepared.state::<Choice>().expect("prepared by this backend");
        assert!(choice.state.as_ptr() == Arc::as_ptr(&self.state), "prepared by another device");
        choice
    }

    fn refuse(&self, desc: &Desc, params: &Params, reason: String) -> Error {
        let device = self.found.info.id.clone();
        Error::Params { device, desc: *desc, params: params.to_string(), reason }
    }

    /// Tests a product of the type of a step, once, on a device that does not say that it keeps subnormals: steps have no test
    /// of their own, and one that flushes does so in both.
    fn prove<T: Element + Times<T>>(&self, _: &VectorJob<'_, T>) -> Result<()> {
        let proved = || self.proved.lock().unwrap_or_else(PoisonError::into_inner);
        if proved().contains(&T::DTYPE) {
            return Ok(());
        }
        let desc = Desc::of(T::DTYPE, Layout::Row, (64, 643), 6);
        let rows =
            tables(&self.found).into_iter().filter_map(|t| Table::parse(t.name, t.text).ok());
        let params = rows
            .flat_map(|table| {
                table.nearest(&desc).into_iter().map(|row| row.params).collect::<Vec<_>>()
            })
            .find(|params| self.kernel(&desc, params).is_ok());
        let Some(params) = params else {
            return Err(self.refuse(
                &desc,
                &Params::new("none"),
                "no kernel tests the device".into(),
            ));
        };
        let prepared = self.prepare(&desc, &params)?;
        first_use::prepare::<T, T>(self.of(), self.choice(&prepared), false)?;
        proved().push(T::DTYPE);
        Ok(())
    }

    /// CLBlast, if these parameters name it and it takes the problem.
    fn clblast(&self, desc: &Desc, params: &Params) -> Option<Result<clblast::Choice>> {
        let refuse = |reason| self.refuse(desc, params, reason);
        let named = params.kernel().as_str() == clblast::NAME;
        named.then(|| clblast::Choice::new(desc, params).map_err(refuse))
    }

    /// The kernel that these parameters name, if they are legal.
    fn kernel(&self, desc: &Desc, params: &Params) -> Result<&'static Kernel> {
        let name = params.kernel();
        let refuse = |reason| self.refuse(desc, params, reason);
        let kernel = named(desc, name.as_str())
            .ok_or_else(|| refuse(format!("there is no kernel {name}")))?;
        kernel.fits(desc, params, &self.found.caps).map_err(&refuse)?;
        let arg = |name| u64::from(kernel.arg(params, name));
        let complex = desc.dtype.is_complex();
        let has = |name| kernel.args.iter().any(|arg| arg.name == name);
        let by_columns = has("threads_k") && has("vec");
        let vectors = by_columns && complex && arg("vec") > 1;
        let many_lanes = by_columns && has("lanes") && {
            let lanes = arg("lanes") / arg("threads_k");
            let sums = lanes * arg("vec") * arg("tile_rhs") * desc.vectors.acc_bytes() as u64;
            lanes >= 8 && sums >= if complex { 128 } else { 256 }
        };
        for (bug, shows) in [(bugs::COMPLEX_VECTORS, vectors), (bugs::MANY_LANES, many_lanes)] {
            if shows && bug.is_in(&self.found.info.driver) {
                let bugs::Bug { name, about, .. } = bug;
                return Err(refuse(format!("the driver has the bug {name}: {about}")));
            }
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
        let state = self.enter()?;
        let bytes = len.checked_mul(dtype.bytes()).ok_or_else(|| Error::OutOfMemory {
            device: self.found.info.id.clone(),
            asked: u64::MAX,
            free: self.found.info.memory,
        })?;
        let mem = new_buffer(&state.queue, &self.found, bytes)?;
        fill(&state, &mem).map_err(|e| self.found.failed(e, bytes))?;
        Ok(Box::new(Block::new(mem, len, dtype, state.queue.id(), self.state.clone())))
    }

    pub(crate) fn has(&self, dtype: Dtype) -> Result<()> {
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

/// The kernel of this name, if it is for problems like this one.
fn named(desc: &Desc, name: &str) -> Option<&'static Kernel> {
    match desc.packing {
        None => kernels::find(name),
        #[cfg(feature = "packed")]
        Some(_) => Some(&gpu::PACKED),
        #[cfg(not(feature = "packed"))]
        Some(_) => None,
    }
}

/// The parameters worth trying for a problem on a device of these capabilities, best guess first.
pub fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    #[cfg(feature = "packed")]
    if desc.packing.is_some() {
        return gpu::PACKED.candidates(desc, caps);
    }
    let of = |k: &Kernel| k.candidates(desc, caps);
    // The shared kernels of one column run on CPUs, and are tested there, but are never the best where
    // there are others.
    let mixed = desc.is_mixed();
    let shared = !caps.cpu || mixed;
    let one = kernels::own().chain(gpu::kernels().iter().filter(|_| shared));
    let one = one.filter(|k| k.signature == Signature::Gemv && (k.mixed || !mixed));
    if desc.rhs == 1 && desc.batch == 1 {
        return one.flat_map(of).collect();
    }
    let many = kernels::kernels().filter(|k| k.signature == Signature::Gemm && (k.mixed || !mixed));
    many.flat_map(of).chain(one.flat_map(of)).collect()
}

impl Backend for OpenCl {
    fn device(&self) -> &DeviceInfo {
        &self.found.info
    }

    fn accepts(&self, desc: &Desc) -> Result<()> {
        if desc.packing.is_some() && !cfg!(feature = "packed") {
            return Err(Error::Unsupported {
                device: self.found.info.id.clone(),
                dtype: desc.dtype,
                reason: "this program was built without the feature \"packed\" of gemv".into(),
            });
        }
        self.has(desc.vectors)
    }

    fn candidates(&self, desc: &Desc) -> Vec<Params> {
        let all = candidates(desc, &self.found.caps).into_iter();
        all.filter(|params| self.fits(desc, params).is_ok()).collect()
    }

    fn fits(&self, desc: &Desc, params: &Params) -> Result<()> {
        match self.clblast(desc, params) {
            Some(choice) => choice.map(|_| ()),
            None => self.kernel(desc, params).map(|_| ()),
        }
    }

    fn launch_id(&self, desc: &Desc, params: &Params) -> u64 {
        let kernel = named(desc, params.kernel().as_str());
        kernel.map_or(0, |k| k.launch_id(desc, params, &self.found.caps))
    }

    fn tables(&self) -> Vec<BuiltinTable> {
        tables(&self.found)
    }

    #[cfg(feature = "packed")]
    fn packed_formats(&self) -> &'static [Format] {
        Format::ALL
    }

    #[cfg(feature = "packed")]
    fn upload_packed(&self, matrix: PackedMatrix<'_>) -> Result<Box<dyn Memory>> {
        self.upload(AnySlice::F32(&gpu::packed_tiles(matrix)?))
    }

    fn upload(&self, data: AnySlice<'_>) -> Result<Box<dyn Memory>> {
        let dtype = data.dtype();
        let data = data.bytes();
        self.allocate(dtype, data.len() / dtype.bytes(), |state, mem| state.queue.write(mem, data))
    }

    fn alloc(&self, dtype: Dtype, len: usize) -> Result<Box<dyn Memory>> {
        self.allocate(dtype, len, |state, mem| state.queue.zero(mem, len * dtype.bytes()))
    }

    fn download(&self, from: &dyn Memory, first: usize, mut to: AnySliceMut<'_>) -> Result<()> {
        let state = self.enter()?;
        let (block, size) = (Block::of(from, to.dtype(), &state.queue), to.dtype().bytes());
        let to = to.bytes();
        block.assert_holds(first, to.len() / size);
        state.queue.read(block.mem(), first * size, to).map_err(|e| self.found.failed(e, 0))
    }

    fn prepare(&self, desc: &Desc, params: &Params) -> Result<Prepared> {
        if let Some(choice) = self.clblast(desc, params) {
            return Ok(Prepared::new(*params).with_state(choice?));
        }
        let kernel = self.kernel(desc, params)?;
        let choice = Choice {
            desc: *desc,
            kernel,
            params: *params,
            plan: kernel.plan(desc, params, &self.found.caps),
            state: Arc::downgrade(&self.state),
            entries: OnceLock::new(),
            ready: OnceLock::new(),
        };
        Ok(Prepared::new(*params).with_state(choice))
    }

    fn warm(&self, prepared: &Prepared) -> Result<()> {
        self.here()?;
        // CLBlast compiles for itself.
        if prepared.state::<clblast::Choice>().is_some() {
            return Ok(());
        }
        in_default(|| self.first_use(self.choice(prepared), false)).map(|_| ())
    }

    fn product(&self, job: &mut Checked<Job<'_>>, prepared: &Prepared) -> Result<()> {
        if !is_default() {
            return in_default(|| self.product(job, prepared));
        }
        if let Some(choice) = prepared.state::<clblast::Choice>() {
            let mut state = self.enter()?;
            let result = clblast::product(&self.found, &mut state, choice, job);
            state.buffers.trim();
            return result;
        }
        let choice = self.choice(prepared);
        assert_eq!(job.desc(), choice.desc, "a choice for another problem");
        self.here()?;
        let other = self.first_use(choice, prepared.is_chosen())?;
        run::product(&self.found, &mut *self.enter()?, other.as_ref().unwrap_or(choice), job)
    }

    fn vector(&self, job: AnyVectorJob<'_>) -> Result<()> {
        if !is_default() {
            return in_default(|| self.vector(job));
        }
        self.here()?;
        if !self.found.says_subnormals {
            for_any!(AnyVectorJob, &job, job => self.prove(job))?;
        }
        for_any!(AnyVectorJob, job, job => vector::step(self.of(), job))
    }

    fn vendor(&self, desc: &Desc) -> Option<Params> {
        let params = Params::new(clblast::NAME);
        match self.clblast(desc, &params)? {
            Ok(_) => Some(params),
            Err(why) => {
                log::debug!("{why}");
                None
            }
        }
    }

    fn compile(&self, text: &str, entry: &str) -> Result<CompiledKernel> {
        self.here()?;
        in_default(|| kernel_source::compile(self.of(), &self.state, text, entry))
    }

    fn launch(&self, launch: KernelLaunch<'_>) -> Result<()> {
        self.here()?;
        kernel_source::launch(&self.found, &self.state, launch)
    }

    fn interop(&self) -> Option<&dyn Interop> {
        Some(self)
    }

    fn synchronize(&self) -> Result<()> {
        self.enter()?.queue.finish().map_err(|e| self.found.failed(e, 0))
    }

    fn timed(&self, product: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        let failed = |e| self.found.failed(e, 0);
        if self.enter()?.queue.clock {
            // The device is busy with the first products while the others are enqueued. Without them, the time until
            // the host sees the end of so few launches would count as theirs.
            product()?;
            let first = self.enter()?.queue.mark().map_err(failed)?;
            let enqueued = product();
            let state = self.enter()?;
            // Moved, so that the marks are released before the lock is.
            let (first, queue) = (first, &state.queue);
            enqueued?;
            let last = queue.mark().map_err(failed)?;
            queue.finish().map_err(failed)?;
            // A driver may have no time for a mark, or a coarse one.
            let reached = |mark| queue.reached(mark).ok();
            let nanos =
                reached(&first).zip(reached(&last)).map(|(from, to)| to.saturating_sub(from));
            if let Some(nanos) = nanos.filter(|nanos| *nanos > 0) {
                return Ok(Duration::from_nanos(nanos));
            }
        }
        self.synchronize()?;
        let start = Instant::now();
        product()?;
        self.synchronize()?;
        Ok(start.elapsed())
    }

    fn classic(&self, desc: &Desc) -> Vec<Params> {
        gpu::published(desc, &self.found.caps)
    }

    fn read_params(&self) -> Vec<Params> {
        gpu::read_params(&self.found.caps)
    }

    fn kernels(&self) -> Vec<KernelInfo> {
        kernels::infos()
    }
}

#[cfg(test)]
mod tests {
    use gemv_core::ndarray::{Array1, Array2};
    use gemv_core::{Device, bytes_of, bytes_of_mut};

    use super::*;

    /// The first device: PoCL's in the checks.
    fn first() -> Option<Found> {
        let required = std::env::var("GEMV_REQUIRE").unwrap_or_default();
        match discover::found() {
            Ok(all) => Some(all[0].clone()),
            Err(why) if required.split(',').any(|r| r.trim() == "opencl") => panic!("{why}"),
            Err(why) => {
                eprintln!("not tested: {why}");
                None
            }
        }
    }

    #[test]
    fn all_bytes_are_set_to_zero_and_no_others() {
        let Some(found) = first() else { return };
        let opencl = OpenCl::on(found).unwrap();
        let queue = &lock(&opencl.state).queue;
        let ones = [f32::from_bits(u32::MAX); 20];
        let mem = queue.buffer(size_of_val(&ones)).unwrap();
        for bytes in (0..=4 * ones.len()).step_by(2) {
            queue.write(&mem, bytes_of(&ones)).unwrap();
            queue.zero(&mem, bytes).unwrap();
            let mut got = ones;
            queue.read(&mem, 0, bytes_of_mut(&mut got)).unwrap();
            let got: Vec<u8> = got.iter().flat_map(|v| v.to_ne_bytes()).collect();
            let want: Vec<u8> = (0..got.len()).map(|k| if k < bytes { 0 } else { 255 }).collect();
            assert_eq!(got, want, "{bytes} bytes");
        }
    }

    #[test]
    fn counters_are_zero_again_after_a_failure() {
        let Some(found) = first() else { return };
        let opencl = OpenCl::on(found.clone()).unwrap();
        let State { queue, buffers, .. } = &mut *lock(&opencl.state);
        let kept = buffers.counters(queue, &found, 8).unwrap();
        queue.write(&kept, bytes_of(&[1.5_f32; 8])).unwrap();
        let same = buffers.counters(queue, &found, 5).unwrap();
        assert_eq!(same.as_ptr(), kept.as_ptr(), "no failure: kept");
        // Beyond the end of the buffer.
        queue.read(&kept, 1 << 20, &mut [0]).unwrap_err();
        let anew = buffers.counters(queue, &found, 8).unwrap();
        let mut got = [7.0_f32; 8];
        queue.read(&anew, 0, bytes_of_mut(&mut got)).unwrap();
        assert_eq!(got, [0.0; 8]);
    }

    /// The first device is taken for one that is not the host.
    #[test]
    fn a_device_that_is_not_the_host_is_timed_by_its_own_clock() {
        let Some(mut found) = first() else { return };
        found.info.host = false;
        let device = Device::new(Arc::new(OpenCl::on(found).unwrap()));
        let a = device.matrix(&Array2::<f32>::ones((300, 1000))).unwrap();
        let (x, mut y) = (device.vector(&Array1::ones(1000)).unwrap(), device.zeros(300).unwrap());
        device.gemv(1.0, &a, &x, 0.0, &mut y).unwrap();
        // So many products in the first call, and in the second.
        let mut timed = |before: usize, products: usize| {
            let (mut calls, start) = (0, Instant::now());
            let time = device.backend().timed(&mut || {
                calls += 1;
                let count = if calls == 1 { before } else { products };
                (0..count).try_for_each(|_| device.gemv(1.0, &a, &x, 0.0, &mut y))
            });
            assert_eq!(calls, 2);
            (time.unwrap(), start.elapsed())
        };
        let one = (0..5).map(|_| timed(1, 1).0).min().unwrap();
        let (many, all) = timed(1, 200);
        assert!(
            Duration::ZERO < one && 20 * one < many && many < all,
            "{one:?}, {many:?}, {all:?}"
        );
        // The first call keeps the device busy, and does not count. Once, since other processes may interrupt either.
        let shares: Vec<_> = (0..5).map(|_| timed(200, 10)).collect();
        assert!(shares.iter().any(|(few, all)| 4 * *few < *all), "{shares:?}");
    }
}
