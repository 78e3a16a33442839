//! Compiles what the kernels become, without a GPU.
//!
//! - For sm_90, on which candidates were chosen: programs of every kernel and element type, for
//!   candidates over a spread of problems; and programs that are no candidates but travel with the crate.
//! - For sm_80: each kernel and type once. Of the programs that the tables name for GPUs without a table
//!   of their own, as many as it takes to see every value of every argument of a kernel.
//! - For sm_75 and sm_100: each kernel for two types, and each type for a third of the kernels. A kernel
//!   that has other text there than for sm_80 or sm_90: for every type.
//!
//! That takes the compiler through all code that depends on the architecture (`__CUDA_ARCH__`:
//! asynchronous copies, dependent launch, clusters).
//!
//! What is thinned, and why nothing is lost that can differ:
//!
//! - Programs for the other architectures. But for the lines that ask for it, the text is that of
//!   sm_90; only the registers differ, of which no check asks anything there.
//! - bf16 where f16 has the same program, after the first of a kernel: the two differ in the
//!   conversions to and from f32, which every program has.
//! - The programs that the tables name for GPUs without a table of their own: on all architectures as many as
//!   it takes to see every value of every argument of a kernel, for f32 and for all other types together, those
//!   with the widest numbers first. They are texts that candidates have too, and each was compiled and
//!   run by the tuner before it came into a table; all are compiled when the PTX is made that travels with
//!   the crate.
//! - Candidates. The texts are the same for every type, and the tuner compiles a candidate before it
//!   measures it, and leaves out one that does not compile. For f32 as many as it takes to see every value of
//!   every argument of a kernel. For all other types together, those with the widest numbers first, the same,
//!   and each kernel once for each type.
//! - The published kernels, whose authors' spaces are some six thousand programs: as many as it takes
//!   to see every value of every argument, with the narrowest and the widest arithmetic.
//!
//! - Programs that have passed before. `golden/compiled.txt` has their fingerprints, with the version of NVRTC and a
//!   fingerprint of this file, and the compiler says the same of the same text. What has another text, other options or
//!   another compiler than the record is compiled; of the rest one program of each kernel, so that a wrong record
//!   of a whole kernel shows. A record of this compiler that lacks a program is an error: whoever changes a kernel
//!   compiles all of its programs with `GEMV_GOLDEN=write`, which writes the record anew if they pass.
//!
//! `GEMV_TEST_FULL=1` thins nothing.
//!
//! A program fails that does not compile, that keeps an array in memory instead of in registers,
//! or that spills more than a few registers on the architecture that the candidates were chosen
//! for. What the assembler spills elsewhere is counted and printed: it costs time, which the tuner
//! weighs, and no bits.
//!
//! NVRTC is found as the backend finds it (`GEMV_NVRTC` names a library by its path). Where there
//! is none, the trials are ignored and counted; `GEMV_REQUIRE=nvrtc` makes that a failure.

mod common;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use gemv_gpu::{self as gpu, Caps, Kernel, Language, Program};
// Linked for its kernels.
use gemv_baselines as _;
use gemv_core::{Desc, Dtype, KernelType, Layout, Parameter, Params, fingerprint};
use gemv_cuda::{
    Nvrtc, Shipped, candidates, cluster, kernels, options, parameters, program_of, shipped,
};
use libtest_mimic::{Arguments, Failed, Trial};

/// Turing (where NVRTC still compiles for it), Ampere, Hopper, Blackwell.
const ARCHS: [u32; 4] = [75, 80, 90, 100];

/// The architecture on which no candidate may spill: the one they were chosen on.
const CHOSEN_ON: u32 = 90;

/// The architecture for which the tables for any GPU are compiled: the most common one without a
/// table of its own.
const TABLED: u32 = 80;

/// Bytes that a thread may spill there: eight registers. So few, put aside around a loop over 64
/// loads, are not to be measured: the `col-few-rows` that has two of them is faster than the ones
/// that have none.
const FEW: u64 = 32;

