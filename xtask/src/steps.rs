//! The steps of `cargo xtask test`, in order.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use xshell::{Shell, cmd};

use crate::bare::Bare;
use crate::setup::Tools;

/// One step.
pub struct Step {
    pub name: &'static str,
    pub about: &'static str,
    pub run: fn(&Shell, &Tools) -> Result<()>,
}

pub const ALL: &[Step] = &[
    Step { name: "format", about: "rustfmt", run: format },
    Step { name: "house", about: "the architecture: circles, floors, unsafe, names", run: house },
    Step { name: "clippy", about: "clippy on everything, warnings denied", run: clippy },
    Step { name: "features", about: "every combination of the root's features", run: features },
    Step { name: "docs", about: "rustdoc, warnings denied", run: docs },
    Step { name: "test", about: "all tests on the CPU and on OpenCL (PoCL)", run: test },
    Step {
        name: "isa",
        about: "the CPU backend on every instruction set of this machine",
        run: isa,
    },
    Step {
        name: "oclgrind",
        about: "OpenCL kernels under Oclgrind; its log stays empty",
        run: oclgrind,
    },
    Step {
        name: "nvrtc",
        about: "every CUDA kernel compiled for sm_80, sm_90 and sm_100",
        run: nvrtc,
    },
    Step { name: "golden", about: "the golden vectors, computed again", run: golden },
    Step { name: "newcomer", about: "small crates that use this one", run: newcomer },
    Step { name: "package", about: "the crates as they would be published", run: package },
    Step { name: "quickstart", about: "the example of the README", run: quickstart },
    Step {
        name: "bare",
        about: "a binary with every feature, without libOpenCL and libcuda",
        run: bare,
    },
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
    Ok(cmd!(sh, "cargo clippy --locked --workspace --all-targets --all-features -- -D warnings")
        .run()?)
}

fn features(sh: &Shell, _: &Tools) -> Result<()> {
    for set in [
        "",
        "cpu",
        "opencl",
        "cuda",
        "cpu,opencl",
        "cpu,cuda",
        "opencl,cuda",
        "cpu,opencl,cuda",
        // The element types of the CPU; the other backends have all of them.
        "half,complex",
        "cpu,half",
        "cpu,complex",
        "cpu,half,complex",
    ] {
        let args = ["--no-default-features", "--features", set];
        // `--lib`: what a user builds; the same code whatever the features.
        cmd!(sh, "cargo clippy --locked -q -p gemv --lib {args...} -- -D warnings").run()?;
    }
    Ok(())
}

fn docs(sh: &Shell, _: &Tools) -> Result<()> {
    let _flags = sh.push_env("RUSTDOCFLAGS", "-D warnings");
    Ok(cmd!(sh, "cargo doc --locked --workspace --all-features --no-deps").run()?)
}

/// One selection for all that is built for tests, so that each crate is compiled once: another
/// selection may unify other features. gemv-core is tested alone.
const WORKSPACE: [&str; 4] = ["--workspace", "--all-features", "--exclude", "gemv-core"];

fn test(sh: &Shell, tools: &Tools) -> Result<()> {
    let _icd = sh.push_env("OCL_ICD_VENDORS", &tools.pocl);
    let _require = sh.push_env("GEMV_REQUIRE", "cpu,opencl");
    let _chromium = sh.push_env("GEMV_TEST_CHROMIUM", if tools.chromium { "1" } else { "0" });
    cmd!(sh, "cargo test --locked {WORKSPACE...}").run()?;
    // Alone, so that no backend is linked and the reference answers.
    Ok(cmd!(sh, "cargo test --locked -p gemv-core").run()?)
}

fn isa(sh: &Shell, _: &Tools) -> Result<()> {
    let built = built(sh)?;
    for isa in ["avx2", "plain"] {
        if isa == "avx2" && !cfg!(target_arch = "x86_64") {
            println!("avx2: not an x86-64 machine");
            continue;
        }
        let _isa = sh.push_env("GEMV_CPU_ISA", isa);
        println!("GEMV_CPU_ISA={isa}");
        for Built { path, .. } in built.iter().filter(|b| b.package == "gemv-cpu" && b.test) {
            cmd!(sh, "{path}").run()?;
        }
    }
    Ok(())
}

