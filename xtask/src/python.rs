//! The Python package: what its tests need, and how they run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use xshell::{Shell, cmd};

/// Its tests with NumPy and SciPy, on a build that shares what the other steps compile. A wheel, torch, JAX, and the tests of
/// others are suites.
pub fn run(sh: &Shell, target: &Path) -> Result<()> {
    let python = environment(sh, &target.join("python/tests"), "python/tests/requirements.txt")?;
    // A test among the targets has Cargo choose the features that tests have, so that nothing is compiled twice.
    // The libraries for C have steps of their own.
    let packages =
        ["--workspace", "--all-features", "--exclude", "gemv-blas", "--exclude", "gemv-c"];
    let targets = ["--lib", "--bin", "gemv", "--test", "api"];
    let packages = [&packages[..], &targets].concat();
    let (module, command) = built(sh, &packages)?;
    let module = module.context("the module was not built")?;
    let site = target.join("python/site");
    sh.remove_path(&site)?;
    let package = site.join("gemv");
    sh.create_dir(&package)?;
    for file in sh.read_dir("python/gemv")? {
        let name = file.file_name().context("a file")?.to_string_lossy().into_owned();
        if [".py", ".pyi", "py.typed"].iter().any(|end| name.ends_with(end)) {
            sh.copy_file(&file, &package)?;
        }
    }
    sh.copy_file(module, package.join("_gemv.abi3.so"))?;
    let _variables = [
        sh.push_env("PYTHONPATH", &site),
        sh.push_env("PYTHONDONTWRITEBYTECODE", "1"),
        sh.push_env("GEMV_COMMAND", command),
    ];
    let options = ["-q", "-p", "no:cacheprovider", "--ignore", "python/tests/large"];
    cmd!(sh, "{python} -m pytest {options...} python/tests").run()?;
    weights(sh, target, &python)
}

/// Packed weights and their files, as the packages gguf and safetensors have them.
fn weights(sh: &Shell, target: &Path, python: &Path) -> Result<()> {
    let golden = target.join("python/golden");
    let [packed, files] = ["packed", "files"].map(|name| golden.join(name));
    cmd!(sh, "{python} gemv-packed/tests/golden.py {packed} 2 2000").run()?;
    cmd!(sh, "{python} gemv-weights/tests/golden.py {files}").run()?;
    let _variables =
        [sh.push_env("GEMV_PACKED_GOLDEN", packed), sh.push_env("GEMV_WEIGHTS_GOLDEN", files)];
    // With the features that tests have, so that nothing is compiled twice.
    let tests = ["--workspace", "--all-features", "--test", "blocks", "--test", "files"];
    Ok(cmd!(sh, "cargo test --locked -q {tests...}").run()?)
}

/// Builds these packages; returns the module's file and the command's.
fn built(sh: &Shell, packages: &[&str]) -> Result<(Option<String>, String)> {
    let form = "json-render-diagnostics";
    let json = cmd!(sh, "cargo build --locked {packages...} --message-format {form}").read()?;
    let (mut module, mut command) = (None, None);
    for line in json.lines() {
        let message: Value = serde_json::from_str(line)?;
        let files = message["filenames"].as_array().cloned().unwrap_or_default();
        match message["target"]["name"].as_str() {
            Some("_gemv") => {
                module = files.first().and_then(|file| file.as_str().map(str::to_owned))
            }
            Some("gemv") if message["executable"].is_string() => {
                command = message["executable"].as_str().map(str::to_owned);
            }
            _ => {}
        }
    }
    Ok((module, command.context("the command was not built")?))
}

/// The array API's tests, and the commit that is known to run: they are in no registry.
const ARRAY_API: (&str, &str) =
    ("https://github.com/data-apis/array-api-tests", "55fcc60179efa2680ddd6cd926ddf17b83530e2b");