/// Shapes of every kind: what the candidates depend on.
const SHAPES: [(usize, usize); 25] = [
    (1, 1),
    (2, 100_000),
    (6, 100_000),
    (30, 100_000),
    (50, 100_000),
    (64, 64),
    (1000, 3),
    (3, 1000),
    (100_000, 2),
    (100_000, 5),
    (100_000, 10),
    (100_000, 20),
    (100_000, 37),
    (5_000, 60),
    (4096, 4096),
    (16, 4_194_304),
    (1, 1 << 30),
    (1227, 241),
    (1_417_368, 128),
    (20_000, 520),
    (5_000, 190),
    (5_000, 256),
    (1, 384),
    (3_000, 2_848),
    (3_000, 8_000),
];

/// Shapes of many right-hand sides and of batches: (m, n), columns and entries.
const MANY: [((usize, usize), usize, usize); 17] = [
    ((4096, 4096), 2, 1),
    ((4096, 4096), 4, 1),
    ((4096, 4096), 16, 1),
    ((4096, 4096), 32, 1),
    ((16_384, 16_384), 8, 1),
    ((256, 200_000), 16, 1),
    ((200_000, 256), 33, 1),
    ((4_000_000, 3), 3, 1),
    ((1 << 20, 8), 8, 1),
    ((1 << 20, 16), 5, 1),
    ((1 << 20, 50), 2, 1),
    ((1 << 20, 50), 8, 1),
    ((4, 4), 1, 100_000),
    ((16, 16), 1, 100_000),
    ((64, 64), 3, 20_000),
    ((4096, 64), 1, 1000),
    ((200, 700), 1, 1000),
];

fn caps(units: u32) -> Caps {
    let mut caps = Caps::new(Language::Cuda);
    (caps.units, caps.max_group, caps.local_bytes, caps.fp64) = (units, 1024, 48 << 10, true);
    (caps.fp64_mma, caps.async_copies) = (true, true);
    (caps.cluster, caps.dynamic_bytes) = (cluster(CHOSEN_ON), 227 << 10);
    caps
}

/// The types: of those that are thinned together the one whose programs need the most registers first.
const ORDER: [Dtype; 6] = [Dtype::F32, Dtype::C64, Dtype::F64, Dtype::F16, Dtype::C32, Dtype::Bf16];

/// The matrix' and the vectors' type.
type Types = (Dtype, Dtype);

