//! The steps of `cargo xtask test`, in order.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use xshell::{Shell, cmd};

use crate::bare::Bare;
use crate::programs::{self, Program};
use crate::setup::{CLBLAST, OPENBLAS, Tools};

/// One step.
pub struct Step {
    pub name: &'static str,
    pub about: &'static str,
    pub run: fn(&Shell, &Tools) -> Result<()>,
}

const fn step(
    name: &'static str,
    about: &'static str,
    run: fn(&Shell, &Tools) -> Result<()>,
) -> Step {
    Step { name, about, run }
}

pub const ALL: &[Step] = &[
    step("format", "rustfmt", format),
    step("house", "the architecture: circles, floors, unsafe, names", house),
    step("clippy", "clippy on everything, warnings denied", clippy),
    step("features", "the root's features, alone and together", features),
    step("docs", "rustdoc, warnings denied; no link leads nowhere", docs),
    step("test", "all tests on the CPU and on OpenCL (PoCL)", test),
    step("isa", "the CPU backend, made to open with each instruction set", isa),
    step("oclgrind", "OpenCL kernels under Oclgrind; its log stays empty", oclgrind),
    step("nvrtc", "every CUDA kernel compiled for sm_80, sm_90 and sm_100, or as recorded", nvrtc),
    step("golden", "the golden vectors, computed again", golden),
    step(
        "newcomer",
        "small crates that use this one, as releases, and the size of the smallest program",
        newcomer,
    ),
    step("c", "the libraries for C: symbols, testers, examples", crate::c::step),
    step("python", "the Python package, with NumPy and SciPy", python),
    step("mpi", "gemv-mpi on 1 to 4 ranks", mpi),
    step("package", "the crates as they would be published", package),
    step("quickstart", "the example of the README", quickstart),
    step("bare", "a binary with every feature, without libOpenCL and libcuda", bare),
];

/// Steps that `test` runs only where they are named: they compile a tool for minutes, or ask the network.
pub const BY_NAME: &[Step] = &[
    step(
        "deny",
        "cargo deny: licences, sources and duplicates of what is linked",
        crate::release::deny,
    ),
    step(
        "advisories",
        "cargo deny: known vulnerabilities, by the database of RustSec",
        crate::release::advisories,
    ),
    step(
        "semver",
        "cargo semver-checks: against the last release, or the revision GEMV_BASELINE",
        crate::release::semver,
    ),
    step("aarch64", "the crates compiled for aarch64, warnings denied", crate::release::aarch64),
    step(
        "release",
        "what only the day of publication needs: an address, in which README's links lead somewhere",
        crate::release::address,
    ),
];

/// Each file by its name: `cargo fmt` does not see the modules that a macro declares.
fn format(sh: &Shell, _: &Tools) -> Result<()> {
    let files = crate::house::sources(sh)?;
    Ok(cmd!(sh, "rustfmt --check {files...}").run()?)
}

fn house(sh: &Shell, _: &Tools) -> Result<()> {
    crate::house::run(sh)
}

fn clippy(sh: &Shell, _: &Tools) -> Result<()> {
    Ok(cmd!(sh, "cargo clippy --locked {WORKSPACE...} --all-targets -- -D warnings").run()?)
}

fn features(sh: &Shell, _: &Tools) -> Result<()> {
    // Each feature with and without the others is all there is to compile, as long as no condition names two. The step
    // clippy compiles all together, newcomer `cpu` and `cuda` alone.
    for file in
        sh.read_dir("src")?.iter().filter(|file| file.extension().is_some_and(|e| e == "rs"))
    {
        let text = sh.read_file(file)?;
        let mut conditions = text.split("cfg").skip(1).filter_map(|rest| rest.split(']').next());
        let two = conditions.find(|condition| condition.matches("feature = ").count() > 1);
        ensure!(two.is_none(), "{}: a condition of two features: {two:?}", file.display());
    }
    for set in [
        "",
        "opencl",
        // The element types of the CPU; the other backends have all of them.
        "half,complex",
        "cpu,half",
        "cpu,complex",
        "cpu,packed",
    ] {
        let args = ["--no-default-features", "--features", set];
        // `--lib`: what a user builds; the same code whatever the features.
        cmd!(sh, "cargo clippy --locked -q -p gemv --lib {args...} -- -D warnings").run()?;
    }
    // Its features are the backends that it links; a program may link them itself.
    Ok(cmd!(sh, "cargo clippy --locked -q -p gemv-mpi --lib -- -D warnings").run()?)
}

