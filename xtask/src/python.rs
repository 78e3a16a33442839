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
    let packages = ["--workspace", "--all-features", "--lib", "--bin", "gemv", "--test", "api"];
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
    let (module, command) =
        module.zip(command).context("the module or the command was not built")?;
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
    Ok(cmd!(sh, "{python} -m pytest {options...} python/tests").run()?)
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
