//! `cargo xtask house`: what the compiler does not check of the architecture.
//!
//! Circles of files, imports that climb, `unsafe` outside its folders, kernels named outside their
//! own files, functions of OpenCL that PoCL compiles wrong unless they are inlined, the size of gemv-core and gemv-desc,
//! what each published crate may depend on, `println` in the command, examples that name another crate than users, and links between Markdown files.

mod circles;
mod counts;
mod source;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use counts::Counts;
use serde_json::Value;
use xshell::{Shell, cmd};

/// The crates from the top to the bottom. A crate imports only from the floors below its own.
const FLOORS: &[&[&str]] = &[
    &["gemv-blas", "gemv-c", "gemv-cli", "gemv-examples", "gemv-mpi", "gemv-py"],
    &["gemv-lab"],
    &["gemv"],
    &["gemv-baselines", "gemv-shard"],
    &["gemv-cpu", "gemv-opencl", "gemv-cuda"],
    &["gemv-gpu", "gemv-threads"],
    &["gemv-core", "gemv-weights"],
    &["gemv-desc"],
    &["gemv-packed"],
];

/// Crates that stand beside the floors: no crate imports them but for its tests.
const BESIDE: &[&str] = &["xtask", "gemv-fuzz", "gemv-testkit"];

/// Where `unsafe` may stand.
const UNSAFE: &[&str] = &[
    // Whoever launches a kernel of their own answers for what it touches.
    "gemv-core/src/kernel_source.rs",
    "gemv-core/src/fork.rs", // pthread_atfork, and values that outlast a fork
    "gemv-core/src/float_mode.rs", // assembly: the floating-point mode of the thread
    "gemv-core/src/foreign.rs", // whoever brings memory or an event answers for it
    "gemv-core/src/interop.rs",
    "gemv-core/src/tensor.rs", // views of memory whose element type is a value
    "gemv-core/tests/kernel_source.rs",
    "tests/kernel_source.rs",
    "examples/src/bin/bignum_digit",
    "examples/src/bin/rotate_points",
    "gemv-baselines/src/cblas.rs",
    "gemv-blas/src",           // pointers of programs in C and Fortran
    "gemv-c/src",              // pointers of programs in C
    "gemv-candle/src/cuda.rs", // memory that candle allocates and a product fills
    "gemv-cpu/src/simd",
    "gemv-cpu/tests/outside.rs", // mprotect: pages that must not be touched
    "gemv-cpu/tests/robust.rs",  // 2^31 elements of zeros
    "gemv-cpu/tests/allocations.rs", // a counting allocator
    "gemv-cuda/src/driver",
    "gemv-cuda/src/slices.rs", // slices are borrowed, and of the device's stream
    "gemv-cuda/src/interop.rs", // whoever brings a stream or memory answers for it
    "gemv-cuda/tests/foreign.rs", // the driver, as another library calls it
    "gemv-cuda/tests/context.rs", // the driver's own word on the current context
    "gemv-opencl/src/cl.rs",
    "gemv-opencl/src/cl",
    "gemv-opencl/src/interop.rs", // whoever brings a queue or a buffer answers for it
    "gemv-shard/tests/memory.rs", // a counting allocator
    "gemv-opencl/tests/foreign.rs", // OpenCL, as another library calls it
    "gemv-testkit/src/failing.rs", // an allocator that fails
    "gemv-testkit/src/foreign.rs", // memory that a test owns
    "gemv-testkit/src/float_mode.rs", // assembly: sets another mode
    "gemv-testkit/src/processes.rs", // fork, and limits of the process
    "gemv-weights/src/map.rs",    // the map of a file
    "python/src/ffi", // the C interfaces of NumPy and DLPack, and tensors of their addresses
];

/// Crates that users see through gemv or beside it: their examples name what users depend on.
const EXAMPLES: &[&str] = &[
    "gemv-desc/src",
    "gemv-core/src",
    "gemv-cpu/src",
    "gemv-cuda/src",
    "gemv-opencl/src",
    "gemv-shard/src",
    "gemv-mpi/src",
];

/// What each published library may depend on, optional dependencies included.
const ALLOWED: &[(&str, &str)] = &[
    ("gemv", "gemv-core gemv-cpu gemv-cuda gemv-opencl"),
    ("gemv-desc", "gemv-packed thiserror"),
    ("gemv-packed", "half"),
    ("gemv-weights", "gemv-desc gemv-packed half memmap2 safetensors"),
    ("gemv-core", "gemv-desc half linkme log ndarray num-complex num-traits thiserror"),
    ("gemv-threads", "gemv-core log rayon"),
    ("gemv-gpu", "etcetera gemv-core linkme log rustix sha2 tempfile"),
    ("gemv-baselines", "gemv-core gemv-gpu gemv-threads libloading linkme"),
    ("gemv-shard", "bytemuck gemv-core gemv-threads half ndarray num-complex rayon thiserror"),
    (
        "gemv-lab",
        "anyhow chrono clap csv ctrlc flate2 gemv gemv-baselines gemv-core gemv-shard half \
         indicatif log ndarray num-complex plotters serde serde_json strsim tempfile thiserror",
    ),
    ("gemv-mpi", "bytemuck gemv gemv-core gemv-shard mpi ndarray thiserror"),
    ("gemv-candle", "candle-core gemv"),
    ("gemv-cpu", "gemv-core gemv-threads libc linkme log rayon"),
    ("gemv-opencl", "cc gemv-core gemv-gpu libloading linkme log ocl"),
    ("gemv-cuda", "cudarc gemv-core gemv-gpu libloading linkme log lzma-rust2 parking_lot"),
];