fn docs(sh: &Shell, _: &Tools) -> Result<()> {
    let _flags = sh.push_env("RUSTDOCFLAGS", "-D warnings");
    cmd!(sh, "cargo doc --locked {WORKSPACE...} --no-deps").run()?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into());
    crate::links::pages(&sh.current_dir().join(target).join("doc"))
}

/// One selection for all that is compiled here, so that each crate is compiled once: another
/// selection may unify other features.
const WORKSPACE: [&str; 2] = ["--workspace", "--all-features"];

/// Test programs that take long. They are started first, so that none of them runs alone at the end.
const LONG: [&str; 8] =
    ["equivalence", "opencl", "lengths", "products", "report", "ptx", "oracle", "baselines"];

/// Test programs that PoCL compiles kernels for without its optimiser, which takes most of their time: package, name,
/// and the parts that are run with the optimiser. `equivalence`: what PoCL's table chooses for a few shapes in every
/// type, of which one has super-segments, and several right-hand sides. `semantics` and `vectors`: NaN, zeros and
/// infinities, and the steps of each entry. `golden`: a matrix of a narrower type. `opencl`: the kernels for GPUs in one
/// type, and their rounding to 16 bits. The rest compiles these texts for other types and parameters. `baselines` is
/// not in the list: its kernels take minutes without the optimiser.
const UNOPTIMISED: [(&str, &str, &[&str]); 16] = [
    ("gemv-testkit", "equivalence", &["5/chosen", "2x131331/chosen", "f32/many-specials"]),
    ("gemv", "functions", &["/f32/maps"]),
    ("gemv-testkit", "lengths", &[]),
    ("gemv-testkit", "oracle", &[]),
    ("gemv", "packed", &["q8_0/"]),
    ("gemv", "golden", &["/f16*"]),
    (
        "gemv",
        "semantics",
        &["f32/nan-stays", "f32/subnormals", "f32/sums-of-negative", "f32/infinities"],
    ),
    ("gemv", "vectors", &["f32"]),
    ("gemv-cli", "dot", &[]),
    ("gemv-cli", "report", &[]),
    ("gemv-cli", "share", &[]),
    ("gemv-cli", "warm", &[]),
    ("gemv-examples", "programs", &[]),
    ("gemv-opencl", "clblast", &[]),
    ("gemv-opencl", "opencl", &["f64/for-gpus", "for-gpus-kinds"]),
    ("gemv-shard", "products", &[]),
];

/// PoCL's variable with options for every program.
const WITHOUT_OPTIMISER: (&str, &str) = ("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable");

/// The test program of gemv-mpi that starts itself by mpirun.
const RANKS: &str = "ranks";

fn test(sh: &Shell, tools: &Tools) -> Result<()> {
    let variables = [
        ("OCL_ICD_VENDORS", tools.pocl.display().to_string()),
        ("GEMV_REQUIRE", "cpu,opencl".to_string()),
        ("GEMV_TEST_CHROMIUM", u8::from(tools.chromium).to_string()),
        ("GEMV_TEST_CBLAS", OPENBLAS.to_string()),
        ("GEMV_TEST_CLBLAST", CLBLAST.to_string()),
    ];
    let mut tests = built(sh)?;
    // Two manifests name them, and what none names is not compiled.
    for entry in std::fs::read_dir("tests")? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let is_test = path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").exists();
        let built = tests
            .iter()
            .any(|b| ["gemv", "gemv-testkit"].contains(&&*b.package) && b.name == *name);
        ensure!(built || !is_test, "{} is in no manifest", path.display());
    }
    // The ranks of MPI are more than the processors, and wait for each other: they have a step of their own.
    tests.retain(|b| b.test && b.name != RANKS);
    tests.sort_by_key(|b| LONG.iter().position(|name| *name == b.name).unwrap_or(LONG.len()));
    for (package, name, parts) in UNOPTIMISED {
        let of = tests.iter().find(|b| b.package == package && b.name == name);
        let of = of.with_context(|| format!("no test {name} of {package}"))?;
        parts.iter().try_for_each(|part| has_trials(sh, of, part, &variables))?;
    }
    let cache = tools.target.join("unoptimised");
    // One at a time: processes of MPI by themselves that start together race for the session folder of Open MPI.
    let args = ["test", "--locked", "--doc", WORKSPACE[0], WORKSPACE[1], "--", "--test-threads=1"];
    let documentation = Program {
        name: "examples of the documentation".into(),
        path: "cargo".into(),
        folder: sh.current_dir(),
        args: args.into(),
        variables: variables.to_vec(),
    };
    let tests = tests.iter().flat_map(|b| passes(b, &variables, &cache));
    programs::run(std::iter::once(documentation).chain(tests).collect())
}