/// The wheel as `pip` makes it, with torch and JAX; NumPy's, SciPy's and the array API's own tests by this library.
pub fn suites(sh: &Shell) -> Result<()> {
    let target = &crate::setup::target(sh)?;
    let dir = target.join("python/suites");
    let python = environment(sh, &dir, "python/tests/large/requirements.txt")?;
    let options = ["-q", "--disable-pip-version-check"];
    cmd!(sh, "{python} -m pip install {options...} --force-reinstall --no-deps ./python").run()?;
    let (_, command) = built(sh, &["-p", "gemv-cli"])?;
    let _variables = [
        sh.push_env("PYTHONDONTWRITEBYTECODE", "1"),
        sh.push_env("GEMV_COMMAND", command),
        sh.push_env("PYTHONPATH", sh.current_dir().join("python/tests/others")),
    ];
    let pytest = |args: &[&str]| {
        let options = ["-m", "pytest", "-q", "-p", "no:cacheprovider"];
        cmd!(sh, "{python} {options...} {args...}").run()
    };
    pytest(&["python/tests"])?;
    pytest(&[
        "-p",
        "gemv_in_scipy",
        "--pyargs",
        "scipy.sparse.linalg._isolve",
        "scipy.sparse.linalg._eigen",
    ])?;
    packed(sh, target, &dir, &python)?;
    let tests = array_api_tests(sh, target)?;
    let _variables = [
        sh.push_env("ARRAY_API_TESTS_MODULE", "gemv_array_api"),
        sh.push_env("ARRAY_API_TESTS_SKIP_DTYPES", "int8,int16,uint8,uint16,uint32"),
    ];
    let _dir = sh.push_dir(tests);
    let which = "matmul or vecdot or matrix_transpose";
    Ok(pytest(&["array_api_tests/test_linalg.py", "-k", which, "--max-examples", "500"])?)
}

/// Packed weights as ggml itself rounds them, by its library in the package pywhispercpp.
fn packed(sh: &Shell, target: &Path, environment: &Path, python: &Path) -> Result<()> {
    let golden = target.join("python/golden/ggml");
    cmd!(sh, "{python} gemv-packed/tests/golden.py {golden} 3 20000 {environment}").run()?;
    let _folder = sh.push_env("GEMV_PACKED_GOLDEN", golden);
    Ok(cmd!(sh, "cargo test --locked -q -p gemv-packed --test blocks").run()?)
}

/// A checkout of the array API's tests; `GEMV_ARRAY_API_TESTS` names one that is there.
fn array_api_tests(sh: &Shell, target: &Path) -> Result<PathBuf> {
    if let Some(there) = std::env::var_os("GEMV_ARRAY_API_TESTS") {
        return Ok(there.into());
    }
    let (from, commit) = ARRAY_API;
    let dir = target.join("python/array-api-tests");
    if !dir.join("conftest.py").exists() {
        sh.remove_path(&dir)?;
        cmd!(sh, "git clone -q {from} {dir}")
            .run()
            .context("GEMV_ARRAY_API_TESTS may name a checkout")?;
    }
    cmd!(sh, "git -C {dir} checkout -q {commit}").run()?;
    cmd!(sh, "git -C {dir} submodule -q update --init").run()?;
    Ok(dir)
}

/// A virtual environment with these packages; returns its Python.
pub fn environment(sh: &Shell, dir: &Path, requirements: &str) -> Result<PathBuf> {
    let python = dir.join("bin/python");
    let wanted = sh.read_file(requirements)?;
    let done = dir.join("requirements.txt");
    if sh.read_file(&done).is_ok_and(|there| there == wanted) {
        return Ok(python);
    }
    sh.remove_path(dir)?;
    cmd!(sh, "python3 -m venv {dir}").run().context(
        "no virtual environment can be made: Python 3.10 or later and its module venv are needed (python3-venv)",
    )?;
    let options = ["-q", "--disable-pip-version-check"];
    cmd!(sh, "{python} -m pip install {options...} -r {requirements}").run()?;
    ensure!(python.exists(), "{} was not made", python.display());
    sh.write_file(&done, wanted)?;
    Ok(python)
}
