//! The leading principal components of 1,797 handwritten digits, by products with a matrix and
//! with its transpose.
//!
//! ```text
//! cargo run --release --bin quickstart -- [--device cuda:0] [--picture FILE.png]
//! ```
#![deny(unsafe_code)] // but for what ndarray's s! makes

mod picture;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use gemv::{Device, GpuDot};
use gemv_examples::{digits, hash, output};
use ndarray::{Array1, Array2, Axis, s};
use picture::Ink;

/// Finds the leading principal components of handwritten digits.
#[derive(Parser)]
struct Args {
    /// Where: cpu, opencl:0, cuda:0, reference; by default the CPU, or what GEMV_BACKEND names.
    #[arg(long)]
    device: Option<String>,
    /// Where the picture goes; by default target/quickstart.png.
    #[arg(long)]
    picture: Option<PathBuf>,
}

/// How many components to find.
const COMPONENTS: usize = 8;

/// What the picture says above each line.
const CAPTIONS: [&str; 3] = [
    "the mean digit plus two standard deviations of each component",
    "components 1 to 8: red adds ink, blue takes it away",
    "the mean digit less two standard deviations of each component",
];

fn main() -> ExitCode {
    gemv_examples::exit(env!("CARGO_BIN_NAME"), run(Args::parse()))
}

fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let device = gemv_examples::device(args.device.as_deref())?;
    let (images, mean, total) = centred()?;
    println!("{} images of {} pixels", images.nrows(), images.ncols());

    let start = Instant::now();
    let pca = principal_components(&device, &images, COMPONENTS)?;
    let time = start.elapsed();

    println!("component  variance  share");
    for (k, variance) in pca.variance.iter().enumerate() {
        println!("{:>9}  {variance:>8.4}  {:>4.1} %", k + 1, 100.0 * variance / total);
    }
    let info = device.info();
    let (products, seconds) = (pca.products, time.as_secs_f64());
    println!("{products} products on {} ({}) in {seconds:.3} s", info.id, info.name);

    println!("hash of the bits   {:016x}", hash(&pca.components));

    let picture = match args.picture {
        Some(path) => path,
        None => output("quickstart.png")?,
    };
    // Two standard deviations from the mean image along each component, up and down.
    let deviations = Array1::from_iter(pca.variance.iter().map(|v| 2.0 * v.sqrt()));
    let steps = &pca.components * &deviations.insert_axis(Axis(1));
    let lines = [
        (CAPTIONS[0], Ink::Grey(digits::BLACK), &*(&mean + &steps)),
        (CAPTIONS[1], Ink::RedBlue, &*pca.components),
        (CAPTIONS[2], Ink::Grey(digits::BLACK), &*(&mean - &steps)),
    ];
    picture::write(&picture, &lines, digits::SIDE)?;
    println!("the components, and the mean image moved along them: {}", picture.display());
    Ok(())
}

/// The images less their mean, the mean, and the sum of the variances of all pixels.
type Centred = (Array2<f64>, Array1<f64>, f64);

fn centred() -> Result<Centred, Box<dyn Error>> {
    let mut images = digits::read()?;
    let mean = images.mean_axis(Axis(0)).ok_or("no images")?;
    images -= &mean;
    let total = images.iter().map(|v| v * v).sum::<f64>() / (images.nrows() - 1) as f64;
    Ok((images, mean, total))
}

struct Pca {
    /// One component a row, each of length 1, the strongest first.
    components: Array2<f64>,
    /// The variance of the data along each.
    variance: Vec<f64>,
    /// How many matrix-vector products it took.
    products: usize,
}

/// Finds the directions of greatest variance in the rows of `a` (whose columns have mean 0) by
/// power iteration: v <- At (A v) turns v towards the strongest direction that is left when those
/// already found are taken out of it.
fn principal_components(
    device: &Device,
    a: &Array2<f64>,
    count: usize,
) -> Result<Pca, Box<dyn Error>> {
    // Uploaded once; on the CPU it stays in host memory. The transpose shares that memory.
    let resident = device.matrix(a)?;
    let transposed = resident.t();
    let mut pca =
        Pca { components: Array2::zeros((count, a.ncols())), variance: Vec::new(), products: 0 };
    for k in 0..count {
        let found = pca.components.slice(s![..k, ..]);
        let mut v = without(a.row(k).to_owned(), &found)?;
        v /= v.dot(&v).sqrt();
        loop {
            let scores = resident.try_gpu_dot(&v)?;
            let strength = scores.try_gpu_dot(&scores)?;
            let mut next = without(transposed.try_gpu_dot(&scores)?.download()?, &found)?;
            pca.products += 4;
            next /= next.dot(&next).sqrt();
            let turned = (&next - &v).mapv(|d| d * d).sum().sqrt();
            v = next;
            // The variance errs by the square of what the direction errs by.
            if turned < 1e-9 {
                pca.variance.push(strength / (a.nrows() - 1) as f64);
                break;
            }
            if pca.products > 4 * 10_000 * count {
                return Err(format!("component {} does not settle", k + 1).into());
            }
        }
        pca.components.row_mut(k).assign(&v);
    }
    Ok(pca)
}

/// `v` less its parts along the rows of `found`, which are orthonormal.
fn without(v: Array1<f64>, found: &ndarray::ArrayView2<'_, f64>) -> gemv::Result<Array1<f64>> {
    let parts = found.try_gpu_dot(&v)?;
    Ok(v - parts.try_gpu_dot(found)?)
}

#[cfg(test)]
mod tests {
    use gemv::Engine;

    use super::*;

    /// `PCA(8, svd_solver="full").fit(load_digits().data)` of scikit-learn 1.9.1:
    /// `explained_variance_`, and the sum of all 64.
    const SKLEARN: [f64; COMPONENTS] = [
        179.00693009797206,
        163.7177468816774,
        141.78843909228425,
        101.1003752028481,
        69.51316559098744,
        59.10852488629974,
        51.8845391077953,
        44.015106669095424,
    ];
    const SKLEARN_TOTAL: f64 = 1202.147712160703;

    fn close(mine: f64, theirs: f64) {
        assert!((mine - theirs).abs() <= 1e-6 * theirs.abs(), "{mine} is not {theirs}");
    }

    #[test]
    fn captions_fit_above_eight_tiles() {
        assert!(CAPTIONS.iter().all(|text| text.is_ascii() && picture::fits(text, COMPONENTS)));
    }

    #[test]
    fn variances_are_those_of_scikit_learn() {
        let (images, _, total) = centred().unwrap();
        assert_eq!(images.dim(), (1797, 64));
        close(total, SKLEARN_TOTAL);
        let device = Engine::global().default_device().unwrap();
        let pca = principal_components(&device, &images, COMPONENTS).unwrap();
        assert_eq!(pca.variance.len(), SKLEARN.len());
        for (&mine, theirs) in pca.variance.iter().zip(SKLEARN) {
            close(mine, theirs);
        }
        let gram = pca.components.dot(&pca.components.t());
        for ((i, j), &v) in gram.indexed_iter() {
            let wanted = if i == j { 1.0 } else { 0.0 };
            assert!((v - wanted).abs() < 1e-9, "components {i} and {j}: {v}");
        }
    }
}
