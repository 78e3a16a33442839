//! What a release needs beside the tests: what is linked, what has changed for users, another processor, an address.
//!
//! The tools are compiled into the target folder, once.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use xshell::{Shell, cmd};

use crate::setup::{self, Tools};

/// The crates whose types and functions users name.
const API: [&str; 4] = ["gemv-desc", "gemv-core", "gemv", "gemv-shard"];

/// The crates that are compiled for aarch64: all but those that need an MPI library, a Python or nvcc.
const AARCH64: [&str; 7] =
    ["gemv", "gemv-lab", "gemv-baselines", "gemv-shard", "gemv-cli", "gemv-blas", "gemv-c"];

pub fn deny(sh: &Shell, tools: &Tools) -> Result<()> {
    let deny = installed(sh, tools, "cargo-deny", "0.20")?;
    Ok(cmd!(sh, "{deny} --workspace --locked check --hide-inclusion-graph bans licenses sources")
        .run()?)
}

pub fn advisories(sh: &Shell, tools: &Tools) -> Result<()> {
    let deny = installed(sh, tools, "cargo-deny", "0.20")?;
    Ok(cmd!(sh, "{deny} --workspace --locked check advisories").run()?)
}

pub fn semver(sh: &Shell, tools: &Tools) -> Result<()> {
    let baseline = match std::env::var("GEMV_BASELINE") {
        Ok(revision) => revision,
        Err(_) => {
            let tags = cmd!(sh, "git tag --list v* --merged HEAD --sort=-version:refname")
                .quiet()
                .read()?;
            match tags.lines().next() {
                Some(newest) => newest.to_owned(),
                None => bail!(
                    "nothing is released: there is no tag v*; GEMV_BASELINE=REVISION compares with that one"
                ),
            }
        }
    };
    let check = installed(sh, tools, "cargo-semver-checks", "0.51")?;
    let crates = API.iter().flat_map(|name| ["-p", name]);
    println!("compared with {baseline}");
    Ok(cmd!(sh, "{check} semver-checks --all-features --baseline-rev {baseline} {crates...}")
        .run()?)
}

pub fn aarch64(sh: &Shell, _: &Tools) -> Result<()> {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    cmd!(sh, "rustup target add {TARGET}").run().context("its standard library is not here")?;
    // gemv-opencl compiles a file in C, which includes the system's headers.
    setup::programs(sh, &[("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")])?;
    setup::files(sh, &[("/usr/aarch64-linux-gnu/include/stdlib.h", "libc6-dev-arm64-cross")])?;
    let _flags = sh.push_env("RUSTFLAGS", "-D warnings");
    let crates = AARCH64.iter().flat_map(|name| ["-p", name]);
    Ok(cmd!(sh, "cargo check --locked --all-features --target {TARGET} {crates...}").run()?)
}

/// Registries show a README without the files beside it: they take its links and pictures from the repository that the
/// manifest names.
pub fn address(sh: &Shell, _: &Tools) -> Result<()> {
    let json = cmd!(sh, "cargo metadata --locked --no-deps --format-version 1").quiet().read()?;
    let json: serde_json::Value = serde_json::from_str(&json)?;
    let packages = json["packages"].as_array().context("cargo metadata lists no package")?;
    let without = packages.iter().filter(|package| {
        let is_published = crate::package::PUBLISHED.iter().any(|name| package["name"] == *name);
        is_published && package["repository"].is_null()
    });
    let without: Vec<&str> = without.filter_map(|package| package["name"].as_str()).collect();
    ensure!(
        without.is_empty(),
        "no repository is named in the manifests of {}: set it once in [workspace.package] of Cargo.toml, and \
         repository.workspace = true in each",
        without.join(", ")
    );
    let citation = sh.read_file("CITATION.cff")?;
    ensure!(citation.contains("repository-code:"), "CITATION.cff has no repository-code");
    Ok(())
}

/// A program of a registry's crate of this version, compiled if it is not there.
fn installed(sh: &Shell, tools: &Tools, name: &str, version: &str) -> Result<PathBuf> {
    let root = tools.target.join("tools");
    let program = root.join("bin").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let is_it = || {
        let said =
            cmd!(sh, "{program} --version").quiet().ignore_stderr().read().unwrap_or_default();
        said.split(' ').next_back().is_some_and(|v| v.starts_with(&format!("{version}.")))
    };
    if !is_it() {
        println!("compiling {name} {version}");
        let place = ["--root".into(), root.display().to_string()];
        cmd!(sh, "cargo install --locked --force --version ^{version} {place...} {name}")
            .run()
            .with_context(|| format!("{name} could not be installed"))?;
    }
    Ok(program)
}
