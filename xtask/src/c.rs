//! The libraries for C: how they are installed, and what is run with them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use xshell::{Shell, cmd};

use crate::setup::{self, Tools};

/// The routines of libgemv_blas, by Fortran. The complex products of vectors have another name in C.
const ROUTINES: &str = "sgemv dgemv cgemv zgemv sger dger cgeru zgeru cgerc zgerc sdot ddot cdotu zdotu cdotc zdotc \
                        snrm2 dnrm2 scnrm2 dznrm2 saxpy daxpy caxpy zaxpy sscal dscal cscal zscal csscal zdscal \
                        isamax idamax icamax izamax";

/// Programs that the step runs, with their packages on Debian and Ubuntu.
const PROGRAMS: [(&str, &str); 7] = [
    ("c++", "g++"),
    ("gfortran", "gfortran"),
    ("cmake", "cmake"),
    ("make", "make"),
    ("nm", "binutils"),
    ("pkg-config", "pkg-config"),
    ("valgrind", "valgrind"),
];

/// The reference's testers of the BLAS, and the reference that they call for what is not ours.
const TESTERS: [(&str, &str); 2] = [("xblat2s", "libblas-test"), ("libblas.so.3", "libblas3")];

/// What is compiled and run against the installed libraries.
struct Place {
    /// Where they are installed.
    prefix: PathBuf,
    /// Where programs are built.
    work: PathBuf,
}

impl Place {
    fn lib(&self) -> PathBuf {
        self.prefix.join("lib")
    }

    fn blas(&self) -> PathBuf {
        self.lib().join("libgemv_blas.so.0")
    }

    /// Compiles a program, and says where it lies.
    fn program(&self, sh: &Shell, name: &str, compiler: &str, args: &[&str]) -> Result<PathBuf> {
        let (program, lib, include) =
            (self.work.join(name), self.lib(), self.prefix.join("include"));
        let rpath = format!("-Wl,-rpath,{}", lib.display());
        let place = ["-o", path(&program)?, "-L", path(&lib)?, "-I", path(&include)?, &rpath];
        let libraries = ["-lgemv", "-lgemv_blas", "-lm", "-lpthread"];
        cmd!(sh, "{compiler} {args...} {place...} {libraries...}").run()?;
        Ok(program)
    }

    /// The same of a text in C, without warnings; the compiler says as which language.
    fn strict(
        &self,
        sh: &Shell,
        name: &str,
        compiler: &str,
        flags: &[&str],
        source: &str,
    ) -> Result<PathBuf> {
        let language =
            if compiler == "c++" { ["-std=c++17", "-xc++"] } else { ["-std=c11", "-xc"] };
        let args = [&language[..], &STRICT, flags, &[source, "-xnone"]].concat();
        self.program(sh, name, compiler, &args)
    }
}

fn path(of: &Path) -> Result<&str> {
    of.to_str().context("a path in Unicode")
}

/// The step `c`.
pub fn step(sh: &Shell, tools: &Tools) -> Result<()> {
    setup::programs(sh, &PROGRAMS)?;
    let target = tools.target.parent().context("the target folder")?;
    // As the tests are built, so that nothing is compiled twice.
    cmd!(sh, "cargo build --locked --workspace --all-features --lib").run()?;
    let work = tools.target.join("c");
    sh.remove_path(&work)?;
    sh.create_dir(&work)?;
    let place = Place { prefix: work.join("prefix"), work };
    lay_out(sh, &target.join("debug"), &place.prefix, None)?;
    symbols(sh, &place)?;
    routines(sh, &place)?;
    for source in ["handles", "packed"] {
        handles(sh, &place, source)?;
    }
    let packed = place.work.join("packed");
    let pocl = cmd!(sh, "{packed} opencl:0 q8_0").env("OCL_ICD_VENDORS", &tools.pocl);
    pocl.run()?;
    let owners = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "gemv-c/tests/owners.cpp"];
    let owners = place.program(sh, "owners", "c++", &owners)?;
    cmd!(sh, "{owners}").run()?;
    let foreign = place.program(
        sh,
        "foreign",
        "cc",
        &["-std=c11", "-Wall", "-Wextra", "-Werror", "gemv-c/tests/foreign.c", "-ldl"],
    )?;
    cmd!(sh, "{foreign} opencl").env("OCL_ICD_VENDORS", &tools.pocl).run()?;
    examples(sh, &place)?;
    crate::archive::step(sh, tools)?;
    testers(sh, &place)?;
    let gemv = target.join("debug/gemv");
    cmd!(sh, "cargo build --locked --workspace --all-features --bin gemv").run()?;
    let python = packages(sh, tools, &["numpy"])?;
    let _env = [
        sh.push_env("PYTHONPATH", python),
        sh.push_env("LD_PRELOAD", place.blas()),
        sh.push_env("RAYON_NUM_THREADS", "2"),
    ];
    Ok(cmd!(sh, "python3 gemv-blas/tests/bits.py {gemv}").run()?)
}