/// Every different program, with the first parameters that lead to it, by kernel and types.
fn programs(travelling: &[Shipped]) -> BTreeMap<(&'static str, Types), Vec<(Params, Program)>> {
    let mut seen = HashSet::new();
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut add = |kernel: &Kernel, types: Types, params: Params| {
        let program = kernel.mixed_program(types, &params);
        if seen.insert(program.clone()) {
            all.entry((kernel.name, types)).or_default().push((params, program));
        }
    };
    let one_type = ORDER.map(|dtype| (dtype, dtype));
    let (mut of_f32, mut values) = (HashSet::new(), HashSet::new());
    let mut kernels_of_types = HashSet::new();
    for (dtype, vectors) in one_type.into_iter().chain(Dtype::MIXED) {
        let one = SHAPES.iter().map(|&shape| (shape, 1, 1));
        let problems: Vec<_> = one.chain(MANY.iter().copied()).collect();
        for layout in Layout::ALL {
            for (((m, n), rhs, batch), align) in
                problems.iter().flat_map(|p| [2, 4].map(|align| (*p, align)))
            {
                let one = Desc::of(dtype, layout, (m, n), align);
                let desc = Desc { vectors, rhs, batch, ..one };
                for params in candidates(&desc, &caps(132)) {
                    let name = params.kernel().to_string();
                    let kernel = kernels().find(|k| k.name == name).expect("a candidate's");
                    let brings = match dtype {
                        Dtype::F32 if !desc.is_mixed() => {
                            brings_a_value(kernel, &params, &mut of_f32)
                        }
                        _ => brings_a_value(kernel, &params, &mut values),
                    };
                    let first = kernels_of_types.insert((kernel.name, (dtype, vectors)));
                    if full() || brings || first {
                        add(kernel, (dtype, vectors), params);
                    }
                }
            }
        }
        if dtype != vectors {
            continue;
        }
        let desc = Desc::of(dtype, Layout::Col, (1000, 3000), 2);
        for kernel in gpu::baselines() {
            let space = kernel.candidates(&desc, &caps(132));
            let space = match dtype {
                _ if full() => space,
                Dtype::F32 | Dtype::C64 => every_value(space),
                _ => space.into_iter().take(1).collect(),
            };
            space.into_iter().for_each(|params| add(kernel, (dtype, dtype), params));
        }
    }
    for kernel in kernels() {
        let of_it = |p: &Params| p.kernel().as_str() == kernel.name;
        for params in gpu::read_params(&caps(132)).into_iter().filter(of_it) {
            add(kernel, (Dtype::F32, Dtype::F32), params);
        }
    }
    for dtype in Dtype::ALL {
        add(&gpu::VECTOR, (dtype, dtype), gpu::vector_params(&caps(132)));
    }
    // What is no candidate, but travels with the crate.
    for shipped in travelling.iter().filter(|of| of.target == CHOSEN_ON) {
        let listed = kernels().chain([&gpu::VECTOR]).any(|k| k.name == shipped.kernel.name);
        if !listed && (full() || brings_a_value(shipped.kernel, &shipped.params, &mut values)) {
            add(shipped.kernel, shipped.types, shipped.params);
        }
    }
    let rows = ["nvidia.txt", "default.txt"].into_iter().flat_map(common::programs_of);
    let mut rows: Vec<_> = rows.map(|(kernel, dtype, params, _)| (kernel, dtype, params)).collect();
    rows.sort_by_key(|(_, dtype, _)| ORDER.iter().position(|d| d == dtype));
    let (mut of_f32, mut values) = (HashSet::new(), HashSet::new());
    for (kernel, dtype, params) in rows {
        let seen = if dtype == Dtype::F32 { &mut of_f32 } else { &mut values };
        if full() || brings_a_value(kernel, &params, seen) {
            add(kernel, (dtype, dtype), params);
        }
    }
    all
}

fn full() -> bool {
    std::env::var("GEMV_TEST_FULL").is_ok_and(|v| v == "1")
}

/// Whether a program has other text for one of these architectures than for the other.
fn differs(program: &Program, (older, newer): (u32, u32)) -> bool {
    let conditions = program.source.split("__CUDA_ARCH__ ").skip(1);
    let from = conditions.map(|rest| {
        let number = rest.strip_prefix(">= ")?.split(|c: char| !c.is_ascii_digit()).next()?;
        number.parse::<u32>().ok()
    });
    // Any other condition may be one.
    from.into_iter().any(|from| from.is_none_or(|from| older * 10 < from && from <= newer * 10))
}

/// A value of an argument of a kernel.
type Value = (&'static str, &'static str, u32);

/// Whether these parameters have a value of an argument, of those that a program is compiled for, which
/// none before them had.
fn brings_a_value(kernel: &Kernel, params: &Params, seen: &mut HashSet<Value>) -> bool {
    values_of(kernel, params).into_iter().filter(|value| seen.insert(*value)).count() > 0
}

/// The values of the arguments that a program is compiled for.
fn values_of(kernel: &Kernel, params: &Params) -> Vec<Value> {
    let compiled = kernel.args.iter().filter(|arg| arg.define.is_some());
    compiled.map(|arg| (kernel.name, arg.name, params.get_or(arg.name, arg.default))).collect()
}

/// Those of them that bring a value of an argument that none before them had.
fn every_value(space: Vec<Params>) -> Vec<Params> {
    let mut seen = HashSet::new();
    let mut fresh = |p: &Params| p.args().filter(|arg| seen.insert(arg.clone())).count() > 0;
    space.into_iter().filter(|p| fresh(p)).collect()
}

/// What ptxas says of a function.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Frame {
    /// Bytes of memory that a thread has for what is in no register.
    stack: u64,
    /// Bytes that are written there because registers ran out.
    stores: u64,
}

