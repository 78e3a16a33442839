//! Compiles programs that the record of `nvrtc.rs` has not, without a GPU.
//!
//! - With an epilogue: each kernel that takes one, with its candidates' first parameters, for a matrix and vectors of one type
//!   and of two, a bias with and without a function.
//! - For `sm_90a` alone: of bf16 the first candidates for 2 to 16 right-hand sides, of f16 one.
//! - Of packed matrices: each format, one column of X and several, one segment a warp and several, rows of one block and of
//!   several.
//!
//! NVRTC is found as the backend finds it. Where there is none, a test says so and ends; `GEMV_REQUIRE=nvrtc` makes that a failure.

use std::collections::BTreeSet;

use gemv_core::{Desc, Dtype, Function, Layout};
use gemv_cuda::{Nvrtc, candidates, cluster, kernels, options_of};
use gemv_gpu::{Caps, Language};

fn caps() -> Caps {
    let mut caps = Caps::new(Language::Cuda);
    (caps.units, caps.max_group, caps.local_bytes, caps.fp64) = (132, 1024, 48 << 10, true);
    (caps.fp64_mma, caps.async_copies, caps.sm_90a) = (true, true, true);
    (caps.cluster, caps.dynamic_bytes) = (cluster(90), 227 << 10);
    caps
}

fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::find() {
        Ok(nvrtc) => Some(nvrtc),
        Err(e) => {
            let required = std::env::var("GEMV_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|of| of.trim() == "nvrtc"), "{e}");
            eprintln!("not tested: {e}");
            None
        }
    }
}

#[test]
fn programs_with_an_epilogue_compile() {
    let Some(nvrtc) = nvrtc() else { return };
    let types = [(Dtype::Bf16, Dtype::F32), (Dtype::F64, Dtype::F64)];
    let shapes = [(4096, 4096), (14_336, 4096), (7, 300_000), (300_000, 7), (100_000, 37)];
    let counts = [(1, 1), (3, 1), (16, 1), (1, 9)];
    let mut seen = BTreeSet::new();
    for ((dtype, vectors), shape) in
        types.into_iter().flat_map(|of| shapes.map(|shape| (of, shape)))
    {
        for (layout, (rhs, batch)) in
            [Layout::Row, Layout::Col].into_iter().flat_map(|of| counts.map(|count| (of, count)))
        {
            // What several columns have is in the programs of the pair.
            if dtype == vectors && rhs * batch > 1 {
                continue;
            }
            let desc = Desc { vectors, rhs, batch, ..Desc::of(dtype, layout, shape, 6) };
            for params in candidates(&desc, &caps()) {
                let name = params.kernel();
                let kernel = kernels().find(|of| of.name == name.as_str()).expect("its own");
                if !kernel.takes_epilogue() || !seen.insert((kernel.name, dtype.name())) {
                    continue;
                }
                let function = (!vectors.is_complex()).then_some(Function::Gelu);
                let program = kernel.epilogue_program((dtype, vectors), &params, function);
                let mut options = options_of(&program, "sm_90");
                options.push("--ptxas-options=-v".into());
                let (_, log) = nvrtc
                    .compile(&program, &options)
                    .unwrap_or_else(|log| panic!("{params} for {desc}: {log}"));
                // Pointers and numbers of the epilogue stay where the arguments are. gemm-col-lanes is at the limit of its
                // registers: without an epilogue it spills none, with one a few.
                let most = if kernel.name == "gemm-col-lanes" { 16 } else { 0 };
                let stack = |line: &str| {
                    let (before, _) = line.split_once(" bytes stack frame")?;
                    before.split_whitespace().last()?.parse::<u32>().ok()
                };
                let bytes = log.lines().filter_map(stack).max();
                assert!(bytes.is_some_and(|bytes| bytes <= most), "{params} for {desc}: {log}");
                eprintln!("{dtype}*{vectors}: {params}");
            }
        }
    }
    assert!(seen.len() > 15, "only {seen:?}");
}

/// Bytes that a thread may spill, as for other kernels.
const FEW: u32 = 32;

/// The most bytes that a function of this log spills.
fn spilled(log: &str) -> u32 {
    let lines = log.lines().filter_map(|line| line.split(" bytes spill stores").next());
    let bytes = lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok());
    bytes.max().expect("a report of ptxas")
}

#[test]
fn programs_for_sm_90a_alone_compile() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut compiled = 0;
    for (dtype, rhs) in
        [(Dtype::Bf16, 2), (Dtype::Bf16, 4), (Dtype::Bf16, 8), (Dtype::Bf16, 16), (Dtype::F16, 8)]
    {
        let desc = Desc { rhs, ..Desc::of(dtype, Layout::Row, (4096, 4096), 6) };
        let all = candidates(&desc, &caps()).into_iter().map(|params| {
            let kernel = kernels().find(|of| of.name == params.kernel().as_str());
            (params, kernel.expect("its own").program(dtype, &params))
        });
        let mut alone = all.filter(|(_, program)| program.is_for_sm_90a());
        let (params, program) = alone.next().expect("a candidate");
        let mut options = options_of(&program, "sm_90");
        assert_eq!(options[0], "--gpu-architecture=sm_90a");
        options.push("--ptxas-options=-v".into());
        let (_, log) =
            nvrtc.compile(&program, &options).unwrap_or_else(|log| panic!("{params}: {log}"));
        assert!(!log.contains("warning") && spilled(&log) <= FEW, "{params}: {log}");
        // Elsewhere it compiles and is not launched.
        if compiled == 0 {
            let options = options_of(&program, "sm_80");
            nvrtc.compile(&program, &options).unwrap_or_else(|log| panic!("{params}: {log}"));
        }
        compiled += 1;
    }
    assert_eq!(compiled, 5);
}

#[test]
#[cfg(feature = "packed")]
fn programs_of_packed_matrices_compile() {
    use gemv_core::Format;
    use gemv_gpu::PACKED;
    let Some(nvrtc) = nvrtc() else { return };
    let mut compiled = 0;
    for &format in Format::ALL {
        // The others have the same text for their sizes of groups.
        let all = [Format::Q8_0, Format::Q6K].contains(&format);
        let of_all =
            [(4096, 1, 90), (14_336, 1, 90), (4096, 4, 90), (28_672, 4, 90), (4096, 1, 80)];
        for (n, rhs, arch) in of_all {
            if !(all || (n, rhs, arch) == (4096, 1, 90)) {
                continue;
            }
            let desc = Desc { rhs, ..Desc::packed(format, Dtype::F32, (4096, n)) };
            let params = PACKED.candidates(&desc, &caps())[0];
            // Several blocks have a row, and a second launch adds up.
            assert_eq!(params.get_or("parts", 0) > 1, n == 28_672, "{params}");
            let program = PACKED.program(Dtype::F32, &params);
            let mut options = options_of(&program, &format!("sm_{arch}"));
            options.push("--ptxas-options=-v".into());
            let (_, log) =
                nvrtc.compile(&program, &options).unwrap_or_else(|log| panic!("{params}: {log}"));
            assert!(!log.contains("warning"), "{params}: {log}");
            assert!(arch != 90 || spilled(&log) <= FEW, "{params}: {log}");
            if n == 28_672 {
                let types = (Dtype::F32, Dtype::F32);
                let program = PACKED.epilogue_program(types, &params, Some(Function::Gelu));
                let options = options_of(&program, &format!("sm_{arch}"));
                nvrtc.compile(&program, &options).unwrap_or_else(|log| panic!("{params}: {log}"));
            }
            compiled += 1;
        }
    }
    assert_eq!(compiled, Format::ALL.len() + 8);
}
