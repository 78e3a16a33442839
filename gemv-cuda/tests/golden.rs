//! The rendered programs of every row of the shipped tables, and one of each kernel for two types, by
//! their hashes: a change of a kernel's text, of a define or of a table shows in `golden/programs.txt`,
//! and nothing changes unseen.
//!
//! Comments and white space do not count. `GEMV_GOLDEN=write` writes the file anew.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gemv_core::{Dtype, Params, fingerprint};

#[test]
fn rendered_programs_are_those_of_the_golden_file() {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut texts: BTreeMap<&str, String> = BTreeMap::new();
    for table in ["h100.txt", "h200.txt", "nvidia.txt", "default.txt"] {
        for (kernel, dtype, _, program) in common::programs_of(table) {
            // The text is the same for every program of a kernel: it is hashed once.
            let text = texts.entry(kernel.name);
            let text = text.or_insert_with(|| fingerprint(&[&program.source], &[]));
            let defines: Vec<String> =
                program.defines.iter().map(|(name, value)| format!("{name}={value};")).collect();
            let key = format!("{table} {} {dtype}", kernel.name);
            all.entry(key).or_default().insert(format!("{text}{}", defines.concat()));
        }
    }
    // All that travels with the crate: what rows that end in `..` stand for, and what is in no table.
    for shipped in gemv_cuda::shipped() {
        let program = shipped.program();
        let defines: Vec<String> =
            program.defines.iter().map(|(name, value)| format!("{name}={value};")).collect();
        // As above, but for those of two types, whose texts differ.
        let mixed = shipped.types.0 != shipped.types.1;
        let text = match mixed {
            true => fingerprint(&[&program.source], &[]),
            false => texts
                .entry(shipped.kernel.name)
                .or_insert_with(|| fingerprint(&[&program.source], &[]))
                .clone(),
        };
        let key =
            format!("shipped {} {}*{}", shipped.kernel.name, shipped.types.0, shipped.types.1);
        all.entry(key).or_default().insert(format!("{text}{}", defines.concat()));
    }
    // Of two types no table says anything: each kernel once.
    for kernel in gemv_cuda::kernels().filter(|kernel| kernel.mixed) {
        for types in Dtype::MIXED {
            let program = kernel.mixed_program(types, &Params::new(kernel.name));
            let defines: Vec<String> =
                program.defines.iter().map(|(name, value)| format!("{name}={value};")).collect();
            let text = fingerprint(&[&program.source], &[]);
            let key = format!("{} {}*{}", kernel.name, types.0, types.1);
            all.entry(key).or_default().insert(format!("{text}{}", defines.concat()));
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