/// Builds the libraries and installs them below a folder; `destdir` is put before it, as packagers do.
pub fn install(sh: &Shell, prefix: &Path, destdir: Option<&Path>) -> Result<()> {
    cmd!(sh, "cargo build --locked --profile packaged -p gemv-blas").run()?;
    cmd!(sh, "cargo build --locked --profile packaged -p gemv-c").run()?;
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => sh.current_dir().join(dir),
        None => sh.current_dir().join("target"),
    };
    lay_out(sh, &target.join("packaged"), &sh.current_dir().join(prefix), destdir)
}

/// Installs libraries that are built.
fn lay_out(sh: &Shell, built: &Path, prefix: &Path, destdir: Option<&Path>) -> Result<()> {
    let id = cmd!(sh, "cargo pkgid --locked -p gemv-c").quiet().read()?;
    let version = id.rsplit(['#', '@']).next().context("a version")?.to_owned();
    let mut parts = version.split('.');
    let (major, minor) =
        (parts.next().context("a major version")?, parts.next().context("a minor version")?);
    let root = match destdir {
        Some(destdir) => destdir.join(prefix.strip_prefix("/").unwrap_or(prefix)),
        None => prefix.to_path_buf(),
    };
    let lib = root.join("lib");
    sh.create_dir(&lib)?;
    for (file, name) in [("libgemv_blas.so", "libgemv_blas.so"), ("libgemv_c.so", "libgemv.so")] {
        let (whole, short) = (format!("{name}.{version}"), format!("{name}.{major}"));
        let from = built.join(file);
        // Not over the old file: a program may have it mapped.
        sh.remove_path(lib.join(&whole))?;
        std::fs::copy(&from, lib.join(&whole)).with_context(|| from.display().to_string())?;
        for (link, to) in [(&short, &whole), (&name.to_owned(), &short)] {
            sh.remove_path(lib.join(link))?;
            std::os::unix::fs::symlink(to, lib.join(link))?;
        }
    }
    for header in ["gemv.h", "gemv.hpp"] {
        sh.create_dir(root.join("include"))?;
        sh.copy_file(format!("gemv-c/include/{header}"), root.join("include").join(header))?;
    }
    for (file, folder) in [
        ("gemv.pc", "pkgconfig"),
        ("gemv_blas.pc", "pkgconfig"),
        ("gemvConfig.cmake", "cmake/gemv"),
        ("gemvConfigVersion.cmake", "cmake/gemv"),
    ] {
        let text = sh.read_file(format!("gemv-c/packaging/{file}.in"))?;
        let text = text.replace("@PREFIX@", path(prefix)?).replace("@VERSION@", &version);
        let text = text.replace("@MAJOR@", major).replace("@MINOR@", minor);
        sh.write_file(lib.join(folder).join(file), text)?;
    }
    println!("installed in {}", root.display());
    Ok(())
}

/// What a library exports.
fn exported(sh: &Shell, library: &Path) -> Result<BTreeSet<String>> {
    let text = cmd!(sh, "nm -D --defined-only {library}").quiet().read()?;
    Ok(text.lines().filter_map(|line| Some(line.split_whitespace().nth(2)?.to_owned())).collect())
}

