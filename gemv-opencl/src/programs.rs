//! The programs that a device has compiled, and their kernel objects.

use std::collections::HashMap;

use gemv_core::{Dtype, Error, Params, Result};
use gemv_gpu::Kernel;
use ocl::core;

use crate::cl::{Failure, OPTIONS, Queue};

/// A kernel object of [`Programs`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry(usize);

/// A kernel's name, and the defines of one of its programs. Parameters that only the launch depends
/// on share a program.
type Key = (&'static str, Vec<(String, String)>);

/// The matrix' and the vectors' type.
type Types = (Dtype, Dtype);

/// Programs by their defines. Nothing is released before the device: an [`Entry`] stays valid.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    programs: HashMap<Key, Program>,
    entries: Vec<core::Kernel>,
    /// By what is asked, so that a repeated request renders no text.
    known: HashMap<(Params, Types, &'static str), Entry>,
}

#[derive(Debug)]
struct Program {
    built: core::Program,
    by_name: HashMap<&'static str, Entry>,
}

impl Programs {
    /// The kernel objects of these entry points, compiled at the first request.
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
        if !self.programs.contains_key(&key) {
            let mut options = String::from(OPTIONS);
            for (name, value) in &key.1 {
                options += &format!(" -D{name}={value}");
            }
            let built = queue.build(&text.source, &options).map_err(|e| match e {
                Ok(log) => Error::Build {
                    kernel: match types {
                        (matrix, vectors) if matrix == vectors => format!("{params} for {matrix}"),
                        (matrix, vectors) => format!("{params} for {matrix}*{vectors}"),
                    },
                    device: device.into(),
                    log,
                },
                Err(failure) => failure.on(device),
            })?;
            self.programs.insert(key.clone(), Program { built, by_name: HashMap::new() });
        }
        let program = self.programs.get_mut(&key).expect("inserted above");
        let mut found = Vec::new();
        for name in names {
            let entry = match program.by_name.get(name) {
                Some(&entry) => entry,
                None => {
                    let object = core::create_kernel(&program.built, name)
                        .map_err(|e| Failure::new("clCreateKernel", e).on(device))?;
                    self.entries.push(object);
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

    pub(crate) fn get(&self, entry: Entry) -> &core::Kernel {
        &self.entries[entry.0]
    }
}
