//! `gemv info --kernels`: the glossary of kernels and their arguments.

use std::collections::BTreeMap;
use std::io::{self, Write};

use gemv::Device;
use gemv::unstable::KernelInfo;
use serde_json::{Value, json};

/// The glossary, as text.
pub(super) fn list(
    all: &BTreeMap<String, Vec<KernelInfo>>,
    out: &mut impl Write,
) -> io::Result<()> {
    for (backend, kernels) in all {
        writeln!(out, "{backend}")?;
        for kernel in kernels {
            writeln!(out, "\n  {}: {}", kernel.name, kernel.about)?;
            for arg in kernel.args {
                let by = if arg.define.is_some() { "the program" } else { "the launch" };
                let (values, default) = (arg.values, arg.default);
                writeln!(out, "    {:<16} {}", arg.name, arg.about)?;
                writeln!(out, "    {:<16} {values}; default {default}; of {by}", "")?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// The glossary, as JSON: by backend, a list of kernels.
pub(super) fn json(all: &BTreeMap<String, Vec<KernelInfo>>) -> Value {
    let one = |kernel: &KernelInfo| {
        let args = kernel.args.iter().map(|arg| {
            json!({
                "name": arg.name,
                "about": arg.about,
                "values": arg.values.to_string(),
                "default": arg.default,
                "compiled": arg.define.is_some(),
            })
        });
        json!({
            "name": kernel.name,
            "about": kernel.about,
            "fingerprint": kernel.fingerprint,
            "args": args.collect::<Vec<_>>(),
        })
    };
    all.iter()
        .map(|(backend, kernels)| (backend.clone(), kernels.iter().map(one).collect()))
        .collect::<serde_json::Map<_, Value>>()
        .into()
}

/// The fingerprint that a table has for a kernel and the one that the kernel has, where they differ.
/// A table without a line for it says nothing.
pub(super) fn stale(
    device: &Device,
    table: &gemv::unstable::Table,
    kernel: &str,
) -> Option<(String, String)> {
    let then = table.header(&gemv_lab::tuner::kernel_key(kernel))?;
    let now = device.backend().kernels().into_iter().find(|info| info.name == kernel)?.fingerprint;
    (then != now).then(|| (then.to_owned(), now))
}