/// The libraries export what they should, and nothing else.
fn symbols(sh: &Shell, place: &Place) -> Result<()> {
    let mut blas = BTreeSet::new();
    for fortran in ROUTINES.split(' ') {
        let is_complex_dot = fortran.starts_with(['c', 'z']) && fortran[1..].starts_with("dot");
        let c = if is_complex_dot { format!("{fortran}_sub") } else { fortran.to_owned() };
        for prefix in ["", "scipy_"] {
            blas.extend(["_", "_64_"].map(|end| format!("{prefix}{fortran}{end}")));
            blas.extend(["", "64_"].map(|end| format!("{prefix}cblas_{c}{end}")));
        }
        blas.insert(format!("cblas_{c}_64"));
    }
    let header = sh.read_file("gemv-c/include/gemv.h")?;
    let declared = |line: &str| {
        let before = line.split_once('(')?.0;
        let name = before.rsplit([' ', '*']).next()?;
        let declares = name.starts_with("gemv_") && !line.starts_with([' ', '/']);
        (declares && !line.starts_with("static")).then(|| name.to_owned())
    };
    let handles: BTreeSet<String> = header.lines().filter_map(declared).collect();
    for (library, expected) in [("libgemv_blas.so", blas), ("libgemv.so", handles)] {
        let file = place.lib().join(library);
        let found = exported(sh, &file)?;
        let missing: Vec<_> = expected.difference(&found).collect();
        let more: Vec<_> = found.difference(&expected).collect();
        ensure!(
            missing.is_empty() && more.is_empty(),
            "{library} does not export {missing:?}, and exports {more:?}"
        );
        println!("{library} exports {} symbols", found.len());
        let text = cmd!(sh, "readelf -d {file}").quiet().read()?;
        ensure!(text.contains(&format!("[{library}.0]")), "{library} has another SONAME");
    }
    Ok(())
}

const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-O1"];
const SANITIZED: [&str; 3] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"];

/// Every spelling of every routine; see the program.
fn routines(sh: &Shell, place: &Place) -> Result<()> {
    let source = "gemv-blas/tests/blas.c";
    let build = |name: &str, compiler: &str, flags: &[&str]| {
        place.strict(sh, name, compiler, flags, source)
    };
    let plain = build("blas", "cc", &[])?;
    cmd!(sh, "{plain}").run()?;
    for isa in ["avx2", "plain"] {
        if isa == "plain" || cfg!(target_arch = "x86_64") {
            cmd!(sh, "{plain} short").env("GEMV_CPU_ISA", isa).run()?;
        }
    }
    // A setting that cannot be met ends the program with a sentence.
    let refused = cmd!(sh, "{plain}").env("GEMV_CPU_ISA", "abacus").ignore_status().quiet();
    let refused = refused.output()?;
    let said = String::from_utf8_lossy(&refused.stderr);
    let one = said.starts_with("libgemv_blas: no such device") && said.lines().count() == 1;
    ensure!(!refused.status.success() && one, "with an unknown instruction set it says: {said}");
    let of_cpp = build("blas-cpp", "c++", &[])?;
    cmd!(sh, "{of_cpp} short").run()?;
    let sanitized = build("blas-sanitized", "cc", &SANITIZED)?;
    cmd!(sh, "{sanitized} short").run()?;
    cmd!(sh, "valgrind -q --error-exitcode=9 {plain} short").run()?;
    let without = build("blas-without-handlers", "cc", &["-DWITHOUT_HANDLERS", "-Wno-unused"])?;
    let said = cmd!(sh, "{without}").quiet().output()?.stderr;
    let said = String::from_utf8_lossy(&said);
    let expected = "Parameter 4 to routine cblas_sgemv was incorrect\n ** On entry to SGEMV  parameter number  2 had \
                    an illegal value\n";
    ensure!(said == expected, "without a handler of errors it says: {said}");
    Ok(())
}

/// The functions of gemv.h; see the programs.
fn handles(sh: &Shell, place: &Place, name: &str) -> Result<()> {
    let source = &format!("gemv-c/tests/{name}.c");
    // Drivers of OpenCL are not under test here, and not free of what valgrind reports.
    let vendors = place.work.join("no-vendors");
    sh.create_dir(&vendors)?;
    let _vendors = sh.push_env("OCL_ICD_VENDORS", vendors);
    let build = |name: &str, compiler: &str, flags: &[&str]| {
        place.strict(sh, name, compiler, flags, source)
    };
    let plain = build(name, "cc", &[])?;
    cmd!(sh, "{plain} cpu").run()?;
    let of_cpp = build(&format!("{name}-cpp"), "c++", &[])?;
    cmd!(sh, "{of_cpp} reference").run()?;
    let sanitized = build(&format!("{name}-sanitized"), "cc", &SANITIZED)?;
    // A size that no allocator has is one of the errors.
    let _options = sh.push_env("ASAN_OPTIONS", "allocator_may_return_null=1");
    cmd!(sh, "{sanitized} cpu").run()?;
    Ok(cmd!(sh, "valgrind -q --error-exitcode=9 {plain} cpu").run()?)
}

