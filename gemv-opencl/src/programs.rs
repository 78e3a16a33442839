//! The programs that a device has compiled, and their kernel objects.

use std::collections::{HashMap, HashSet};

use gemv_core::{Dtype, Error, Params, Result};
use gemv_gpu::Kernel;
use ocl::core;

use crate::cl::{Failure, OPTIONS, QUIET, Queue};
use crate::store::Store;

/// A kernel object of [`Programs`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry(usize);

/// A kernel's name, and the defines of one of its programs. Parameters that only the launch depends
/// on share a program.
type Key = (&'static str, Vec<(String, String)>);

/// The matrix' and the vectors' type.
type Types = (Dtype, Dtype);

/// Programs by their defines. Nothing is released before the device: an [`Entry`] stays valid.
#[derive(Debug)]
pub(crate) struct Programs {
    store: Store,
    /// Whether binaries are kept.
    binaries: bool,
    numbers: HashMap<Key, usize>,
    programs: Vec<Program>,
    entries: Vec<Object>,
    /// By what is asked, so that a repeated request renders no text.
    known: HashMap<(Params, Types, &'static str), Entry>,
    /// What no self-test launches with these parameters, so that it is not looked for again. Plans launch each of
    /// these with the same others, so that another shape has no other test.
    untestable: HashSet<(Params, Types, &'static str)>,
}

#[derive(Debug)]
struct Program {
    /// In the store.
    name: String,
    built: core::Program,
    /// Whether the store has its binary.
    kept: bool,
    by_name: HashMap<&'static str, Entry>,
    /// The entry points that have passed the self-test, in this process or an earlier one.
    tested: Vec<String>,
}

#[derive(Debug)]
struct Object {
    kernel: core::Kernel,
    name: &'static str,
    /// The index of its program.
    program: usize,
}

impl Programs {
    pub(crate) fn new(store: Store, binaries: bool) -> Programs {
        let (numbers, programs, entries, known, untestable) = Default::default();
        Programs { store, binaries, numbers, programs, entries, known, untestable }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The kernel objects of these entry points, compiled at the first request, or found in the store.
    pub(crate) fn entries(
        &mut self,
        queue: &Queue,
        device: &str,
        kernel: &Kernel,
        (params, types): (&Params, Types),
        names: impl Iterator<Item = &'static str> + Clone,
    ) -> Result<Vec<Entry>> {
        let known = |name| self.known.get(&(*params, types, name)).copied();
        if let Some(entries) = names.clone().map(known).collect() {
            return Ok(entries);
        }
        let text = kernel.mixed_program(types, params);
        let key = (kernel.name, text.defines);
        let number = match self.numbers.get(&key) {
            Some(&number) => number,
            None => {
                let mut options = [OPTIONS, QUIET].concat();
                for (name, value) in &key.1 {
                    options += &format!(" -D{name}={value}");
                }
                let program = self.program(queue, &text.source, &options);
                let program = program.map_err(|e| match e {
                    Ok(log) => Error::Build {
                        kernel: match types {
                            (matrix, vectors) if matrix == vectors => {
                                format!("{params} for {matrix}")
                            }
                            (matrix, vectors) => format!("{params} for {matrix}*{vectors}"),
                        },
                        device: device.into(),
                        log,
                    },
                    Err(failure) => failure.on(device),
                })?;
                self.programs.push(program);
                self.numbers.insert(key, self.programs.len() - 1);
                self.programs.len() - 1
            }
        };
        let program = &mut self.programs[number];
        let mut found = Vec::new();
        for name in names {
            let entry = match program.by_name.get(name) {
                Some(&entry) => entry,
                None => {
                    let kernel = core::create_kernel(&program.built, name)
                        .map_err(|e| Failure::new("clCreateKernel", e).on(device))?;
                    self.entries.push(Object { kernel, name, program: number });
                    let entry = Entry(self.entries.len() - 1);
                    program.by_name.insert(name, entry);
                    entry
                }
            };
            self.known.insert((*params, types, name), entry);
            found.push(entry);
        }
        Ok(found)
    }

    /// A program from its binary in the store, else compiled. A binary that the driver does not take is no
    /// error: it is compiled again, and replaced by [`keep`](Self::keep).
    fn program(
        &self,
        queue: &Queue,
        source: &str,
        options: &str,
    ) -> Result<Program, Result<String, Failure>> {
        let name = self.store.name(source, options);
        let by_name = HashMap::new();
        if let Some(binary) = self.store.binary(&name) {
            match queue.load(&binary, options) {
                Ok(built) => {
                    log::debug!("opencl: loaded {name}");
                    let tested = self.store.tested(&name);
                    return Ok(Program { name, built, kept: true, by_name, tested });
                }
                Err(failure) => {
                    let Failure { call, reason, .. } = failure;
                    log::info!("opencl: {name}.bin is compiled again: {call} fails: {reason}");
                }
            }
        }
        let built = queue.build(source, options)?;
        log::debug!("opencl: compiled {name}");
        let tested = self.store.tested(&name);
        Ok(Program { name, built, kept: false, by_name, tested })
    }

    pub(crate) fn get(&self, entry: Entry) -> &core::Kernel {
        &self.entries[entry.0].kernel
    }

    /// Whether these entry points have passed the self-test, or none launches them with these parameters.
    pub(crate) fn are_tested(&self, (params, types): (Params, Types), entries: &[Entry]) -> bool {
        entries.iter().map(|entry| &self.entries[entry.0]).all(|object| {
            let mut tested = self.programs[object.program].tested.iter();
            tested.any(|name| name == object.name)
                || self.untestable.contains(&(params, types, object.name))
        })
    }

    /// Notes, for this process, that no self-test launches these entry points with these parameters.
    pub(crate) fn untestable(&mut self, (params, types): (Params, Types), entries: &[Entry]) {
        let names = entries.iter().map(|entry| (params, types, self.entries[entry.0].name));
        self.untestable.extend(names);
    }

    /// Notes that these entry points have passed it.
    pub(crate) fn passed(&mut self, entries: &[Entry]) {
        for Object { name, program, .. } in entries.iter().map(|entry| &self.entries[entry.0]) {
            let Program { tested, name: file, .. } = &mut self.programs[*program];
            if tested.iter().all(|known| known != name) {
                tested.push((*name).into());
                self.store.keep_tested(file, tested);
            }
        }
    }

    /// Puts the binaries of these entry points' programs into the store, where it has not got them.
    pub(crate) fn keep(&mut self, queue: &Queue, entries: &[Entry]) {
        for entry in entries {
            let program = &mut self.programs[self.entries[entry.0].program];
            if !program.kept && self.binaries && self.store.keeps() {
                program.kept = true;
                if let Some(binary) = queue.binary(&program.built) {
                    self.store.keep_binary(&program.name, &binary);
                }
            }
        }
    }
}
