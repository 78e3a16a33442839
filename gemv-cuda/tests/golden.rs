//! The rendered programs of every row of the shipped tables, and one of each kernel for two types, by
//! their hashes: a change of a kernel's text, of a define or of a table shows in `golden/programs.txt`,
//! and nothing changes unseen.
//!
//! Comments and white space do not count. `GEMV_GOLDEN=write` writes the file anew.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gemv_core::{Dtype, Params, fingerprint};
use gemv_gpu::{Kernel, Program};

/// The hash of a program's text, and its defines.
fn described(text: &str, program: &Program) -> String {
    let defines = program.defines.iter().map(|(name, value)| format!("{name}={value};"));
    format!("{text}{}", defines.collect::<String>())
}

#[test]
fn rendered_programs_are_those_of_the_golden_file() {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    // The text is the same for every program of a kernel and its types: it is hashed once.
    let mut texts: BTreeMap<(&str, Dtype, Dtype), String> = BTreeMap::new();
    let mut add =
        |key: String, kernel: &'static Kernel, types: (Dtype, Dtype), program: Program| {
            // Of one type it does not depend on which.
            let of = if types.0 == types.1 { (Dtype::F32, Dtype::F32) } else { types };
            let text = texts.entry((kernel.name, of.0, of.1));
            let text = text.or_insert_with(|| fingerprint(&[&program.source], &[]));
            all.entry(key).or_default().insert(described(text, &program));
        };
    for table in ["h100.txt", "h200.txt", "nvidia.txt", "default.txt"] {
        for (kernel, dtype, _, program) in common::programs_of(table) {
            add(format!("{table} {} {dtype}", kernel.name), kernel, (dtype, dtype), program);
        }
    }
    // All that travels with the crate: what rows that end in `..` stand for, and what is in no table.
    for shipped in gemv_cuda::shipped() {
        let (kernel, types) = (shipped.kernel, shipped.types);
        let key = format!("shipped {} {}*{}", kernel.name, types.0, types.1);
        add(key, kernel, types, shipped.program());
    }
    // Of two types no table says anything: each kernel once.
    for kernel in gemv_cuda::kernels().filter(|kernel| kernel.mixed) {
        for types in Dtype::MIXED {
            let program = kernel.mixed_program(types, &Params::new(kernel.name));
            add(format!("{} {}*{}", kernel.name, types.0, types.1), kernel, types, program);
        }
    }
    let lines = all.iter().map(|(key, programs)| {
        let texts: Vec<&str> = programs.iter().map(String::as_str).collect();
        format!("{key}: {} programs, {}\n", programs.len(), fingerprint(&texts, &[]))
    });
    let now: String = lines.collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/programs.txt");
    if std::env::var("GEMV_GOLDEN").is_ok_and(|v| v == "write") {
        std::fs::write(&path, &now).expect("the golden file can be written");
    }
    let golden = std::fs::read_to_string(&path).expect("the golden file");
    let known: BTreeSet<&str> = golden.lines().collect();
    let changed: Vec<&str> = now.lines().filter(|line| !known.contains(line)).collect();
    assert!(
        now == golden,
        "programs changed; GEMV_GOLDEN=write writes them to {}:\n{}",
        path.display(),
        changed.join("\n")
    );
}
