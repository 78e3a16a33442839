//! The texts that this backend compiles, as hashes in `tests/golden/programs.txt`: every one that a
//! table names, and one for each kernel and type, or pair of types. Those of a table that the tuner
//! made for a GPU share a line for each kernel and type. A program has one entry point of a text; those that all kernels share
//! have lines of their own.
//!
//! A change of a text or of an argument shows there, and is meant only where a commit says so:
//! `GEMV_GOLDEN=write cargo test -p gemv-opencl golden` writes the file anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use gemv_baselines as _;
use gemv_core::{Dtype, Params, Table, fingerprint};
use gemv_gpu::{ELEMENTWISE, Kernel, VECTOR, baselines};

use crate::cl::OPTIONS;
use crate::{entry, kernels, tables};

/// `f32 row threads=64 : 0123456789abcdef`; comments and white space do not count.
fn line(kernel: &Kernel, types: (Dtype, Dtype), params: &Params) -> String {
    let program = kernel.mixed_program(types, params);
    let mut text = match types {
        (matrix, vectors) if matrix == vectors => format!("{matrix} {}", kernel.name),
        (matrix, vectors) => format!("{matrix}*{vectors} {}", kernel.name),
    };
    for arg in kernel.args.iter().filter(|a| a.define.is_some()) {
        write!(text, " {}={}", arg.name, kernel.arg(params, arg.name)).unwrap();
    }
    let defines: String = program.defines.iter().map(|(k, v)| format!("{k}={v};")).collect();
    format!("{text} : {}", fingerprint(&[OPTIONS, &defines, &program.source], &[]))
}

fn rendered() -> String {
    let mut lines = Vec::new();
    for kernel in kernels::kernels().chain(baselines()).chain([&VECTOR, &ELEMENTWISE]) {
        let params = Params::new(kernel.name);
        lines.extend(Dtype::ALL.map(|dtype| line(kernel, (dtype, dtype), &params)));
        let mixed = Dtype::MIXED.into_iter().filter(|_| kernel.mixed);
        lines.extend(mixed.map(|types| line(kernel, types, &params)));
    }
    for (kernel, entry) in entry::SHARED_BY {
        let (kernel, params) = (kernels::find(kernel).unwrap(), Params::new(kernel));
        lines.extend(Dtype::ALL.map(|dtype| {
            let program = entry::program(kernel, (dtype, dtype), &params, entry);
            let defines: String =
                program.defines.iter().map(|(k, v)| format!("{k}={v};")).collect();
            let hash = fingerprint(&[OPTIONS, &defines, &program.source], &[]);
            format!("{dtype} {entry} of all kernels : {hash}")
        }));
    }
    for table in [tables::POCL, tables::NVIDIA, tables::DEFAULT] {
        for row in &Table::parse(table.name, table.text).unwrap().rows {
            let kernel = kernels::find(row.params.kernel().as_str()).unwrap();
            let dtypes = Dtype::ALL.into_iter().filter(|d| row.dtype.is_none_or(|of| of == *d));
            lines.extend(dtypes.map(|dtype| line(kernel, (dtype, dtype), &row.params)));
        }
    }
    let mut many = BTreeMap::<String, BTreeSet<String>>::new();
    for table in [tables::H200, tables::H100] {
        for row in &Table::parse(table.name, table.text).unwrap().rows {
            let kernel = kernels::find(row.params.kernel().as_str()).unwrap();
            let dtype = row.dtype.expect("the tuner names a type");
            let programs = many.entry(format!("{} {dtype} {}", table.name, kernel.name));
            programs.or_default().insert(line(kernel, (dtype, dtype), &row.params));
        }
    }
    lines.extend(many.into_iter().map(|(key, programs)| {
        let texts: Vec<&str> = programs.iter().map(String::as_str).collect();
        format!("{key}: {} programs, {}", texts.len(), fingerprint(&texts, &[]))
    }));
    lines.sort();
    lines.dedup();
    lines.join("\n") + "\n"
}

#[test]
fn programs_are_as_recorded() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/programs.txt");
    let rendered = rendered();
    if std::env::var("GEMV_GOLDEN").is_ok_and(|v| v == "write") {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        return std::fs::write(&file, rendered).unwrap();
    }
    let recorded = std::fs::read_to_string(&file).unwrap();
    let differs = |a: &str, b: &str| {
        a.lines().filter(|l| !b.lines().any(|o| o == *l)).take(9).collect::<Vec<_>>().join("\n")
    };
    let (new, old) = (differs(&rendered, &recorded), differs(&recorded, &rendered));
    assert!(rendered == recorded, "rendered:\n{new}\nrecorded:\n{old}");
}