impl Frame {
    /// Of every function in the log.
    fn all(log: &str) -> Vec<Frame> {
        let lines = log.lines().filter(|l| l.contains("bytes stack frame"));
        let numbers = |line: &str| -> Vec<u64> {
            line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
        };
        lines.map(numbers).map(|n| Frame { stack: n[0], stores: n[1] }).collect()
    }

    /// Every spilled register is stored once or more and the frame is a multiple of 16 bytes, so what
    /// is left is an array that an index not known to the compiler keeps in memory: a mistake in the
    /// text, whatever the device.
    fn has_array(&self) -> bool {
        self.stack > self.stores.next_multiple_of(16)
    }
}

fn compile(nvrtc: &Nvrtc, arch: u32, programs: &[(Params, Program)]) -> Result<(), Failed> {
    let mut options = options(&format!("sm_{arch}"));
    options.push("--ptxas-options=-v".into());
    let (mut failures, mut spills) = (Vec::new(), 0);
    for (params, program) in programs {
        let (image, log) = match nvrtc.compile(program, &options) {
            Ok(compiled) => compiled,
            Err(log) => {
                failures.push(format!("{params}: {log}"));
                continue;
            }
        };
        assert!(image.bytes().starts_with(b"\x7fELF"), "{params}: no CUBIN");
        let frames = Frame::all(&log);
        if frames.is_empty() {
            failures.push(format!("{params}: no report of registers in {log:?}"));
        } else if frames.iter().any(Frame::has_array) {
            failures.push(format!("{params}: an array in memory: {log}"));
        } else if frames.iter().any(|f| f.stores > 0) {
            spills += 1;
            // The published kernels are what they are.
            let many = frames.iter().any(|f| f.stores > FEW);
            if arch == CHOSEN_ON && many && params.keeps_order() {
                failures.push(format!("{params}: registers spill: {log}"));
            }
        }
    }
    if spills > 0 {
        eprintln!("sm_{arch}: {spills} of {} programs spill registers", programs.len());
    }
    if failures.is_empty() {
        return Ok(());
    }
    let count = failures.len();
    Err(format!("{count} of {} programs: {}", programs.len(), failures.join("\n")).into())
}

/// A line of the record: what was compiled, and a fingerprint of all that the compiler was given.
fn line(trial: &str, arch: u32, programs: &[(Params, Program)]) -> String {
    let options = options(&format!("sm_{arch}"));
    let mut parts: Vec<&str> = options.iter().map(String::as_str).collect();
    let (mut texts, mut kinds) = (BTreeMap::new(), Vec::new());
    for (params, program) in programs {
        // The text is the same for every program of a kernel: it is hashed once.
        let text = texts.entry(&program.source);
        let text = text.or_insert_with(|| fingerprint(&[&program.source], &[]));
        let defines = program.defines.iter().map(|(name, value)| format!("{name}={value};"));
        kinds.push(format!("{params}: {text} {}", defines.collect::<String>()));
    }
    parts.extend(kinds.iter().map(String::as_str));
    format!("{trial}: {}", fingerprint(&parts, &[]))
}

/// The record's first line: what has to be the same for the others to hold.
fn head(nvrtc: &Nvrtc) -> String {
    let (major, minor) = nvrtc.version();
    format!("NVRTC {major}.{minor}, checks {}", fingerprint(&[include_str!("nvrtc.rs")], &[]))
}

fn record() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/compiled.txt")
}

/// Whether the record is of this compiler.
fn is_of_this_compiler(nvrtc: &Nvrtc) -> bool {
    let text = std::fs::read_to_string(record()).unwrap_or_default();
    let version = |line: &str| line.split_once(',').map(|(version, _)| version.to_owned());
    version(text.lines().next().unwrap_or_default()) == version(&head(nvrtc))
}