/// What every user has.
const CORE: [&str; 2] = ["gemv-core", "gemv-desc"];

/// The most lines of code in them together: without tests, and without documentation, whose examples are about as many.
const CORE_LINES: usize = 9000;

/// One crate of the workspace.
pub struct Package {
    name: String,
    /// Its folder, relative to the workspace; empty for the root.
    folder: PathBuf,
    /// The root files of its library and its binaries.
    roots: Vec<PathBuf>,
    /// Normal and build dependencies.
    dependencies: BTreeSet<String>,
}

/// The files of the workspace, relative to its root, with their text.
type Files = std::collections::BTreeMap<PathBuf, String>;

/// Runs the check; fails with every finding.
pub fn run(sh: &Shell) -> Result<()> {
    let root = sh.current_dir();
    let packages = packages(sh, &root)?;
    let mut files = Files::new();
    gather(&root, &root, &mut files)?;
    let (mut found, counts) = findings(&packages, &files)?;
    found.extend(crate::links::markdown(&root)?);
    print!("{counts}");
    let results = sh.read_file("docs/RESULTS.md")?.lines().count();
    println!(
        "docs: {results} lines in RESULTS.md, {} kB in results",
        bytes(&root.join("docs/results"))? / 1000
    );
    found.iter().for_each(|finding| println!("{finding}"));
    ensure!(found.is_empty(), "{} findings", found.len());
    Ok(())
}

/// The Rust files of the workspace, relative to its root.
pub fn sources(sh: &Shell) -> Result<Vec<PathBuf>> {
    let root = sh.current_dir();
    let mut files = Files::new();
    gather(&root, &root, &mut files)?;
    Ok(files.into_keys().filter(|f| f.extension().is_some_and(|e| e == "rs")).collect())
}

/// Everything that is found, in a fixed order, and how much there is of everything.
fn findings(packages: &[Package], files: &Files) -> Result<(Vec<String>, Counts)> {
    let mut found = Vec::new();
    let mut shipped = BTreeSet::new();
    for package in packages {
        let name = &package.name;
        found.extend(climbs(package).into_iter().map(|f| format!("{name}: {f}")));
        found.extend(extra(package).into_iter().map(|f| format!("{name}: {f}")));
        for root in &package.roots {
            let tree = source::Tree::read(root, &|p| files.get(p).cloned())?;
            shipped.extend(tree.files.iter().cloned());
            for circle in circles::circles(&tree) {
                found.push(format!("{name}: circle: {}", circle_text(&tree, &circle)));
            }
            if !words::denies_unsafe(&files[root])? {
                found.push(format!("{name}: {}: no deny(unsafe_code)", root.display()));
            }
        }
    }
    let mut kernels = words::Kernels::default();
    let sources = || files.iter().filter(|(p, _)| p.extension().is_some_and(|e| e == "rs"));
    for (file, text) in sources().filter(|(p, _)| has(p, "src")) {
        kernels.describe(folder(packages, file), file, text)?;
    }
    for (file, text) in files.iter().filter(|(p, _)| has(p, "tables") && !has(p, "tests")) {
        kernels.table(folder(packages, file), text);
    }
    let opencl =
        |p: &Path| p.extension().is_some_and(|e| ["cl", "k", "h"].iter().any(|of| e == *of));
    for (file, text) in files.iter().filter(|(p, _)| opencl(p) && has(p, "src")) {
        let shown = file.display();
        let functions = words::not_inlined(text);
        found.extend(functions.iter().map(|f| format!("{shown}: {f} is not INLINED")));
    }
    for (file, text) in sources() {
        let (of, shown) = (folder(packages, file), file.display());
        let name = &packages.iter().find(|p| p.folder == of).context("a crate")?.name;
        if !words::below(file, UNSAFE) && words::is_unsafe(text)? {
            found.push(format!("{name}: {shown}: unsafe"));
        }
        if words::below(file, &["gemv-cli/src", "gemv-lab/src"]) && words::prints(text)? {
            found.push(format!("{name}: {shown}: println: it panics where nobody reads"));
        }
        if EXAMPLES.iter().any(|of| file.starts_with(of)) {
            let lines = words::examples_of_core(text);
            found.extend(
                lines.iter().map(|k| format!("{shown}:{k}: an example names gemv_core, not gemv")),
            );
        }
        let test = !shipped.contains(file);
        if !BESIDE.contains(&name.as_str()) {
            let strangers = kernels.strangers(of, file, text, test)?;
            found.extend(strangers.iter().map(|k| format!("{name}: {shown}: kernel {k:?}")));
        }
    }
    let counts = Counts::of(files, &shipped);
    let lines = counts.sum(CORE).rust;
    if lines > CORE_LINES {
        found
            .push(format!("{}: too large: {lines} lines of code of {CORE_LINES}", CORE.join(", ")));
    }
    Ok((found, counts))
}

