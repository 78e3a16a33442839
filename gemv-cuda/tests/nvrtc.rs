//! Compiles every program that the kernels can become, without a GPU: every kernel, element type
//! and candidate over a spread of problems, for one architecture, and every fourth of them for two
//! more (all of them with `GEMV_TEST_FULL=1`). A program that does not compile, or whose threads do
//! not fit in registers, fails.
//!
//! NVRTC is found as the backend finds it (`GEMV_NVRTC` names a library by its path). Where there
//! is none, the trials are ignored and counted; `GEMV_REQUIRE=nvrtc` makes that a failure.

use std::collections::{BTreeMap, HashSet};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use gemv_core::gpu::{Caps, Language, Program};
use gemv_core::{Desc, Dtype, Layout, Params};
use gemv_cuda::{Nvrtc, candidates, kernels, options};
use libtest_mimic::{Arguments, Failed, Trial};

/// Ampere, Hopper, Blackwell.
const ARCHS: [u32; 3] = [80, 90, 100];

/// Bytes of stack and spills, all together, that a thread may have: none on the architecture that
/// the candidates are chosen for; elsewhere a few words, which the tuner weighs by their time.
const ALLOWED: [u64; 2] = [0, 160];

/// Shapes of every kind: what the candidates depend on.
const SHAPES: [(usize, usize); 14] = [
    (1, 1),
    (64, 64),
    (1000, 3),
    (3, 1000),
    (100_000, 2),
    (100_000, 5),
    (100_000, 10),
    (100_000, 28),
    (5_000, 60),
    (4096, 4096),
    (16, 4_194_304),
    (1, 1 << 30),
    (1227, 241),
    (1_417_368, 128),
];

fn caps(units: u32) -> Caps {
    let mut caps = Caps::new(Language::Cuda);
    (caps.units, caps.max_group, caps.local_bytes, caps.fp64) = (units, 1024, 48 << 10, true);
    caps
}

/// Every different program, with the first parameters that lead to it, by kernel and type.
fn programs() -> BTreeMap<(&'static str, Dtype), Vec<(Params, Program)>> {
    let mut seen = HashSet::new();
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for dtype in Dtype::ALL {
        for layout in Layout::ALL {
            for (m, n) in SHAPES {
                for align in [2, 4] {
                    let desc = Desc { dtype, m, n, layout, align };
                    let own = candidates(&desc, &caps(132));
                    for params in own {
                        let name = params.kernel().to_string();
                        let kernel = kernels().find(|k| k.name == name).expect("a candidate's");
                        let program = kernel.program(dtype, &params, Language::Cuda);
                        if seen.insert(program.clone()) {
                            all.entry((kernel.name, dtype)).or_default().push((params, program));
                        }
                    }
                }
            }
        }
    }
    all
}

/// Bytes of stack, spill stores and spill loads of every function, from ptxas's log; the most.
fn spilled(log: &str) -> Option<u64> {
    let lines = log.lines().filter(|l| l.contains("bytes stack frame"));
    lines.map(|l| numbers(l).sum::<u64>()).max()
}

fn numbers(line: &str) -> impl Iterator<Item = u64> + '_ {
    line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok())
}

fn compile(nvrtc: &Nvrtc, arch: u32, programs: &[(Params, Program)]) -> Result<(), Failed> {
    let mut options = options(&format!("sm_{arch}"));
    options.push("--ptxas-options=-v".into());
    let mut failures = Vec::new();
    for (params, program) in programs {
        match nvrtc.compile(program, &options) {
            Err(log) => failures.push(format!("{params}: {log}")),
            Ok((image, log)) => {
                assert!(image.bytes().starts_with(b"\x7fELF"), "{params}: no CUBIN");
                match spilled(&log) {
                    None => failures.push(format!("{params}: no report of registers in {log:?}")),
                    Some(bytes) if bytes <= ALLOWED[usize::from(arch != 90)] => {}
                    Some(_) => failures.push(format!("{params}: registers spill: {log}")),
                }
            }
        }
    }
    if failures.is_empty() {
        return Ok(());
    }
    let count = failures.len();
    Err(format!("{count} of {} programs: {}", programs.len(), failures.join("\n")).into())
}

/// The checks above must be able to fail.
fn the_checks_refuse(nvrtc: &Nvrtc) -> Result<(), Failed> {
    let program = |source: &str| {
        vec![(Params::new("bad"), Program { source: source.into(), defines: Vec::new() })]
    };
    let good = "extern \"C\" __global__ void f(float *p) { p[threadIdx.x] = 1; }";
    compile(nvrtc, 90, &program(good))?;
    let wrong = "extern \"C\" __global__ void f(float *p) { p[threadIdx.x] = q; }";
    // 200 values alive across a barrier, in 255 registers at most 64 of which it may use.
    let fat = "extern \"C\" __global__ void __launch_bounds__(1024, 1) f(float *p) {\n\
               float v[200];\n\
               for (int i = 0; i < 200; i++) v[i] = p[i * 1024 + threadIdx.x];\n\
               __syncthreads();\n\
               for (int i = 0; i < 200; i++) p[i * 1024 + threadIdx.x] = v[199 - i] * v[i];\n}";
    for (source, part) in [(wrong, "identifier \"q\" is undefined"), (fat, "registers spill")] {
        match compile(nvrtc, 90, &program(source)) {
            Ok(()) => return Err(format!("passed, but: {part}").into()),
            Err(e) if e.message().is_some_and(|m| m.contains(part)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn nvrtc() -> Result<&'static Nvrtc, Failed> {
    static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
    NVRTC.get_or_init(|| Nvrtc::find().map_err(|e| e.to_string())).as_ref().map_err(Failed::from)
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A program is compiled on one thread and takes a few hundred megabytes.
    arguments.test_threads.get_or_insert(2);
    let required = std::env::var("GEMV_REQUIRE").unwrap_or_default();
    let required = required.split(',').any(|r| r.trim() == "nvrtc");
    let ignored = !required && nvrtc().is_err();

    let mut trials = vec![Trial::test("the checks refuse", || the_checks_refuse(nvrtc()?))];
    for ((kernel, dtype), programs) in programs() {
        for arch in ARCHS {
            // All of them for one architecture. What differs on the others is the assembler: some
            // of them, unless there is time.
            let all = arch == 90 || std::env::var("GEMV_TEST_FULL").is_ok_and(|v| v == "1");
            let programs: Arc<[_]> =
                programs.iter().step_by(if all { 1 } else { 4 }).cloned().collect();
            let name = format!("sm_{arch}/{dtype}/{kernel} ({} programs)", programs.len());
            trials.push(Trial::test(name, move || compile(nvrtc()?, arch, &programs)));
        }
    }
    let trials = trials.into_iter().map(|t| t.with_ignored_flag(ignored)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