/// What passed before, with this compiler and these checks.
fn recorded() -> &'static HashSet<String> {
    static RECORDED: OnceLock<HashSet<String>> = OnceLock::new();
    RECORDED.get_or_init(|| {
        let text = std::fs::read_to_string(record()).unwrap_or_default();
        let holds = nvrtc().is_ok_and(|nvrtc| text.lines().next() == Some(&*head(nvrtc)));
        if !holds {
            eprintln!("the record is of another NVRTC or of other checks: all is compiled");
        }
        text.lines().skip(1).filter(|_| holds).map(str::to_owned).collect()
    })
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
    // Which element is written to is not known before it runs.
    let indexed = "extern \"C\" __global__ void f(float *p, int *k) {\n\
                   float v[64];\n\
                   for (int i = 0; i < 64; i++) v[i] = p[i];\n\
                   for (int i = 0; i < 999; i++) v[k[i] & 63] += v[k[i + 1] & 63];\n\
                   for (int i = 0; i < 64; i++) p[i] = v[i];\n}";
    for (source, part) in [
        (wrong, "identifier \"q\" is undefined"),
        (fat, "registers spill"),
        (indexed, "an array in memory"),
    ] {
        match compile(nvrtc, 90, &program(source)) {
            Ok(()) => return Err(format!("passed, but: {part}").into()),
            Err(e) if e.message().is_some_and(|m| m.contains(part)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The types of a kernel's parameters come from the compiler, for machine code and for PTX.
fn parameters_are_told(nvrtc: &Nvrtc) -> Result<(), Failed> {
    const TEXT: &str = "#define DTYPE 4\n#include \"gemv.h\"\n\
        ENTRY every(const float a, const double b, const U16 c, const ACC d, const I32 e, const U32 f,\n\
                  const I64 g, const U64 h, GLOBAL const ELEM *RESTRICT x, GLOBAL ELEM *RESTRICT y,\n\
                  GLOBAL const ELEM *z, GLOBAL U64 *w, GLOBAL const I32 *v SHARED_PARAMETER(float, s)) {\n\
          SHARED(float, s);\n\
          s[LID] = a; y[LID] = x[LID]; }\n\
        ENTRY none(void) {}\n";
    use KernelType::*;
    let array = |of, writes| Parameter::Array { of, writes };
    let mut every: Vec<_> =
        [F32, F64, Bits16, C32, I32, U32, I64, U64].map(Parameter::Scalar).into();
    every.extend([array(C32, false), array(C32, true), array(C32, false), array(U64, true)]);
    every.push(array(I32, false));
    for target in ["sm_90", "compute_90"] {
        for (entry, want) in [("every", &every), ("none", &Vec::new())] {
            let program = program_of(TEXT, entry);
            let (image, _) = nvrtc.compile(&program, &options(target))?;
            if parameters(&image).as_ref() != Some(want) {
                return Err(format!("{target} {entry}: {:?}", parameters(&image)).into());
            }
        }
    }
    match nvrtc.compile(&program_of(TEXT, "other"), &options("sm_90")) {
        Err(log) if log.contains("\"other\" is undefined") => Ok(()),
        outcome => Err(format!("{outcome:?}").into()),
    }
}

/// The kernels of the programs that bring their own.
fn programs_with_kernels_compile(nvrtc: &Nvrtc) -> Result<(), Failed> {
    let bignum = include_str!("../../examples/src/bin/bignum_digit/kernels.k");
    let rotate = include_str!("../../examples/src/bin/rotate_points/kernels.k");
    for digits in [2, 4, 8, 16] {
        let text = format!("#define DIGITS {digits}\n{bignum}");
        let program = [(Params::new("bignum"), program_of(&text, "several"))];
        compile(nvrtc, 90, &program)?;
    }
    let of = |text: &str, entries: &[&str]| {
        let programs = entries.iter().map(|entry| (Params::new(entry), program_of(text, entry)));
        compile(nvrtc, 90, &programs.collect::<Vec<_>>())
    };
    let bignum = format!("#define DIGITS 4\n{bignum}");
    of(&bignum, &["direct", "shared", "sums", "carries", "copy"])?;
    of(rotate, &["by_point", "by_component", "copy"])
}

/// A kernel that is launched before the one ahead has ended waits for it before it reads any memory of the
/// device: in PTX, of each kernel once. (What it reads as a constant would be read too early as well.)
fn early_launches_wait_before_they_read(nvrtc: &Nvrtc) -> Result<(), Failed> {
    let mut checked = BTreeSet::new();
    let one = SHAPES.iter().map(|&shape| (shape, 1, 1));
    for ((shape, rhs, batch), layout) in one
        .chain(MANY.iter().copied())
        .flat_map(|problem| Layout::ALL.map(|layout| (problem, layout)))
    {
        let desc = Desc { rhs, batch, ..Desc::of(Dtype::F32, layout, shape, 4) };
        for params in candidates(&desc, &caps(132)) {
            let kernel = kernels().find(|k| k.name == params.kernel().as_str()).expect("its own");
            let launches = kernel.plan(&desc, &params, &caps(132)).launches;
            let early = launches.iter().filter(|launch| launch.pdl_wait);
            let early: Vec<_> = early.filter(|l| checked.insert((kernel.name, l.entry))).collect();
            if early.is_empty() {
                continue;
            }
            let program = kernel.mixed_program((Dtype::F32, Dtype::F32), &params);
            let (image, _) = nvrtc.compile(&program, &options("compute_90"))?;
            let ptx = String::from_utf8_lossy(image.bytes()).into_owned();
            for entry in early.iter().map(|launch| launch.entry) {
                reads_after_the_wait(&ptx, entry).map_err(|why| format!("{params}: {why}"))?;
            }
        }
    }
    if checked.len() < 10 {
        return Err(format!("only {checked:?} were checked").into());
    }
    let entry = |body: &str| format!(".entry f(\n{body}\n}}");
    let (wait, read) = (" griddepcontrol.wait;", " @%p1 ld.f32 %f1, [%rd1];");
    let own = " ld.param.u64 %rd1, [f_0];\n st.shared.f32 [%r1], %f1;\n ld.shared.f32 %f2, [%r1];";
    reads_after_the_wait(&entry(&[own, wait, read].join("\n")), "f")?;
    for (ptx, why) in [
        (entry(&[" ld.global.f32 %f1, [%rd1];", wait].join("\n")), "reads first"),
        (entry(&[read, wait].join("\n")), "reads first"),
        (entry(" ret;"), "never waits"),
        (String::new(), "no f"),
    ] {
        match reads_after_the_wait(&ptx, "f") {
            Err(e) if e.contains(why) => {}
            outcome => return Err(format!("{ptx}: {outcome:?}").into()),
        }
    }
    Ok(())
}

fn reads_after_the_wait(ptx: &str, entry: &str) -> Result<(), String> {
    let begin = format!(".entry {entry}(");
    let text = ptx.split_once(&begin).ok_or_else(|| format!("there is no {entry}"))?.1;
    let lines = || text.split(".entry ").next().unwrap_or_default().lines();
    // What may read the device's memory: what names no other space.
    let reads = |line: &str| {
        let line = line.trim_start();
        let predicated = line.strip_prefix('@').and_then(|rest| rest.split_once(' '));
        let opcode = predicated.map_or(line, |(_, rest)| rest.trim_start());
        let opcode = opcode.split_whitespace().next().unwrap_or_default();
        let kinds = ["ld.", "ldu.", "atom.", "red.", "cp.async.c", "cp.async.bulk"];
        let elsewhere =
            [".param", ".const", ".local", "ld.shared", "ld.volatile.shared", "atom.shared"];
        kinds.iter().any(|kind| opcode.starts_with(kind))
            && !elsewhere.iter().any(|space| opcode.contains(space))
            && !opcode.starts_with("cp.async.commit")
    };
    match (lines().position(|line| line.contains("griddepcontrol.wait")), lines().position(reads)) {
        (None, _) => Err(format!("{entry} never waits")),
        (Some(wait), Some(read)) if read < wait => Err(format!("{entry} reads first")),
        _ => Ok(()),
    }
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

    let mut trials = vec![
        Trial::test("the checks refuse", || the_checks_refuse(nvrtc()?)),
        Trial::test("parameters are told", || parameters_are_told(nvrtc()?)),
        Trial::test("programs with kernels", || programs_with_kernels_compile(nvrtc()?)),
        Trial::test("early launches wait", || early_launches_wait_before_they_read(nvrtc()?)),
    ];
    let tabled: HashSet<Program> = ["nvidia.txt", "default.txt"]
        .into_iter()
        .flat_map(common::programs_of)
        .map(|(_, _, _, program)| program)
        .collect();
    let travelling = shipped();
    let programs = programs(&travelling);
    // The values that the programs for `TABLED` have, of each kernel for all types.
    let mut values = HashSet::new();
    let names: BTreeSet<_> = programs.keys().map(|(name, _)| *name).collect();
    let (mut lines, mut sampled) = (BTreeSet::new(), HashSet::new());
    for ((name, types), of_it) in &programs {
        let (name, (dtype, vectors)) = (*name, *types);
        let number = names.iter().position(|n| *n == name).expect("one of them");
        let mut all = kernels().chain(gpu::baselines()).chain([&gpu::VECTOR]);
        let kernel = all.find(|k| k.name == name);
        let kernel =
            kernel.or_else(|| travelling.iter().map(|s| s.kernel).find(|k| k.name == name));
        let kernel = kernel.expect("a kernel");
        // The defines of the same kernel's programs for f16, but the type.
        let halves = programs.get(&(name, (Dtype::F16, Dtype::F16))).into_iter().flatten();
        let halves: HashSet<_> = halves.map(|(_, program)| &program.defines[1..]).collect();
        for arch in ARCHS {
            if nvrtc().is_ok_and(|nvrtc| !nvrtc.archs().contains(&arch)) {
                eprintln!("sm_{arch}: this NVRTC does not compile for it");
                continue;
            }
            // Without clusters, what needs them is no candidate.
            let most = cluster(arch);
            let legal = of_it.iter().filter(|p| p.0.get_or("cluster_k", 1) <= most);
            let some = legal.enumerate().filter(|(k, (params, program))| {
                let bf16 = *types == (Dtype::Bf16, Dtype::Bf16);
                let twin = bf16 && halves.contains(&program.defines[1..]);
                let (first, tabled) = (*k == 0, tabled.contains(program));
                full()
                    || match arch {
                        CHOSEN_ON => first || !twin,
                        TABLED if first || tabled => {
                            brings_a_value(kernel, params, &mut values) || first
                        }
                        TABLED => false,
                        _ => {
                            let in_turn = (number + dtype as usize).is_multiple_of(3);
                            let near =
                                if arch < TABLED { (arch, TABLED) } else { (CHOSEN_ON, arch) };
                            first && (in_turn || differs(program, near))
                        }
                    }
            });
            let programs: Arc<[_]> = some.map(|(_, program)| program.clone()).collect();
            if programs.is_empty() {
                continue;
            }
            let types = match dtype == vectors {
                true => dtype.to_string(),
                false => format!("{dtype}*{vectors}"),
            };
            let trial = format!("sm_{arch}/{types}/{name} ({} programs)", programs.len());
            let line = line(&trial, arch, &programs);
            let known = !full() && recorded().contains(&line);
            let some = match known {
                false => programs.len(),
                true => usize::from(arch == CHOSEN_ON && sampled.insert(name)),
            };
            lines.insert(line);
            trials.push(Trial::test(trial, move || compile(nvrtc()?, arch, &programs[..some])));
        }
    }
    let writes = std::env::var("GEMV_GOLDEN").is_ok_and(|v| v == "write");
    let stale = lines.iter().filter(|line| !recorded().contains(*line)).count();
    trials.push(Trial::test("the record has every program", move || {
        if stale > 0 && !writes && !full() && is_of_this_compiler(nvrtc()?) {
            return Err(format!(
                "{stale} lines of {} are missing: GEMV_GOLDEN=write",
                record().display()
            )
            .into());
        }
        Ok(())
    }));
    let trials = trials.into_iter().map(|t| t.with_ignored_flag(ignored)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let all = conclusion.num_filtered_out + conclusion.num_ignored + conclusion.num_failed == 0;
    if writes && all && !arguments.list {
        let head = nvrtc().map(head).expect("it has compiled the programs");
        let text: String = [head].into_iter().chain(lines).map(|line| line + "\n").collect();
        std::fs::write(record(), text).expect("the record can be written");
    }
    conclusion.exit_code()
}
