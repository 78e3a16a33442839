//! The program of one entry point: a kernel's text without its other entry points, which a compiler would take time for.
//!
//! The launches that add the sums of split rows have programs of their own, which do not depend on parameters: all kernels
//! share them.

use gemv_core::{Dtype, Params};
use gemv_gpu::{GEMM_PRELUDE, GEMM_REDUCE_SOURCE, Kernel, Program, REDUCE_SOURCE, VECTOR, source};

/// Texts whose entry points depend on the vectors' type alone.
const SHARED: [&str; 2] = [REDUCE_SOURCE, source![GEMM_PRELUDE, REDUCE_SOURCE, GEMM_REDUCE_SOURCE]];
/// Entry points of other texts that do.
const ALIKE: [&str; 2] = ["tiles_super_segments", "tiles_reduce"];

/// Whether a program has one entry point of a kernel. The plain steps, which are short and come together, are one program.
pub(crate) fn is_alone(kernel: &Kernel) -> bool {
    kernel.name != VECTOR.name
}

/// The program that has this entry point of a kernel and no other, for these types and parameters.
pub(crate) fn program(
    kernel: &Kernel,
    (matrix, vectors): (Dtype, Dtype),
    params: &Params,
    entry: &str,
) -> Program {
    let of_all = ALIKE.contains(&entry).then_some(kernel.source);
    let shared =
        SHARED.into_iter().find(|text| has(text, entry) && kernel.source.contains(REDUCE_SOURCE));
    let program = match shared.or(of_all) {
        Some(source) => {
            Kernel { source, args: &[], defines: &[], ..*kernel }.program(vectors, params)
        }
        None => kernel.mixed_program((matrix, vectors), params),
    };
    Program { source: alone(&program.source, entry), ..program }
}

/// The name that a line begins the definition of.
fn defined(line: &str) -> Option<&str> {
    let (_, rest) = line.strip_prefix("KERNEL(")?.split_once(") ")?;
    Some(rest.split_once('(')?.0)
}

/// Whether a text defines this entry point, other than by a macro.
fn has(text: &str, entry: &str) -> bool {
    text.lines().any(|line| defined(line) == Some(entry))
}

/// A text without the entry points of other names. They begin at the begin of a line, and end with a line that is a brace
/// or, of one that is on one line, with that. Those of steps are lines `STEP(name, ..)`.
fn alone(text: &str, entry: &str) -> String {
    let other_step = |line: &str| {
        let step = line.strip_prefix("STEP(").and_then(|rest| rest.split_once(','));
        step.is_some_and(|(name, _)| name != entry)
    };
    let mut one = String::with_capacity(text.len());
    let mut within = false;
    for line in text.lines() {
        // A name of capitals is a macro.
        let begins = defined(line)
            .is_some_and(|name| name != entry && !name.contains(|c: char| c.is_ascii_uppercase()));
        let other = within || begins || other_step(line);
        within = (within || begins && !line.ends_with('}')) && line != "}";
        if !other {
            one += line;
            one.push('\n');
        }
    }
    one
}

/// The entry points that kernels share, with one that has each.
#[cfg(test)]
pub(crate) const SHARED_BY: [(&str, &str); 6] = [
    ("row", "reduce_segments"),
    ("row", "reduce_super_segments"),
    ("gemm-row", "gemm_reduce_segments"),
    ("gemm-row", "gemm_reduce_super_segments"),
    ("col-tile", "tiles_super_segments"),
    ("col-tile", "tiles_reduce"),
];

#[cfg(test)]
mod tests {
    use gemv_core::Table;
    use gemv_gpu::{Caps, ELEMENTWISE, Language, VECTOR};

    use super::*;
    use crate::kernels::find;
    use crate::tables;

    fn entries(text: &str) -> Vec<&str> {
        text.lines().filter_map(defined).collect()
    }

    #[test]
    fn a_program_has_one_entry_point() {
        let (params, types) = (Params::new("row-cpu"), (Dtype::F32, Dtype::F32));
        let of = |kernel, types, entry| program(find(kernel).unwrap(), types, &params, entry);
        let row = of("row-cpu", types, "row_cpu");
        assert_eq!(entries(&row.source), ["row_cpu"]);
        let pack = of("gemm-row-cpu", types, "gemm_pack");
        assert_eq!(entries(&pack.source), ["gemm_pack"]);
        // A name that is a macro's.
        assert_eq!(entries(&of("gemm-row", types, "gemm_row").source), ["ENTRY"]);
    }

    /// Of every launch that a table of a GPU or a CPU leads to.
    #[test]
    fn a_program_has_what_is_launched() {
        let mut caps = Caps::new(Language::OpenCl);
        (caps.units, caps.max_group, caps.local_bytes, caps.fp64) = (132, 1024, 48 << 10, true);
        caps.fences = true;
        let mut seen = std::collections::HashSet::new();
        for table in [tables::POCL, tables::H200, tables::H100, tables::NVIDIA, tables::DEFAULT] {
            for row in &Table::parse(table.name, table.text).unwrap().rows {
                let kernel = find(row.params.kernel().as_str()).unwrap();
                for desc in row.examples().filter(|d| kernel.fits(d, &row.params, &caps).is_ok()) {
                    for launch in kernel.plan(&desc, &row.params, &caps).launches {
                        let types = (desc.dtype, desc.vectors);
                        if seen.insert((kernel.name, launch.entry)) {
                            let source = program(kernel, types, &row.params, launch.entry).source;
                            let names = entries(&source);
                            let frame = |name: &&str| *name == "ENTRY";
                            let is = |name: &&str| *name == launch.entry || frame(name);
                            assert!(!names.is_empty() && names.iter().all(is), "{names:?}");
                        }
                    }
                }
            }
        }
        assert!(SHARED_BY.iter().all(|(_, entry)| seen.iter().any(|(_, of)| of == entry)));
    }

    #[test]
    fn kernels_and_parameters_share_the_programs_that_add_sums() {
        let mixed = (Dtype::Bf16, Dtype::F32);
        let of = |text: &str, types, entry| {
            let params: Params = text.parse().unwrap();
            program(find(params.kernel().as_str()).unwrap(), types, &params, entry)
        };
        let one = of("row-cpu", (Dtype::F32, Dtype::F32), "reduce_segments");
        assert_eq!(one, of("row threads=64 vec=4", mixed, "reduce_segments"));
        assert_eq!(entries(&one.source), ["reduce_segments"]);
        let many = of("gemm-row vec=4", mixed, "gemm_reduce_segments");
        assert_eq!(many, of("gemm-col", (Dtype::F32, Dtype::F32), "gemm_reduce_segments"));
        assert!(many.source.contains("reduce_many") && many.defines.len() == 1);
        let tiles = |text| of(text, (Dtype::F64, Dtype::F64), "tiles_reduce");
        assert_eq!(tiles("col-tile vec=2"), tiles("col-tile threads=128 unroll=2"));
    }

    #[test]
    fn a_function_is_alone() {
        let params = Params::new("elementwise");
        let exp = program(&ELEMENTWISE, (Dtype::F32, Dtype::F32), &params, "elementwise_exp");
        let steps: Vec<_> = exp.source.lines().filter(|l| l.starts_with("STEP(")).collect();
        assert_eq!(steps, ["STEP(elementwise_exp, fn_exp(X_))"]);
        assert!(is_alone(&ELEMENTWISE) && !is_alone(&VECTOR));
    }
}
