//! The programs that a device has compiled. Each has one entry point.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use gemv_core::float_mode::for_calls;
use gemv_core::{Dtype, Error, Params, Result};
use gemv_gpu::Kernel;
use ocl::core;

use crate::attempts::Attempts;
use crate::cl::{Compiler, Failure, OPTIONS, QUIET};
use crate::entry;
use crate::sources::Sources;
use crate::store::Store;

/// The matrix' and the vectors' type.
type Types = (Dtype, Dtype);

/// What is asked for: parameters, types and an entry point.
type Asked = (Params, Types, &'static str);

/// A kernel with parameters for a pair of types, whose first use is over.
pub(crate) type Ready = (&'static Kernel, Params, Types);

/// Programs, by any thread: nothing here waits for the device. Nothing is released before the device.
#[derive(Debug)]
pub(crate) struct Programs {
    device: String,
    compiler: Compiler,
    store: Store,
    /// Whether binaries are kept.
    binaries: bool,
    /// By their names in the store.
    programs: Attempts<Arc<Program>>,
    /// By what is asked, so that a repeated request renders no text.
    known: Mutex<HashMap<Asked, Arc<Program>>>,
    /// What no self-test launches with these parameters, so that it is not looked for again. Plans launch each of
    /// these with the same others, so that another shape has no other test.
    untestable: Mutex<HashSet<Asked>>,
    /// The last one to become so is the last.
    ready: Mutex<Vec<Ready>>,
    /// Products that wait for their programs now.
    first_uses: AtomicUsize,
    /// The texts that people have brought.
    pub(crate) sources: Sources,
    /// Why the device is not to be used, if this process has found out.
    refused: OnceLock<String>,
}

#[derive(Debug)]
pub(crate) struct Program {
    /// In the store.
    name: String,
    built: core::Program,
    /// Its object, whose arguments one thread sets at a time.
    kernel: Mutex<core::Kernel>,
    /// Whether the store has its binary.
    kept: AtomicBool,
    /// Whether it has passed the self-test, in this process or an earlier one.
    tested: AtomicBool,
    /// Held by the thread that tests it.
    pub(crate) testing: Mutex<()>,
}

impl Program {
    pub(crate) fn kernel(&self) -> MutexGuard<'_, core::Kernel> {
        locked(&self.kernel)
    }
}

/// A panic leaves at worst a cache without an entry, which is in order.
fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One product waits for its program, until this is dropped.
pub(crate) struct FirstUse<'p>(&'p AtomicUsize);

impl Drop for FirstUse<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Programs {
    pub(crate) fn new(device: &str, compiler: Compiler, store: Store, binaries: bool) -> Programs {
        Programs {
            device: device.into(),
            compiler,
            store,
            binaries,
            programs: Attempts::default(),
            known: Mutex::default(),
            untestable: Mutex::default(),
            ready: Mutex::default(),
            first_uses: AtomicUsize::new(0),
            sources: Sources::default(),
            refused: OnceLock::new(),
        }
    }

    pub(crate) fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// Whether the device may compute.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason, if it may not.
    pub(crate) fn usable(&self) -> Result<()> {
        match self.refused.get() {
            None => Ok(()),
            Some(reason) => {
                let (device, reason) = (self.device.clone(), reason.clone());
                Err(Error::Refused { device, reason })
            }
        }
    }

    /// Notes that the device is not to be used, for later processes too.
    pub(crate) fn refuse(&self, reason: &str) {
        self.store.refuse(reason);
        self.refused.get_or_init(|| reason.into());
    }

