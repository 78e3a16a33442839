//! The crates as they would be published.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use xshell::{Shell, cmd};

/// The most bytes of a published package, compressed.
const MOST: u64 = 300_000;
/// The same of gemv-cuda, whose compiled programs travel with it.
const MOST_WITH_PTX: u64 = 4_200_000;

const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

/// The published crates, each after those that it depends on.
pub const PUBLISHED: [&str; 14] = [
    "gemv-packed",
    "gemv-desc",
    "gemv-weights",
    "gemv-core",
    "gemv-threads",
    "gemv-gpu",
    "gemv-baselines",
    "gemv-cpu",
    "gemv-opencl",
    "gemv-cuda",
    "gemv",
    "gemv-shard",
    "gemv-lab",
    "gemv-mpi",
];

/// Packs every published crate, and looks at its size and at what is in it. `--no-verify`: the other
/// steps have built the same sources.
pub fn run(sh: &Shell, target: &Path) -> Result<()> {
    let crates = PUBLISHED.iter().flat_map(|name| ["-p", name]);
    cmd!(
        sh,
        "cargo package --locked --no-verify --allow-dirty -q {crates...} --target-dir {target}"
    )
    .run()?;
    let version = env!("CARGO_PKG_VERSION");
    let cited = format!("\nversion: {version}\n");
    ensure!(sh.read_file("CITATION.cff")?.contains(&cited), "CITATION.cff has another version");
    for name in PUBLISHED {
        let file = target.join("package").join(format!("{name}-{version}.crate"));
        let bytes = std::fs::metadata(&file).context("no package was written")?.len();
        println!("{name:<15} {:>4} kB", bytes / 1000);
        let most = if name == "gemv-cuda" { MOST_WITH_PTX } else { MOST };
        ensure!(bytes <= most, "{name} has {bytes} bytes, and {most} are the most");
        let listed = cmd!(sh, "tar -tzf {file}").quiet().read()?;
        for needed in ["README.md", "src/lib.rs"].into_iter().chain(LICENCES) {
            let path = format!("{name}-{version}/{needed}");
            ensure!(listed.lines().any(|l| l == path), "{name} is packed without {needed}");
        }
        // Links of the folder, and files in the package.
        for licence in LICENCES {
            let path = format!("{name}-{version}/{licence}");
            let packed = cmd!(sh, "tar -xzOf {file} {path}").quiet().output()?.stdout;
            let ours = sh.read_binary_file(licence)?;
            ensure!(packed == ours, "{name}: its {licence} is not the project's");
        }
    }
    Ok(())
}
