//! Small crates as a newcomer writes them, built against this tree as a release: what links the backends, what is said
//! where nothing does, and the size of the smallest program.

use std::path::Path;

use anyhow::{Result, ensure};
use xshell::{Shell, cmd};

use crate::mistakes;

/// What each member depends on, beside ndarray.
const DEPENDENCIES: [(&str, &str); 6] = [
    ("library", r#"gemv = { path = "ROOT", default-features = false }"#),
    ("application", CPU_AND_LIBRARY),
    ("elements", r#"gemv = { path = "ROOT", default-features = false, features = ["cpu"] }"#),
    ("driverless", CUDA_AND_LIBRARY),
    ("nothing", r#"library = { path = "../library" }"#),
    ("smallest", r#"gemv = { path = "ROOT" }"#),
];

const CPU_AND_LIBRARY: &str = r#"
gemv = { path = "ROOT", default-features = false, features = ["cpu"] }
library = { path = "../library" }
"#;
const CUDA_AND_LIBRARY: &str = r#"
gemv = { path = "ROOT", default-features = false, features = ["cuda"] }
library = { path = "../library" }
"#;

/// The members' sources: a library with a generic bound, an application that never
/// names gemv but chooses its backend, one whose elements need a feature that it lacks, one that
/// chooses a GPU whose driver may not be there, one that chooses none, and the example of the smallest program.
const FILES: [(&str, &str); 6] = [
    (
        "library/src/lib.rs",
        r#"
use gemv::GpuDot;
use ndarray::Array1;

/// A (A x).
pub fn twice<M>(a: &M, x: &Array1<f32>) -> Array1<f32>
where
    M: GpuDot<Array1<f32>, Output = Array1<f32>>,
{
    a.gpu_dot(&a.gpu_dot(x))
}

pub fn device() -> String {
    gemv::Engine::global().default_device().unwrap().info().id.clone()
}
"#,
    ),
    (
        "application/src/main.rs",
        r#"
use gemv::GpuDot;
use ndarray::{Array1, Array2};

fn main() {
    let a = ndarray::array![[0.0, 1.0], [2.0, 0.0]];
    let y = library::twice(&a, &ndarray::array![1.0, 3.0]);
    // What the optimiser of a release makes of the kernels has the bits of the reference.
    let entry = |k: usize| (k * 7919 % 10_007) as f32 / 1e3 - 5.0;
    let a = Array2::from_shape_fn((301, 1200), |(i, j)| entry(i * 1200 + j));
    let x = Array1::from_shape_fn(1200, |j| entry(j * j));
    let reference = gemv::device("reference").unwrap();
    let by_columns = a.t().as_standard_layout().into_owned().reversed_axes();
    for a in [&a, &by_columns] {
        let want = reference.try_gpu_dot(a, &x).unwrap();
        let got = a.gpu_dot(&x);
        assert!(got.iter().zip(&want).all(|(got, want)| got.to_bits() == want.to_bits()));
    }
    println!("{y} on {}", library::device());
}
"#,
    ),
    (
        "elements/src/main.rs",
        r#"
use gemv::half::{bf16, f16};
use gemv::num_complex::Complex;
use gemv::{Accumulator, Element, GpuDot, ToDevice};
use ndarray::Array2;

/// The product of ones, on the host and where the matrix is resident, of one vector and of two.
fn say<T: Element>() {
    let one = T::narrow(T::Acc::ONE);
    let (a, x) = (Array2::from_elem((2, 300), one), Array2::from_elem((300, 2), one));
    let resident = a.to_device(&gemv::device("cpu").unwrap()).unwrap();
    match a.try_gpu_dot(&x.column(0)) {
        Ok(y) => println!("{:?}", y[0]),
        Err(why) => println!("{why}"),
    }
    let same = a.try_gpu_dot(&x).is_ok() && resident.try_gpu_dot(&x).is_ok();
    assert_eq!(same, a.try_gpu_dot(&x.column(0)).is_ok());
    assert_eq!(same, resident.try_gpu_dot(&x.column(0)).is_ok());
}

fn main() {
    println!("{}", gemv::device("cpu").unwrap().info());
    say::<f32>();
    say::<f64>();
    say::<f16>();
    say::<bf16>();
    say::<Complex<f32>>();
    say::<Complex<f64>>();
}
"#,
    ),
    (
        "driverless/src/main.rs",
        r#"
use gemv as _;

fn main() {
    let a = ndarray::array![[0.0, 1.0], [2.0, 0.0]];
    let y = library::twice(&a, &ndarray::array![1.0, 3.0]);
    println!("{y} on {}", library::device());
}
"#,
    ),
    (
        "nothing/src/main.rs",
        r#"
fn main() {
    let a = ndarray::array![[0.0, 1.0], [2.0, 0.0]];
    println!("{}", library::twice(&a, &ndarray::array![1.0, 3.0]));
}
"#,
    ),
    ("smallest/src/main.rs", include_str!("../../examples/src/bin/hello.rs")),
];

/// The most bytes of the smallest program, stripped, with default features.
const MOST: u64 = 2_800_000;

/// Builds the crates and checks what they print.
pub fn run(sh: &Shell, folder: &Path) -> Result<()> {
    let root = sh.current_dir();
    let manifests = DEPENDENCIES.map(|(name, dependencies)| {
        let text = format!("\n[dependencies]\nndarray = \"0.17\"\n{dependencies}\n");
        (format!("{name}/Cargo.toml"), text)
    });
    let written = FILES.into_iter().chain(mistakes::FILES);
    let written = written.map(|(path, text)| (path.to_owned(), text.to_owned()));
    for (path, text) in manifests.into_iter().chain(written) {
        let name = path.split('/').next().unwrap_or_default();
        let text = text.replace("ROOT", &root.display().to_string());
        let head = format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n");
        let head = if path.ends_with("Cargo.toml") { head } else { String::new() };
        sh.write_file(folder.join(path), head + &text)?;
    }
    sh.write_file(folder.join("mistakes/src/lib.rs"), mistakes::source())?;
    // The workspace's versions. Their features are other ones, so nothing that the other steps built can be used.
    // What is built is a release, as users have it, but for the backend of a GPU: it is the linking and what is said
    // that is tested there.
    let members = "[workspace]\nresolver = \"3\"\nmembers = [\"library\", \"application\", \
                   \"elements\", \"driverless\", \"nothing\", \"smallest\", \"mistakes\", \"ndarray\"]\n";
    let gpu = ["gemv-cuda", "gemv-gpu", "cudarc", "lzma-rust2", "rustix", "sha2"];
    let gpu = gpu.map(|name| format!("{name}.opt-level = 0\n")).concat();
    let profile = format!("[profile.release.package]\n{gpu}");
    sh.write_file(folder.join("Cargo.toml"), format!("{members}\n{profile}"))?;
    sh.copy_file("Cargo.lock", folder.join("Cargo.lock"))?;
    let _folder = sh.push_dir(folder);
    // No other step compiles these sets of features.
    let _flags = sh.push_env("RUSTFLAGS", "-D warnings");
    let built = &folder.join("target");
    let run = |name: &str, backend: Option<&str>| -> Result<(bool, String)> {
        let strip = ["--", "-C", "strip=symbols"];
        cmd!(sh, "cargo rustc -q --release -p {name} --target-dir {built} {strip...}").run()?;
        let program = built.join("release").join(name);
        let cmd = cmd!(sh, "{program}").env_remove("GEMV_BACKEND").env("RUST_BACKTRACE", "0");
        let cmd = cmd.ignore_status();
        let out = match backend {
            Some(name) => cmd.env("GEMV_BACKEND", name).output()?,
            None => cmd.output()?,
        };
        let text = [out.stdout, out.stderr].concat();
        Ok((out.status.success(), String::from_utf8_lossy(&text).into_owned()))
    };
    let (good, text) = run("application", None)?;
    ensure!(good && text.trim() == "[2, 6] on cpu", "the application says: {text}");
    let (good, text) = run("smallest", None)?;
    ensure!(good && text == "[-2, -2]\n", "the smallest program says: {text}");
    let smallest = format!("smallest{}", std::env::consts::EXE_SUFFIX);
    let bytes = std::fs::metadata(built.join("release").join(smallest))?.len();
    println!("the smallest program has {bytes} bytes");
    ensure!(bytes <= MOST, "{MOST} are the most");
    // Elements whose kernels are not compiled: a sentence, and no other way to compute them.
    let (good, text) = run("elements", None)?;
    let lacks = |dtype: &str, feature: &str| {
        let why = format!("this program was built without the feature {feature:?} of gemv");
        format!("cpu cannot compute {dtype}: {why}\n")
    };
    let halves = lacks("f16", "half") + &lacks("bf16", "half");
    let pairs = lacks("c32", "complex") + &lacks("c64", "complex");
    let (device, said) = text.split_once('\n').unwrap_or_default();
    ensure!(
        good && device.ends_with(" without features half and complex")
            && said == format!("300.0\n300.0\n{halves}{pairs}"),
        "without the features of its elements: {text}"
    );
    // A GPU's backend alone: the GPU computes, or one sentence says what is missing and what to write.
    let (good, text) = run("driverless", None)?;
    let missing = "no cuda (";
    let says = |part: &str| text.lines().any(|l| l.contains("gpu_dot: ") && l.contains(part));
    ensure!(
        if good { text.trim() == "[2, 6] on cuda:0" } else { says(missing) && says("\"cpu\"") },
        "with cuda alone: {text}"
    );
    let (good, text) = run("nothing", None)?;
    ensure!(!good && text.contains("features = [\"cpu\"]"), "without a backend: {text}");
    let said = text.lines().filter(|l| l.contains("gpu_dot")).count();
    ensure!(said == 1, "not one sentence says what is missing: {text}");
    let (good, text) = run("nothing", Some("reference"))?;
    ensure!(good && text.trim() == "[2, 6]", "the reference, by name, says: {text}");
    let wrong = cmd!(sh, "cargo rustc -q --release -p mistakes --target-dir {built}");
    let said = wrong.ignore_status().env("CARGO_TERM_COLOR", "never").output()?;
    mistakes::check(&String::from_utf8_lossy(&said.stderr))
}
