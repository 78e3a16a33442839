//! What a linker leaves of the library: static archives and shared libraries find every backend.

use anyhow::Result;
use xshell::{Shell, cmd};

use crate::setup::Tools;

/// The static archive of gemv-c, built as the tests are, and a program that is linked with it.
pub fn step(sh: &Shell, tools: &Tools) -> Result<()> {
    let target = tools.target.parent().unwrap_or(&tools.target).to_owned();
    linked(sh, tools, &target.join("debug/libgemv_c.a"))
}

/// The same, and the shared library, optimised as a whole in both ways.
pub fn suite(sh: &Shell, tools: &Tools) -> Result<()> {
    for lto in ["thin", "fat"] {
        let target = tools.target.join(format!("archive-{lto}"));
        let _lto = sh.push_env("CARGO_PROFILE_RELEASE_LTO", lto);
        cmd!(sh, "cargo build --locked --release -p gemv-c --all-features --target-dir {target}")
            .run()?;
        for file in ["libgemv_c.a", "libgemv_c.so"] {
            println!("{file}, lto = {lto}");
            linked(sh, tools, &target.join("release").join(file))?;
        }
    }
    Ok(())
}

fn linked(sh: &Shell, tools: &Tools, library: &std::path::Path) -> Result<()> {
    let program = tools.target.join("archive");
    // What Rust's own library needs of the system.
    let system = ["-lpthread", "-ldl", "-lm", "-lrt"];
    let flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-I", "gemv-c/include"];
    cmd!(sh, "cc {flags...} gemv-c/tests/archive.c {library} {system...} -o {program}").run()?;
    Ok(cmd!(sh, "{program}").run()?)
}