/// A circle's files, and what each imports of the others.
fn circle_text(tree: &source::Tree, circle: &BTreeSet<PathBuf>) -> String {
    let names = |files: BTreeSet<PathBuf>| {
        let names = files.iter().filter(|f| circle.contains(*f)).map(|f| f.display().to_string());
        names.collect::<Vec<_>>().join(", ")
    };
    let edges = circle
        .iter()
        .map(|f| format!("\n    {} imports {}", f.display(), names(circles::named_by(tree, f))));
    let of = circle.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(" ");
    format!("{of}{}", edges.collect::<String>())
}

/// The dependencies that are not on a floor below.
fn climbs(package: &Package) -> Vec<String> {
    let floor = |name: &str| FLOORS.iter().position(|f| f.contains(&name));
    let Some(own) = floor(&package.name) else {
        return match BESIDE.contains(&package.name.as_str()) {
            true => Vec::new(),
            false => vec!["stands on no floor".into()],
        };
    };
    let climbs = |name: &&String| {
        BESIDE.contains(&name.as_str()) || floor(name).is_some_and(|other| other <= own)
    };
    package.dependencies.iter().filter(climbs).map(|d| format!("climbs to {d}")).collect()
}

/// The dependencies beyond those that are allowed.
fn extra(package: &Package) -> Vec<String> {
    let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package.name) else {
        return Vec::new();
    };
    let allowed = |name: &String| allowed.split(' ').any(|one| one == name);
    let extra = package.dependencies.iter().filter(|d| !allowed(d));
    extra.map(|d| format!("depends on {d}, which is not allowed")).collect()
}

fn has(file: &Path, folder: &str) -> bool {
    file.components().any(|c| c.as_os_str() == folder)
}

/// The folder of the crate that a file belongs to.
fn folder<'a>(packages: &'a [Package], file: &Path) -> &'a Path {
    let folders = packages.iter().map(|p| p.folder.as_path()).filter(|f| file.starts_with(f));
    folders.max_by_key(|f| f.as_os_str().len()).unwrap_or(Path::new(""))
}

/// The workspace's crates.
fn packages(sh: &Shell, root: &Path) -> Result<Vec<Package>> {
    let json = cmd!(sh, "cargo metadata --locked --no-deps --format-version 1").quiet().read()?;
    let json: Value = serde_json::from_str(&json)?;
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let relative = |v: &Value| -> Result<PathBuf> {
        Ok(Path::new(&text(v)).strip_prefix(root).context("a path of the workspace")?.into())
    };
    let mut packages = Vec::new();
    for package in list(&json["packages"]) {
        let manifest = relative(&package["manifest_path"])?;
        let mut roots = Vec::new();
        for target in list(&package["targets"]) {
            let kinds = list(&target["kind"]);
            let built = ["lib", "rlib", "cdylib", "staticlib", "bin"];
            if kinds.iter().any(|k| k.as_str().is_some_and(|k| built.contains(&k))) {
                roots.push(relative(&target["src_path"])?);
            }
        }
        let needed = list(&package["dependencies"]).into_iter().filter(|d| d["kind"] != "dev");
        packages.push(Package {
            name: text(&package["name"]),
            folder: manifest.parent().context("a folder")?.into(),
            roots,
            dependencies: needed.map(|d| text(&d["name"])).collect(),
        });
    }
    if packages.is_empty() {
        bail!("cargo metadata lists no package");
    }
    Ok(packages)
}

/// Endings of the sources.
const TEXTS: [&str; 11] =
    [".rs", ".cu", ".cuh", ".cl", ".k", ".h", ".c", ".cpp", ".hpp", ".f90", ".py"];

/// The bytes of the files below a folder.
fn bytes(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let of = entry.metadata()?;
        sum += if of.is_dir() { bytes(&entry.path())? } else { of.len() };
    }
    Ok(sum)
}

/// Reads the sources, in every language, and the tables below a folder.
fn gather(root: &Path, folder: &Path, files: &mut Files) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !name.starts_with("target") {
                gather(root, &path, files)?;
            }
        } else if TEXTS.iter().any(|end| name.ends_with(end))
            || (name.ends_with(".txt") && has(&path, "tables"))
        {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("reading {}", path.display()))?;
            files.insert(path.strip_prefix(root)?.to_path_buf(), text);
        }
    }
    Ok(())
}
