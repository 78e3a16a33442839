//! What the checks need from the system: an OpenCL loader, PoCL, Oclgrind, NVRTC, MPI, OpenBLAS, CLBlast, and
//! Chromium.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use xshell::{Shell, cmd};

/// What was found or installed.
pub struct Tools {
    /// NVRTC's shared library, from the wheel.
    pub nvrtc: PathBuf,
    /// A folder that names PoCL alone, for `OCL_ICD_VENDORS`.
    pub pocl: PathBuf,
    /// A folder that names Oclgrind alone.
    pub oclgrind: PathBuf,
    /// Whether there is a Chromium to open reports in. Debian has it as a package; Ubuntu's is a
    /// snap, which a container cannot install.
    pub chromium: bool,
    /// The target folder.
    pub target: PathBuf,
}

/// Installs what is missing.
pub fn all(sh: &Shell) -> Result<Tools> {
    let target = target(sh)?;
    system_packages(sh)?;
    mpi(sh)?;
    let pocl = sh.read_file("/etc/OpenCL/vendors/pocl.icd")?;
    let tools = Tools {
        nvrtc: nvrtc(sh, &target.join("nvrtc"), "nvidia-cuda-nvrtc")?,
        pocl: platform(sh, &target, "pocl", &pocl)?,
        oclgrind: platform(sh, &target, "oclgrind", &oclgrind()?)?,
        chromium: chromium(sh)?,
        target,
    };
    println!("NVRTC: {}", shown(sh, &tools.nvrtc));
    Ok(tools)
}

/// The folder of this program in the target folder.
pub fn target(sh: &Shell) -> Result<PathBuf> {
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => sh.current_dir().join(dir),
        None => sh.current_dir().join("target"),
    };
    let target = target.join("xtask");
    sh.create_dir(&target)?;
    Ok(target)
}

/// The NVRTC that compiles the PTX that travels with gemv-cuda: the oldest of its major version, whose PTX
/// the most drivers read.
pub fn nvrtc_of_ptx(sh: &Shell) -> Result<PathBuf> {
    nvrtc(sh, &target(sh)?.join("nvrtc-of-ptx"), "nvidia-cuda-nvrtc-cu12==12.0.140")
}

fn shown(sh: &Shell, path: &Path) -> String {
    path.strip_prefix(sh.current_dir()).unwrap_or(path).display().to_string()
}

/// The library that stands for every one with the C interface of the BLAS.
pub const OPENBLAS: &str = "libopenblas.so.0";

/// The rival of products on OpenCL.
pub const CLBLAST: &str = "libclblast.so.1";

/// A file that the package installs, and the package's name on Debian and Ubuntu.
const PACKAGES: [(&[&str], &str); 8] = [
    (&["libOpenCL.so.1"], "ocl-icd-libopencl1"),
    (&["/etc/OpenCL/vendors/pocl.icd"], "pocl-opencl-icd"),
    (&["/usr/bin/oclgrind"], "oclgrind"),
    (&[OPENBLAS], "libopenblas0-pthread"),
    (&[CLBLAST], "libclblast1"),
    (&["/usr/bin/cc", "/usr/local/bin/cc"], "gcc"),
    (&["/usr/bin/c++", "/usr/local/bin/c++"], "g++"),
    (&["/usr/bin/python3", "/usr/local/bin/python3"], "python3"),
];

fn system_packages(sh: &Shell) -> Result<()> {
    let libraries = cmd!(sh, "ldconfig -p").quiet().read().unwrap_or_default();
    let there = |file: &str| {
        if file.starts_with('/') { Path::new(file).exists() } else { libraries.contains(file) }
    };
    let mut missing: Vec<&str> =
        PACKAGES.iter().filter(|p| !p.0.iter().any(|f| there(f))).map(|p| p.1).collect();
    if cmd!(sh, "python3 -m pip --version").quiet().ignore_stderr().read().is_err() {
        missing.push("python3-pip");
    }
    if cmd!(sh, "python3 -c 'import venv, ensurepip'").quiet().ignore_stderr().run().is_err() {
        missing.push("python3-venv");
    }
    install(sh, &missing)
}

/// Installs what gemv-mpi needs, if it is missing: an MPI library with its compiler, and the libclang that reads its
/// header. The other crates need none of it.
fn mpi(sh: &Shell) -> Result<()> {
    programs(sh, &[("mpicc", "libopenmpi-dev"), ("mpirun", "openmpi-bin")])?;
    if libclang()? { Ok(()) } else { install(sh, &["libclang-dev"]) }
}

/// Whether there is a libclang, with the headers that a compiler has of its own.
fn libclang() -> Result<bool> {
    let mut folders = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from).to_vec();
    folders.extend(std::env::var_os("LIBCLANG_PATH").map(PathBuf::from));
    // The packages of Debian and Ubuntu have a folder for each version.
    for entry in std::fs::read_dir("/usr/lib")? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("llvm-")) {
            folders.push(path.join("lib"));
        }
    }
    let named = |folder: &Path, start: &str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.any(|name| name.starts_with(start))
    };
    Ok(folders
        .iter()
        .any(|folder| named(folder, "libclang.so") && named(&folder.join("clang"), "")))
}