/// The programs of the documentation, by pkg-config and by CMake.
fn examples(sh: &Shell, place: &Place) -> Result<()> {
    let _config = sh.push_env("PKG_CONFIG_PATH", place.lib().join("pkgconfig"));
    let _library = sh.push_env("LD_LIBRARY_PATH", place.lib());
    let said = |name: &str, compiler: &str, flags: &[&str], package: &str| -> Result<String> {
        let (source, program) = (format!("gemv-c/examples/{name}"), place.work.join(name));
        let config = cmd!(sh, "pkg-config --cflags --libs {package}").quiet().read()?;
        let config: Vec<&str> = config.split_whitespace().collect();
        cmd!(sh, "{compiler} {flags...} {source} -o {program} {config...}").run()?;
        Ok(cmd!(sh, "{program}").read()?)
    };
    let expect = |name: &str, found: String, expected: &str| {
        ensure!(found == expected, "{name} says:\n{found}");
        println!("{found}");
        Ok(())
    };
    let c = said("quickstart.c", "cc", &["-std=c11", "-Wall", "-Werror"], "gemv")?;
    expect("quickstart.c", c, "A x = -2 -2\non cpu: A' A x = -10 -14 -18")?;
    let packed = said("packed.c", "cc", &["-std=c11", "-Wall", "-Werror"], "gemv")?;
    expect("packed.c", packed, "q4_0, 4 x 64: 144 bytes\n-16 16\n-32 32\n-48 48\n-64 64")?;
    let shapes = "shapes do not fit: the matrix is 1 × 4, so x must have 4 entries, but it has 2; and y must have 1 entries, but it has 2";
    let cpp = format!("on cpu: 0.525731 0.850651\n{shapes}");
    for standard in ["-std=c++17", "-std=c++20"] {
        let found =
            said("quickstart.cpp", "c++", &[standard, "-Wall", "-Wextra", "-Werror"], "gemv")?;
        expect("quickstart.cpp", found, &cpp)?;
        let packed = said("packed.cpp", "c++", &[standard, "-Wall", "-Wextra", "-Werror"], "gemv")?;
        expect("packed.cpp", packed, "q4_0: -16 -64\ntwice row 3: -128")?;
    }
    let fortran = said("quickstart.f90", "gfortran", &["-Wall"], "gemv_blas")?;
    expect("quickstart.f90", fortran, "A x =  -2.0  -2.0\n|y| =  2.8284\nu* u =   5.0   0.0")?;
    let (build, lib) = (place.work.join("cmake"), place.prefix.clone());
    cmd!(sh, "cmake -S gemv-c/examples -B {build} -DCMAKE_PREFIX_PATH={lib}")
        .quiet()
        .ignore_stdout()
        .run()?;
    cmd!(sh, "cmake --build {build}").quiet().ignore_stdout().run()?;
    let program = build.join("quickstart");
    expect("quickstart.cpp by CMake", cmd!(sh, "{program}").read()?, &cpp)
}

/// The folder of the system's libraries.
fn system_folder(sh: &Shell) -> Result<PathBuf> {
    let triple = cmd!(sh, "cc -print-multiarch").quiet().read()?;
    Ok(Path::new("/usr/lib").join(triple.trim()))
}

/// The reference's testers of levels 1 and 2, in Fortran and in C, with our symbols in front of the reference's library.
fn testers(sh: &Shell, place: &Place) -> Result<()> {
    let folder = system_folder(sh)?.join("blas");
    let missing = TESTERS.iter().filter(|(file, _)| !folder.join(file).exists());
    setup::install(sh, &missing.map(|(_, package)| *package).collect::<Vec<_>>())?;
    let work = place.work.join("testers");
    sh.create_dir(&work)?;
    let mut passed = [0; 2];
    for letter in ["s", "d", "c", "z"] {
        for (program, data, report) in [
            ("xblat1?", "", ""),
            ("xblat2?", "?blat2.in", "?blat2.out"),
            ("x?cblat1", "", ""),
            ("x?cblat2", "?in2", ""),
        ] {
            let [program, data, report] =
                [program, data, report].map(|name| name.replace('?', letter));
            let input = match data.is_empty() {
                false => std::fs::read(folder.join(data))?,
                true => Vec::new(),
            };
            let program = folder.join(program);
            let run = cmd!(sh, "env -C {work} {program}").quiet().stdin(input);
            let run = run.env("LD_PRELOAD", place.blas()).env("LD_LIBRARY_PATH", &folder);
            let output = run.ignore_status().output()?;
            let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
            if !report.is_empty() {
                text += &sh.read_file(work.join(report))?;
            }
            // Routines that are not ours are run as well, and pass.
            let fails = |line: &&str| {
                ["FAIL", "FATAL", "*****", "ABANDONED"].iter().any(|word| line.contains(word))
            };
            if let Some(line) = text.lines().find(fails) {
                bail!("{}: {line}\n{text}", program.display());
            }
            let passes = text.matches("PASS").count();
            ensure!(output.status.success() && passes > 0, "{}: {text}", program.display());
            let level = usize::from(program.to_string_lossy().contains("blat2"));
            passed[level] += passes;
        }
    }
    println!("the reference's testers: {} passes of level 1, {} of level 2", passed[0], passed[1]);
    Ok(())
}