/// Whether a filter names trials on OpenCL: one that names none would pass.
fn has_trials(sh: &Shell, of: &Built, part: &str, variables: &[(&str, String)]) -> Result<()> {
    let (path, name) = (&of.path, &of.name);
    let list = cmd!(sh, "{path} --list {part}").env_remove("GEMV_TEST_DEVICES");
    let list = list.envs(variables.iter().map(|(name, value)| (name, value))).quiet().read()?;
    let on_opencl = |line: &str| line.starts_with("opencl") && line.contains(part);
    ensure!(list.lines().any(on_opencl), "{name} has no trial {part} of opencl");
    Ok(())
}

/// How a test program is run: whole, or in parts, as [`UNOPTIMISED`] says. What passes the self-test without the
/// optimiser is noted in a cache of its own.
fn passes(built: &Built, variables: &[(&'static str, String)], cache: &Path) -> Vec<Program> {
    let mut whole = built.program(variables);
    let mut all = UNOPTIMISED.iter();
    let Some((.., parts)) = all.find(|(of, name, _)| built.package == *of && built.name == *name)
    else {
        return vec![whole];
    };
    let optimised = parts.iter().map(|part| Program {
        name: format!("{}, {part}", whole.name),
        args: vec![part],
        ..built.program(variables)
    });
    let optimised: Vec<_> = optimised.collect();
    whole.args.extend(parts.iter().flat_map(|part| ["--skip", part]));
    whole.variables.push((WITHOUT_OPTIMISER.0, WITHOUT_OPTIMISER.1.into()));
    whole.variables.push(("GEMV_CACHE_DIR", cache.display().to_string()));
    std::iter::once(whole).chain(optimised).collect()
}

fn isa(sh: &Shell, _: &Tools) -> Result<()> {
    let built = built(sh)?;
    // The others open a device for each instruction set themselves.
    let opened_by_default = ["robust", "allocations"];
    let tests: Vec<_> = built
        .iter()
        .filter(|b| b.package == "gemv-cpu" && opened_by_default.contains(&&*b.name))
        .collect();
    ensure!(tests.len() == opened_by_default.len(), "gemv-cpu has not {opened_by_default:?}");
    let mut all = Vec::new();
    for isa in ["avx2", "plain"] {
        if isa == "avx2" && !cfg!(target_arch = "x86_64") {
            println!("avx2: not an x86-64 machine");
            continue;
        }
        all.extend(tests.iter().map(|b| {
            let program = b.program(&[("GEMV_CPU_ISA", isa.into())]);
            Program { name: format!("{}, {isa}", program.name), ..program }
        }));
    }
    programs::run(all)
}

fn oclgrind(sh: &Shell, tools: &Tools) -> Result<()> {
    let own = one(sh, |b| b.package == "gemv-opencl" && b.name == "opencl")?;
    let many = one(sh, |b| b.package == "gemv-testkit" && b.name == "equivalence")?;
    // As a platform of its own: the `oclgrind` wrapper preloads a library, which the loader that
    // is looked for at run time does not see.
    let variables = [
        ("OCL_ICD_VENDORS", tools.oclgrind.display().to_string()),
        ("OCLGRIND_DATA_RACES", "1".into()),
        ("OCLGRIND_UNINITIALIZED", "1".into()),
        ("OCLGRIND_CHECK_API", "1".into()),
        // From source, so that what it finds has lines; and nothing but what the tests compute.
        ("GEMV_CACHE", "off".into()),
        ("GEMV_SELF_TEST", "off".into()),
        ("GEMV_OPENCL_SMALL", "1".into()),
        ("GEMV_REQUIRE", "opencl".into()),
        ("GEMV_TEST_DEVICES", "opencl".into()),
        ("GEMV_TEST_TINY", "1".into()),
    ];
    // The kernels for several right-hand sides, of one type and of one pair of types, whose texts f16 has as well: the
    // simulator takes minutes for all. On one thread: the simulator crashes where a program enters it on two.
    let parts = ["/f32/many-", "/bf16*f32/many-"];
    parts.iter().try_for_each(|part| has_trials(sh, &many, part, &variables))?;
    let [one, pair] = parts.map(|of| Program {
        name: format!("{}: {}, {of}", many.package, many.name),
        args: vec![of, "--test-threads", "1"],
        ..many.program(&variables)
    });
    let mut all = [own.program(&variables), one, pair];
    let logs = ["opencl", "many", "many-mixed"];
    let logs = logs.map(|name| tools.target.join(format!("oclgrind-{name}.log")));
    for (program, log) in all.iter_mut().zip(&logs) {
        sh.remove_path(log)?;
        program.variables.push(("OCLGRIND_LOG", log.display().to_string()));
    }
    programs::run(all.into())?;
    // The exit code says nothing of the kernels: the logs do.
    for log in logs {
        let text = if log.exists() { sh.read_file(&log)? } else { String::new() };
        ensure!(text.trim().is_empty(), "Oclgrind found errors in a kernel:\n{text}");
    }
    Ok(())
}

/// A program that tests need or are.
struct Built {
    package: String,
    name: String,
    test: bool,
    /// Of its crate.
    folder: PathBuf,
    path: PathBuf,
}

impl Built {
    fn program(&self, variables: &[(&'static str, String)]) -> Program {
        let (path, folder) = (self.path.clone(), self.folder.clone());
        let name = format!("{}: {}", self.package, self.name);
        Program { name, path, folder, args: Vec::new(), variables: variables.to_vec() }
    }
}

/// Builds the tests, and the programs that they run, and says where they lie.
fn built(sh: &Shell) -> Result<Vec<Built>> {
    let form = "json-render-diagnostics";
    let build = cmd!(sh, "cargo test --locked {WORKSPACE...} --no-run --message-format {form}");
    let json = build.read()?;
    let mut built = Vec::new();
    for line in json.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        let Some(path) = message["executable"].as_str() else { continue };
        let manifest = message["manifest_path"].as_str().unwrap_or_default();
        let folder = Path::new(manifest).parent().context("a manifest in a folder")?;
        // `..#0.1.0`, or `..#name@0.1.0` where the folder has another name.
        let id = message["package_id"].as_str().and_then(|id| id.rsplit_once('#'));
        let named = id.and_then(|(_, rest)| rest.split_once('@')).map(|(name, _)| name.to_owned());
        let of_folder = || folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        built.push(Built {
            package: named.unwrap_or_else(of_folder),
            name: message["target"]["name"].as_str().unwrap_or_default().into(),
            test: message["profile"]["test"].as_bool().unwrap_or_default(),
            folder: folder.into(),
            path: path.into(),
        });
    }
    Ok(built)
}

fn one(sh: &Shell, which: impl Fn(&Built) -> bool) -> Result<Built> {
    built(sh)?.into_iter().find(which).context("the program was not built")
}

fn nvrtc(sh: &Shell, tools: &Tools) -> Result<()> {
    let _path = sh.push_env("GEMV_NVRTC", &tools.nvrtc);
    let _require = sh.push_env("GEMV_REQUIRE", "nvrtc");
    for name in ["nvrtc", "places", "programs"] {
        let binary = one(sh, |b| b.package == "gemv-cuda" && b.name == name)?.path;
        cmd!(sh, "{binary}").run()?;
    }
    Ok(())
}

/// They come from exact arithmetic in Python, and from nothing that is under test.
fn golden(sh: &Shell, _: &Tools) -> Result<()> {
    Ok(cmd!(sh, "python3 tests/golden/make.py --check").run()?)
}

fn newcomer(sh: &Shell, tools: &Tools) -> Result<()> {
    crate::newcomer::run(sh, &tools.target.join("newcomer"))
}

fn python(sh: &Shell, tools: &Tools) -> Result<()> {
    let _pocl = sh.push_env("OCL_ICD_VENDORS", &tools.pocl);
    crate::python::run(sh, &tools.target)
}

/// Its tests start themselves by mpirun. The example's hash is the same on any number of ranks, and without MPI.
fn mpi(sh: &Shell, _: &Tools) -> Result<()> {
    let tests = one(sh, |b| b.package == "gemv-mpi" && b.name == RANKS)?;
    programs::run(vec![tests.program(&[("GEMV_REQUIRE", "cpu".into())])])?;
    let program = one(sh, |b| b.package == "gemv-mpi" && b.name == "mpi_power_iteration")?.path;
    // Of Open MPI: as root, as in a container; more ranks than processors, which those that wait leave to others.
    let _env = [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
        ("OMPI_MCA_mpi_yield_when_idle", "1"),
        ("RAYON_NUM_THREADS", "1"),
    ]
    .map(|(name, value)| sh.push_env(name, value));
    let size = ["--size", "700", "--iterations", "8"];
    let hash = |text: String| {
        let line = text.lines().find(|line| line.starts_with("hash of the bits"));
        line.map(str::to_owned).context("the example prints no hash")
    };
    let alone = hash(cmd!(sh, "{program} --without-mpi {size...}").read()?)?;
    let splits = [("1", "rows"), ("2", "rows"), ("2", "columns"), ("3", "rows"), ("3", "columns")];
    for (ranks, split) in splits.into_iter().chain([("4", "2x2")]) {
        // Ranks that wait for each other would wait for ever.
        let limited = ["120", "mpirun", "-n", ranks];
        let run = cmd!(sh, "timeout {limited...} {program} --split {split} {size...}");
        let text = run.quiet().read()?;
        let found = hash(text)?;
        ensure!(found == alone, "{ranks} ranks {split}: {found}, but without MPI {alone}");
        println!("{ranks} ranks, {split:<7} {found}");
    }
    Ok(())
}

fn package(sh: &Shell, tools: &Tools) -> Result<()> {
    crate::package::run(sh, &tools.target.join("package"))
}

/// As the other tests are compiled: the step newcomer has what a release is.
fn quickstart(sh: &Shell, _: &Tools) -> Result<()> {
    let program = one(sh, |b| b.package == "gemv-examples" && b.name == "quickstart" && !b.test)?;
    let program = program.path;
    Ok(cmd!(sh, "{program}").run()?)
}

fn bare(sh: &Shell, tools: &Tools) -> Result<()> {
    let program = one(sh, |b| b.package == "gemv-cli" && b.name == "gemv" && !b.test)?;
    let bare = Bare::new(sh, &tools.target.join("bare"), &program.path)?;
    let (code, text) = bare.run(sh, &["info"])?;
    ensure!(code == 0, "`gemv info` failed without drivers: {text}");
    for backend in ["cpu", "opencl", "cuda"] {
        ensure!(text.contains(backend), "`gemv info` does not speak of {backend}:\n{text}");
    }
    // As NumPy has written them.
    let files = Path::new("gemv-cli/tests/npy");
    let a = bare.add(sh, &files.join("le_f8_a.npy"))?;
    let x = bare.add(sh, &files.join("le_f8_x.npy"))?;
    let (code, text) = bare.run(sh, &["dot", &a, &x])?;
    ensure!(
        code == 0 && text.split_whitespace().eq(["10.5", "21.5", "24.875"]),
        "the product is wrong: {text}"
    );
    for device in ["cuda", "opencl"] {
        let start = Instant::now();
        let (code, text) = bare.run(sh, &["dot", &a, &x, "--device", device])?;
        let took = start.elapsed();
        ensure!(code == 1 && text.trim().lines().count() == 1, "not one sentence: {text}");
        ensure!(took.as_millis() < 100, "{device} took {took:?} to say that it is not there");
        println!("{}", text.trim());
    }
    Ok(())
}