/// Installs the packages of these programs that are missing.
pub fn programs(sh: &Shell, programs: &[(&str, &str)]) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |name: &str| std::env::split_paths(&path).any(|folder| folder.join(name).exists());
    let missing: Vec<&str> =
        programs.iter().filter(|(name, _)| !there(name)).map(|(_, package)| *package).collect();
    install(sh, &missing)
}

/// Installs the packages of these files that are missing.
pub fn files(sh: &Shell, files: &[(&str, &str)]) -> Result<()> {
    let missing = files.iter().filter(|(file, _)| !Path::new(file).exists());
    install(sh, &missing.map(|(_, package)| *package).collect::<Vec<_>>())
}

/// Installs these packages of Debian or Ubuntu, if there are any.
pub fn install(sh: &Shell, packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let names = packages.join(" ");
    if cmd!(sh, "apt-get --version").quiet().ignore_stderr().read().is_err() {
        bail!("there is no apt-get: install {names} by this system's own means");
    }
    println!("installing {names}");
    let options = ["install", "-y", "--no-install-recommends"];
    apt(sh, &["update"])
        .and_then(|()| apt(sh, &[&options[..], packages].concat()))
        .with_context(|| format!("{names} could not be installed"))
}

/// Runs apt-get as root.
fn apt(sh: &Shell, args: &[&str]) -> Result<()> {
    let root = cmd!(sh, "id -u").quiet().read()? == "0";
    let sudo: &[&str] = if root { &[] } else { &["sudo"] };
    let wait = "-oDPkg::Lock::Timeout=300";
    // In one process each, so that `sudo` needs no shell.
    let all =
        [sudo, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", wait, "-q"], args].concat();
    let (program, rest) = all.split_first().context("a program")?;
    cmd!(sh, "{program} {rest...}").run().context("apt-get failed")
}

/// Whether there is a Chromium, after trying to install it.
fn chromium(sh: &Shell) -> Result<bool> {
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let there = || names.iter().any(|n| cmd!(sh, "{n} --version").quiet().read().is_ok());
    if there() {
        return Ok(true);
    }
    if let Err(why) = install(sh, &["chromium"]) {
        println!("no Chromium ({why:#}): no test opens a report in it");
    }
    Ok(there())
}

/// NVRTC in this folder, from a wheel, which holds the compiler alone; nothing of CUDA needs to be installed.
fn nvrtc(sh: &Shell, dir: &Path, wheel: &str) -> Result<PathBuf> {
    if let Some(found) = find_nvrtc(dir) {
        return Ok(found);
    }
    println!("fetching the NVRTC wheel");
    let wheels = dir.with_extension("wheels");
    cmd!(sh, "python3 -m pip download -q --no-deps --only-binary=:all: -d {wheels} {wheel}")
        .run()
        .with_context(|| format!("the NVRTC wheel ({wheel}) could not be fetched with pip"))?;
    let wheel = sh
        .read_dir(&wheels)?
        .into_iter()
        .find(|f| f.extension().is_some_and(|e| e == "whl"))
        .context("pip left no wheel")?;
    let aside = dir.with_extension("part");
    sh.remove_path(&aside)?;
    cmd!(sh, "python3 -m zipfile -e {wheel} {aside}").run()?;
    sh.remove_path(dir)?;
    std::fs::rename(&aside, dir)?;
    find_nvrtc(dir).context("the wheel holds no libnvrtc.so")
}

fn find_nvrtc(dir: &Path) -> Option<PathBuf> {
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).ok()?.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                dirs.push(path);
            } else if name.starts_with("libnvrtc.so.") && !name.contains("alt") {
                return Some(path);
            }
        }
    }
    None
}

/// A folder that names one OpenCL platform: others of the machine do not take part, so that the
/// checks mean the same everywhere.
fn platform(sh: &Shell, target: &Path, name: &str, library: &str) -> Result<PathBuf> {
    let dir = target.join("platforms").join(name);
    sh.create_dir(&dir)?;
    sh.write_file(dir.join(format!("{name}.icd")), library)?;
    Ok(dir)
}

/// Oclgrind's library, which its package does not register as a platform.
fn oclgrind() -> Result<String> {
    let found = [
        "/usr/lib/oclgrind",
        "/usr/lib/x86_64-linux-gnu/oclgrind",
        "/usr/lib/aarch64-linux-gnu/oclgrind",
    ]
    .map(|dir| Path::new(dir).join("liboclgrind-rt-icd.so"))
    .into_iter()
    .find(|path| path.exists())
    .context("the package oclgrind holds no liboclgrind-rt-icd.so where it is looked for")?;
    Ok(found.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_installed_is_named() {
        let sh = Shell::new().unwrap();
        sh.set_var("PATH", "");
        let why = install(&sh, &["oclgrind", "gcc"]).unwrap_err().to_string();
        assert!(why.contains("install oclgrind gcc by"), "{why}");
    }
}
