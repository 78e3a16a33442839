//! What the compiler says of usual mistakes: one note that names the operands and the way out.

use anyhow::{Context, Result, ensure};

/// The crate's files. The one named `ndarray` stands for another version of it.
pub const FILES: [(&str, &str); 3] = [
    (
        "mistakes/Cargo.toml",
        r#"
[dependencies]
gemv = { path = "ROOT", default-features = false }
ndarray = "0.17"
older = { package = "ndarray", path = "../ndarray" }
"#,
    ),
    ("ndarray/Cargo.toml", "version = \"0.16.0\"\n"),
    (
        "ndarray/src/lib.rs",
        "pub struct ArrayBase<S, D>(pub S, pub D);\npub struct OwnedRepr<T>(pub T);\n",
    ),
];

/// Each mistake as an expression, and what its one note says.
const MISTAKES: &[(&str, &[&str])] = &[
    ("a::<f32>().gpu_dot(&x::<f64>())", &["OwnedRepr<f32>", "OwnedRepr<f64>", "widened()", "mapv"]),
    ("a::<f64>().gpu_dot(&x::<f32>())", &["OwnedRepr<f64>", "OwnedRepr<f32>", "mapv"]),
    ("a::<i32>().gpu_dot(&x::<i32>())", &["OwnedRepr<i32>", "mapv"]),
    (
        "Array4::<f32>::zeros([1; 4]).gpu_dot(&x::<f32>())",
        &["[usize; 4]", "[usize; 1]", "index_axis"],
    ),
    (
        "vec![vec![1.0f32]].gpu_dot(&x::<f32>())",
        &["Vec<Vec<f32>>", "Dim<[usize; 1]>", "from_shape_vec"],
    ),
    (
        "a::<f32>().gpu_dot(&vec![vec![1.0f32]])",
        &["Dim<[usize; 2]>", "Vec<Vec<f32>>", "from_shape_vec"],
    ),
    ("a::<f32>().gpu_dot(&older::<f32>())", &["[usize; 2]", "cargo tree -i ndarray", "0.17"]),
    ("older::<f32>().gpu_dot(&x::<f32>())", &["OwnedRepr<f32>", "cargo tree -i ndarray", "0.17"]),
    ("older::<f32>().to_device(&device())", &["OwnedRepr<f32>", "cargo tree -i ndarray", "0.17"]),
    ("ArrayD::<f32>::zeros(vec![2]).to_device(&device())", &["IxDynImpl", "into_dimensionality"]),
    ("a::<i64>().to_device(&device())", &["OwnedRepr<i64>", "mapv"]),
];

const HEAD: &str = r#"
use gemv::{GpuDot, ToDevice};
use ndarray::{Array1, Array2, Array4, ArrayD};
use older::{ArrayBase, OwnedRepr};
fn a<T: Default + Clone>() -> Array2<T> { Array2::default((2, 2)) }
fn x<T: Default + Clone>() -> Array1<T> { Array1::default(2) }
fn older<T: Default>() -> ArrayBase<OwnedRepr<T>, ()> { ArrayBase(OwnedRepr(T::default()), ()) }
fn device() -> gemv::Device { gemv::device("reference").unwrap() }
"#;

/// The program: a line for each mistake.
pub fn source() -> String {
    let line = |(k, (mistake, _)): (usize, &(&str, &[&str]))| {
        format!("pub fn mistake_{k}() {{ let _ = {mistake}; }}\n")
    };
    HEAD.to_owned() + &MISTAKES.iter().enumerate().map(line).collect::<String>()
}

/// Compares what the compiler said.
pub fn check(said: &str) -> Result<()> {
    let first = HEAD.lines().count() + 1;
    let errors: Vec<&str> =
        said.split("\nerror").filter(|error| error.contains("src/lib.rs:")).collect();
    ensure!(errors.len() == MISTAKES.len(), "{} mistakes, but:\n{said}", MISTAKES.len());
    for (k, (mistake, parts)) in MISTAKES.iter().enumerate() {
        let at = format!("src/lib.rs:{}:", first + k);
        let error = errors.iter().find(|error| error.contains(&at));
        let error = error.with_context(|| format!("nothing is said of {mistake}:\n{said}"))?;
        let mut notes = error.split(" = note: ").skip(1);
        let told = notes.any(|note| parts.iter().all(|part| note.contains(part)));
        ensure!(told, "{mistake}: no note says {parts:?}, but:\nerror{error}");
    }
    println!("{} mistakes, each with one note", MISTAKES.len());
    Ok(())
}