/// A folder with these packages of Python.
fn packages(sh: &Shell, tools: &Tools, names: &[&str]) -> Result<PathBuf> {
    let folder = tools.target.join("python");
    let missing: Vec<&&str> = names.iter().filter(|name| !folder.join(name).is_dir()).collect();
    if !missing.is_empty() {
        let options = ["-q", "--only-binary=:all:", "--upgrade", "--target"];
        cmd!(sh, "python3 -m pip install {options...} {folder} {missing...}").run()?;
    }
    Ok(folder)
}

/// The suites, by the name that runs one alone.
pub const SUITES: [&str; 6] = ["blas", "lapack", "numpy", "scipy", "archive", "python"];

/// The suites of others with our symbols in front: no test fails that passes without. It takes long.
pub fn suites(sh: &Shell, only: &[String]) -> Result<()> {
    if let Some(unknown) = only.iter().find(|name| !SUITES.contains(&name.as_str())) {
        bail!("there is no suite {unknown:?}: there are {}", SUITES.join(", "));
    }
    let tools = setup::all(sh)?;
    setup::programs(sh, &PROGRAMS)?;
    let work = tools.target.join("suites");
    sh.create_dir(&work)?;
    let place = Place { prefix: work.join("prefix"), work };
    cmd!(sh, "cargo build --locked --profile packaged -p gemv-blas").run()?;
    let target = tools.target.parent().context("the target folder")?;
    sh.create_dir(place.lib())?;
    sh.copy_file(target.join("packaged/libgemv_blas.so"), place.blas())?;
    for suite in SUITES.into_iter().filter(|name| only.is_empty() || only.iter().any(|o| o == name))
    {
        println!("\n=== {suite}");
        match suite {
            "blas" => testers(sh, &place)?,
            "lapack" => lapack(sh, &place)?,
            "numpy" => pytest(sh, &tools, &place, "NumPy", &NUMPY)?,
            "scipy" => pytest(sh, &tools, &place, "SciPy", &SCIPY)?,
            "python" => crate::python::suites(sh)?,
            _ => crate::archive::suite(sh, &tools)?,
        }
    }
    Ok(())
}

/// The tests of NumPy that call the BLAS, or build on it.
const NUMPY: [&str; 5] = [
    "numpy.linalg",
    "numpy._core.tests.test_multiarray",
    "numpy._core.tests.test_numeric",
    "numpy._core.tests.test_einsum",
    "numpy.matrixlib",
];

/// The same of SciPy.
const SCIPY: [&str; 3] =
    ["scipy.linalg", "scipy.sparse.linalg", "scipy.optimize.tests.test_lsq_linear"];