fn oclgrind(sh: &Shell, tools: &Tools) -> Result<()> {
    let own = one(sh, |b| b.package == "gemv-opencl" && b.name == "opencl")?;
    let gemm = one(sh, |b| b.test && b.name == "gemm")?;
    let log = tools.target.join("oclgrind.log");
    sh.remove_path(&log)?;
    // As a platform of its own: the `oclgrind` wrapper preloads a library, which the loader that
    // is looked for at run time does not see.
    let _env: Vec<_> = [
        ("OCL_ICD_VENDORS", tools.oclgrind.as_os_str()),
        ("OCLGRIND_LOG", log.as_os_str()),
        ("OCLGRIND_DATA_RACES", "1".as_ref()),
        ("OCLGRIND_UNINITIALIZED", "1".as_ref()),
        ("OCLGRIND_CHECK_API", "1".as_ref()),
        // From source, so that what it finds has lines; and nothing but what the tests compute.
        ("GEMV_CACHE", "off".as_ref()),
        ("GEMV_SELF_TEST", "off".as_ref()),
        ("GEMV_OPENCL_SMALL", "1".as_ref()),
        ("GEMV_REQUIRE", "opencl".as_ref()),
        ("GEMV_TEST_DEVICES", "opencl".as_ref()),
        ("GEMV_TEST_TINY", "1".as_ref()),
    ]
    .map(|(name, value)| sh.push_env(name, value))
    .into();
    cmd!(sh, "{own}").run()?;
    // The kernels for several right-hand sides, of one type: the simulator takes minutes for all.
    // On one thread: the simulator crashes where a program enters it on two.
    cmd!(sh, "{gemm} f32/ --test-threads 1").run()?;
    // The exit code says nothing of the kernels: the log does.
    let text = if log.exists() { sh.read_file(&log)? } else { String::new() };
    ensure!(text.trim().is_empty(), "Oclgrind found errors in a kernel:\n{text}");
    Ok(())
}

/// A program that the workspace's tests need or are.
struct Built {
    package: String,
    name: String,
    test: bool,
    path: String,
}

/// Builds all tests and the programs that they run, and says where they lie.
fn built(sh: &Shell) -> Result<Vec<Built>> {
    let json = cmd!(sh, "cargo test --locked -q {WORKSPACE...} --no-run --message-format json")
        .quiet()
        .read()?;
    let mut built = Vec::new();
    for line in json.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        let Some(path) = message["executable"].as_str() else { continue };
        let manifest = message["manifest_path"].as_str().unwrap_or_default();
        let folder = std::path::Path::new(manifest).parent().and_then(|p| p.file_name());
        built.push(Built {
            package: folder.unwrap_or_default().to_string_lossy().into_owned(),
            name: message["target"]["name"].as_str().unwrap_or_default().into(),
            test: message["profile"]["test"].as_bool().unwrap_or_default(),
            path: path.into(),
        });
    }
    Ok(built)
}

fn one(sh: &Shell, which: impl Fn(&Built) -> bool) -> Result<String> {
    let found = built(sh)?.into_iter().find(which).context("the program was not built")?;
    Ok(found.path)
}

fn nvrtc(sh: &Shell, tools: &Tools) -> Result<()> {
    let _path = sh.push_env("GEMV_NVRTC", &tools.nvrtc);
    let _require = sh.push_env("GEMV_REQUIRE", "nvrtc");
    let binary = one(sh, |b| b.package == "gemv-cuda" && b.name == "nvrtc")?;
    Ok(cmd!(sh, "{binary}").run()?)
}

/// They come from exact arithmetic in Python, and from nothing that is under test.
fn golden(sh: &Shell, _: &Tools) -> Result<()> {
    Ok(cmd!(sh, "python3 tests/golden/make.py --check").run()?)
}

fn newcomer(sh: &Shell, tools: &Tools) -> Result<()> {
    crate::newcomer::run(sh, &tools.target.join("newcomer"))
}

fn package(sh: &Shell, tools: &Tools) -> Result<()> {
    crate::package::run(sh, &tools.target.join("package"))
}

fn quickstart(sh: &Shell, _: &Tools) -> Result<()> {
    Ok(cmd!(sh, "cargo run --locked --release --bin quickstart").run()?)
}

fn bare(sh: &Shell, tools: &Tools) -> Result<()> {
    let program = one(sh, |b| b.package == "gemv-cli" && b.name == "gemv" && !b.test)?;
    let bare = Bare::new(sh, &tools.target.join("bare"), program.as_ref())?;
    let (code, text) = bare.run(sh, &["info"])?;
    ensure!(code == 0, "`gemv info` failed without drivers: {text}");
    for backend in ["cpu", "opencl", "cuda"] {
        ensure!(text.contains(backend), "`gemv info` does not speak of {backend}:\n{text}");
    }
    let data = tools.target.join("bare-data");
    sh.create_dir(&data)?;
    let files = numpy_files(sh, &data)?;
    let (a, x) = (bare.add(sh, &files.0)?, bare.add(sh, &files.1)?);
    let (code, text) = bare.run(sh, &["dot", &a, &x])?;
    ensure!(
        code == 0 && text.split_whitespace().eq(["5.0", "11.0"]),
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

/// [[1, 2], [3, 4]] and [1, 2] as f64 files of NumPy's format, version 1.0.
fn numpy_files(
    sh: &Shell,
    dir: &std::path::Path,
) -> Result<(std::path::PathBuf, std::path::PathBuf)> {
    let file = |name: &str, shape: &str, values: &[f64]| -> Result<std::path::PathBuf> {
        let dict = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}");
        let header = format!("{dict:<117}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.bytes());
        values.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
        let path = dir.join(name);
        sh.write_file(&path, bytes)?;
        Ok(path)
    };
    Ok((file("a.npy", "(2, 2)", &[1.0, 2.0, 3.0, 4.0])?, file("x.npy", "(2,)", &[1.0, 2.0])?))
}
