//! Checks of gemv-candle, a workspace of its own: they compile candle.

use anyhow::{Result, ensure};
use xshell::{Shell, cmd};

/// Lints, documentation, tests and the example, on the CPU: its feature `cuda` needs nvcc.
pub fn run(sh: &Shell) -> Result<()> {
    let of = ["--locked", "--manifest-path", "gemv-candle/Cargo.toml"];
    cmd!(sh, "cargo clippy {of...} --all-targets -- -D warnings").run()?;
    cmd!(sh, "cargo doc {of...} --no-deps").env("RUSTDOCFLAGS", "-D warnings").run()?;
    cmd!(sh, "cargo test {of...}").env_remove("RUST_BACKTRACE").run()?;
    // It fails where a row's bits depend on the others. Small: without optimisation candle's own product takes long.
    let said = cmd!(sh, "cargo run {of...} --example decode -- cpu 128").read()?;
    println!("{said}");
    ensure!(said.contains("gemv: 0 of 14 rows"), "the example compares no rows");
    Ok(())
}