/// Runs tests of a package without our symbols and with them.
fn pytest(sh: &Shell, tools: &Tools, place: &Place, name: &str, modules: &[&str]) -> Result<()> {
    let python = packages(sh, tools, &["numpy", "scipy", "pytest", "hypothesis"])?;
    let run = |preload: Option<PathBuf>| -> Result<(BTreeSet<String>, usize)> {
        let args = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE", "--tb=no", "--pyargs"];
        let mut command = Command::new("python3");
        command.args(args).args(modules).current_dir(&place.work).env("PYTHONPATH", &python);
        if let Some(library) = preload {
            command.env("LD_PRELOAD", library);
        }
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let failed = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))?;
            Some(rest.split(" - ").next().unwrap_or(rest).to_owned())
        });
        let failed: BTreeSet<String> = failed.collect();
        let last = text.lines().last().unwrap_or_default();
        let words: Vec<&str> = last.split_whitespace().collect();
        let at = words.iter().position(|word| word.starts_with("passed"));
        let passed = at.and_then(|at| words[at.checked_sub(1)?].parse().ok());
        let passed = passed.with_context(|| {
            format!("{name}: {last}\n{}", String::from_utf8_lossy(&output.stderr))
        })?;
        Ok((failed, passed))
    };
    let (before, without) = run(None)?;
    let (after, with) = run(Some(place.blas()))?;
    let new: Vec<_> = after.difference(&before).collect();
    println!(
        "{name}: {without} tests pass and {} fail without; {with} and {} with",
        before.len(),
        after.len()
    );
    ensure!(new.is_empty(), "tests of {name} fail with libgemv_blas that pass without: {new:#?}");
    Ok(())
}

/// The problems of LAPACK's tests of eigenvalues; `?` is the letter of the type.
const EIGENVALUES: [&str; 15] = [
    "nep", "sep", "se2", "svd", "?ec", "?ed", "?gg", "?gd", "?sb", "?sg", "?bb", "glm", "gqr",
    "gsv", "lse",
];

/// LAPACK's own test programs: linear equations and eigenvalues.
fn lapack(sh: &Shell, place: &Place) -> Result<()> {
    let folder = system_folder(sh)?.join("lapack");
    if !folder.join("xlintstd").exists() || !folder.join("liblapack.so.3").exists() {
        setup::install(sh, &["liblapack-test", "liblapack3"])?;
    }
    let blas = system_folder(sh)?.join("blas");
    let mut sum = [0; 2];
    for letter in ["s", "d", "c", "z"] {
        let named = |program: &str, data: &str| {
            (format!("{program}{letter}"), data.replace('?', letter) + ".in")
        };
        let eigen = EIGENVALUES.iter().map(|data| named("xeigtst", data));
        let linear = [named("xlintst", "?test"), named("xlintstrf", "?test_rfp")];
        for (program, data) in linear.into_iter().chain(eigen) {
            let input = std::fs::read(folder.join(&data)).with_context(|| data.clone())?;
            let (program, work) = (folder.join(program), &place.work);
            let run = |preload: bool| -> Result<(usize, usize, usize)> {
                let run = cmd!(sh, "env -C {work} {program}").quiet().stdin(&input);
                let libraries = format!("{}:{}", blas.display(), folder.display());
                let mut run = run.env("LD_LIBRARY_PATH", libraries).ignore_status().ignore_stderr();
                if preload {
                    run = run.env("LD_PRELOAD", place.blas());
                }
                let text = String::from_utf8_lossy(&run.output()?.stdout).into_owned();
                let number = |line: &str, after: &str| -> Option<usize> {
                    line.split_once(after)?.1.split_whitespace().next()?.parse().ok()
                };
                // "All tests for DGE routines passed the threshold ( 3653 tests run)", or "DGE: 3 out of 3653 tests
                // failed to pass the threshold".
                let ran = text.lines().filter_map(|line| number(line, "threshold ("));
                let of = text.lines().filter_map(|line| number(line, "out of"));
                let failed =
                    text.lines().filter(|line| line.contains("out of")).filter_map(|line| {
                        let before = line.split_once("out of")?.0;
                        before.split_whitespace().last()?.parse::<usize>().ok()
                    });
                let errors = text
                    .lines()
                    .filter(|line| line.contains("*** Error") || line.contains("illegal value"));
                let errors = errors.count();
                Ok((ran.sum::<usize>() + of.sum::<usize>(), failed.sum(), errors))
            };
            let (before, after) = (run(false)?, run(true)?);
            println!(
                "{} {data}: {} tests, {} fail; with libgemv_blas {} tests, {} fail",
                program.file_name().unwrap_or_default().to_string_lossy(),
                before.0,
                before.1,
                after.0,
                after.1
            );
            sum = [sum[0] + after.0, sum[1] + after.1];
            ensure!(before.0 > 0 && after.0 == before.0, "{data}: tests were not run");
            ensure!(
                after.1 <= before.1 && after.2 <= before.2,
                "{data}: more tests of LAPACK fail with libgemv_blas"
            );
        }
    }
    println!("LAPACK: {} tests with libgemv_blas, {} fail", sum[0], sum[1]);
    Ok(())
}
