//! The programs that a device has compiled, and their entry points.

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
    /// Whether a program has all entry points of its kernel: for a driver that compiles each at its first launch. For others
    /// it has one: see [`entry`].
    whole: bool,
    /// By their names in the store.
    programs: Attempts<Arc<Program>>,
    /// By the program's name and their own.
    entries: Mutex<HashMap<(String, &'static str), Arc<Entry>>>,
    /// By what is asked, so that a repeated request renders no text.
    known: Mutex<HashMap<Asked, Arc<Entry>>>,
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

/// A compiled program.
#[derive(Debug)]
struct Program {
    /// In the store.
    name: String,
    program: core::Program,
    /// Whether the store has its binary.
    kept: AtomicBool,
}

/// One entry point of a program.
#[derive(Debug)]
pub(crate) struct Entry {
    of: Arc<Program>,
    pub(crate) name: &'static str,
    /// Its object, whose arguments one thread sets at a time.
    kernel: Mutex<core::Kernel>,
    /// Whether it has passed the self-test, in this process or an earlier one.
    tested: AtomicBool,
    /// Held by the thread that tests it.
    pub(crate) testing: Mutex<()>,
}

impl Entry {
    pub(crate) fn kernel(&self) -> MutexGuard<'_, core::Kernel> {
        locked(&self.kernel)
    }

    /// The name of its program in the store.
    #[cfg(test)]
    pub(crate) fn program(&self) -> &str {
        &self.of.name
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
    /// `binaries`: whether binaries are kept. `whole`: whether a program has all entry points of its kernel.
    pub(crate) fn new(
        device: &str,
        compiler: Compiler,
        store: Store,
        (binaries, whole): (bool, bool),
    ) -> Programs {
        Programs {
            device: device.into(),
            compiler,
            store,
            binaries,
            whole,
            programs: Attempts::default(),
            entries: Mutex::default(),
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
    ) -> Result<Vec<Arc<Entry>>> {
        if let Some(known) = self.known((*params, types), names.iter().copied()) {
            return Ok(known);
        }
        let one = |name: &'static str| self.entry(kernel, (params, types), name);
        let Some((first, others)) = names.split_first() else { return Ok(Vec::new()) };
        if self.whole || others.is_empty() {
            return names.iter().map(|name| one(name)).collect();
        }
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
    ) -> Option<Vec<Arc<Entry>>> {
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
    ) -> Result<Arc<Entry>> {
        let text = match self.whole || !entry::is_alone(kernel) {
            true => kernel.mixed_program(types, params),
            false => entry::program(kernel, types, params, name),
        };
        let mut options = [OPTIONS, QUIET].concat();
        for (name, value) in &text.defines {
            options += &format!(" -D{name}={value}");
        }
        let file = self.store.name(&text.source, &options);
        let built = self.programs.get(&file, || {
            let what = match types {
                (matrix, vectors) if matrix == vectors => format!("{params} for {matrix}"),
                (matrix, vectors) => format!("{params} for {matrix}*{vectors}"),
            };
            self.built(&file, &what, (&text.source, &options)).map_err(|e| match e {
                Ok(log) => Error::Build { kernel: what, device: self.device.clone(), log },
                Err(failure) => failure.on(&self.device),
            })
        })?;
        let key = (file, name);
        let known = locked(&self.entries).get(&key).cloned();
        let entry = match known {
            Some(entry) => entry,
            None => {
                // Without the lock: a driver may compile as late as here. Of two threads, the first one's is taken.
                let kernel = core::create_kernel(&built.program, name)
                    .map_err(|e| Failure::new("clCreateKernel", e).on(&self.device))?;
                let tested = AtomicBool::new(self.store.is_tested(&key.0, name));
                let (kernel, testing) = (Mutex::new(kernel), Mutex::default());
                let new = Arc::new(Entry { of: built, name, kernel, tested, testing });
                locked(&self.entries).entry(key).or_insert(new).clone()
            }
        };
        locked(&self.known).insert((*params, types, name), entry.clone());
        Ok(entry)
    }

    /// A program from its binary in the store, else compiled. A binary that the driver does not take is no
    /// error: it is compiled again, and replaced by [`keep`](Self::keep).
    fn built(
        &self,
        file: &str,
        what: &str,
        (source, options): (&str, &str),
    ) -> Result<Arc<Program>, Result<String, Failure>> {
        let begin = Instant::now();
        let done = |how, program, kept| {
            let millis = begin.elapsed().as_millis();
            log::debug!("opencl: {how} {file} in {millis} ms: {what}");
            Ok(Arc::new(Program { name: file.into(), program, kept: AtomicBool::new(kept) }))
        };
        if let Some(binary) = self.store.binary(file) {
            match self.compiler.load(&binary, options) {
                Ok(program) => return done("loaded", program, true),
                Err(failure) => {
                    let Failure { call, reason, .. } = failure;
                    log::info!("opencl: {file}.bin is compiled again: {call} fails: {reason}");
                }
            }
        }
        log::debug!("opencl: compiling {file}: {what}");
        done("compiled", self.compiler.build(source, options)?, false)
    }

    /// Whether these have passed the self-test, or none launches them with these parameters.
    pub(crate) fn are_tested(
        &self,
        (params, types): (Params, Types),
        entries: &[Arc<Entry>],
    ) -> bool {
        entries.iter().all(|entry| {
            entry.tested.load(Ordering::Acquire)
                || locked(&self.untestable).contains(&(params, types, entry.name))
        })
    }

    /// Notes, for this process, that no self-test launches these entry points with these parameters.
    pub(crate) fn untestable(&self, (params, types): (Params, Types), entries: &[Arc<Entry>]) {
        let asked = entries.iter().map(|entry| (params, types, entry.name));
        locked(&self.untestable).extend(asked);
    }

    /// Notes that these have passed it.
    pub(crate) fn passed(&self, entries: &[Arc<Entry>]) {
        for entry in entries {
            if !entry.tested.swap(true, Ordering::AcqRel) {
                self.store.keep_tested(&entry.of.name, entry.name);
            }
        }
    }

    /// Puts their binaries into the store, where it has not got them.
    pub(crate) fn keep(&self, entries: &[Arc<Entry>]) {
        let entries = entries.iter().filter(|_| self.binaries && self.store.keeps());
        for Program { name, program, kept } in entries.map(|entry| &*entry.of) {
            if !kept.swap(true, Ordering::Relaxed)
                && let Some(binary) = self.compiler.binary(program)
            {
                self.store.keep_binary(name, &binary);
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