    /// The programs of these entry points, compiled at the first request, or found in the store. Several are made at once.
    ///
    /// # Errors
    /// [`Error::Build`], and the driver's refusal.
    pub(crate) fn entries(
        &self,
        kernel: &Kernel,
        (params, types): (&Params, Types),
        names: &[&'static str],
    ) -> Result<Vec<Arc<Program>>> {
        if let Some(known) = self.known((*params, types), names.iter().copied()) {
            return Ok(known);
        }
        let one = |name: &'static str| self.entry(kernel, (params, types), name);
        let Some((first, others)) = names.split_first() else { return Ok(Vec::new()) };
        std::thread::scope(|scope| {
            let others = others.iter().map(|name| {
                let begin = std::thread::Builder::new().spawn_scoped(scope, || {
                    let _mode = for_calls();
                    one(name)
                });
                (*name, begin.ok())
            });
            let others: Vec<_> = others.collect();
            let first = one(first);
            // Where no thread can be made, this one does the work.
            let others = others.into_iter().map(|(name, begun)| match begun {
                Some(begun) => {
                    begun.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                }
                None => one(name),
            });
            std::iter::once(first).chain(others).collect()
        })
    }

    /// Those of them that are there, if they are all.
    pub(crate) fn known(
        &self,
        (params, types): (Params, Types),
        mut names: impl Iterator<Item = &'static str>,
    ) -> Option<Vec<Arc<Program>>> {
        let known = locked(&self.known);
        names.try_fold(Vec::new(), |mut all, name| {
            all.push(known.get(&(params, types, name))?.clone());
            Some(all)
        })
    }

    fn entry(
        &self,
        kernel: &Kernel,
        (params, types): (&Params, Types),
        name: &'static str,
    ) -> Result<Arc<Program>> {
        let text = entry::program(kernel, types, params, name);
        let mut options = [OPTIONS, QUIET].concat();
        for (name, value) in &text.defines {
            options += &format!(" -D{name}={value}");
        }
        let file = self.store.name(&text.source, &options);
        let made = self.programs.get(&file, || {
            let what = match types {
                (matrix, vectors) if matrix == vectors => format!("{params} for {matrix}"),
                (matrix, vectors) => format!("{params} for {matrix}*{vectors}"),
            };
            self.program(&file, name, &what, (&text.source, &options)).map_err(|e| match e {
                Ok(log) => Error::Build { kernel: what, device: self.device.clone(), log },
                Err(failure) => failure.on(&self.device),
            })
        })?;
        locked(&self.known).insert((*params, types, name), made.clone());
        Ok(made)
    }

    /// A program from its binary in the store, else compiled. A binary that the driver does not take is no
    /// error: it is compiled again, and replaced by [`keep`](Self::keep).
    fn program(
        &self,
        file: &str,
        entry: &str,
        what: &str,
        (source, options): (&str, &str),
    ) -> Result<Arc<Program>, Result<String, Failure>> {
        let begin = Instant::now();
        let done = |how, built: core::Program, kept| {
            let kernel = core::create_kernel(&built, entry)
                .map_err(|e| Err(Failure::new("clCreateKernel", e)))?;
            let millis = begin.elapsed().as_millis();
            log::debug!("opencl: {how} {file} in {millis} ms: {entry} of {what}");
            Ok(Arc::new(Program {
                name: file.into(),
                built,
                kernel: Mutex::new(kernel),
                kept: AtomicBool::new(kept),
                tested: AtomicBool::new(self.store.is_tested(file)),
                testing: Mutex::default(),
            }))
        };
        if let Some(binary) = self.store.binary(file) {
            match self.compiler.load(&binary, options) {
                Ok(built) => return done("loaded", built, true),
                Err(failure) => {
                    let Failure { call, reason, .. } = failure;
                    log::info!("opencl: {file}.bin is compiled again: {call} fails: {reason}");
                }
            }
        }
        log::debug!("opencl: compiling {file}: {entry} of {what}");
        done("compiled", self.compiler.build(source, options)?, false)
    }

    /// Whether these have passed the self-test, or none launches them with these parameters.
    pub(crate) fn are_tested(
        &self,
        (params, types): (Params, Types),
        mut entries: impl Iterator<Item = (&'static str, Arc<Program>)>,
    ) -> bool {
        entries.all(|(name, program)| {
            program.tested.load(Ordering::Acquire)
                || locked(&self.untestable).contains(&(params, types, name))
        })
    }

    /// Notes, for this process, that no self-test launches these entry points with these parameters.
    pub(crate) fn untestable(
        &self,
        (params, types): (Params, Types),
        names: impl Iterator<Item = &'static str>,
    ) {
        locked(&self.untestable).extend(names.map(|name| (params, types, name)));
    }

    /// Notes that these have passed it.
    pub(crate) fn passed<'p>(&self, entries: impl Iterator<Item = &'p Arc<Program>>) {
        for program in entries {
            if !program.tested.swap(true, Ordering::AcqRel) {
                self.store.keep_tested(&program.name);
            }
        }
    }

    /// Puts their binaries into the store, where it has not got them.
    pub(crate) fn keep<'p>(&self, entries: impl Iterator<Item = &'p Arc<Program>>) {
        for program in entries.filter(|_| self.binaries && self.store.keeps()) {
            if !program.kept.swap(true, Ordering::Relaxed)
                && let Some(binary) = self.compiler.binary(&program.built)
            {
                self.store.keep_binary(&program.name, &binary);
            }
        }
    }

    /// Notes a product that waits for its programs; and whether another one does.
    pub(crate) fn first_use(&self) -> (FirstUse<'_>, bool) {
        let others = self.first_uses.fetch_add(1, Ordering::Relaxed);
        (FirstUse(&self.first_uses), others > 0)
    }

    /// Notes that what these parameters launch is compiled and tested.
    pub(crate) fn is_ready(&self, one: Ready) {
        let mut all = locked(&self.ready);
        if !all.iter().any(|(_, params, types)| (*params, *types) == (one.1, one.2)) {
            all.push(one);
        }
    }

    /// What is ready for these types, the best guess first: that of the same kernel, then the newest.
    pub(crate) fn ready(&self, kernel: &Kernel, types: Types) -> Vec<Ready> {
        let all = locked(&self.ready);
        let all = all.iter().rev().filter(|of| of.2 == types && of.0.signature == kernel.signature);
        let (same, other): (Vec<_>, Vec<_>) = all.partition(|of| of.0.name == kernel.name);
        same.into_iter().chain(other).copied().collect()
    }
}
