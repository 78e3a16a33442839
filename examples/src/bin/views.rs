//! Times of products of views: rows with steps, reversed columns, every second row; beside ndarray's own product, and
//! beside a matrix without gaps.
//!
//! ```text
//! cargo run --release -p gemv-examples --bin views -- --shape 300x300
//! ```
#![deny(unsafe_code)]

use std::hint::black_box;

use clap::Parser;
use gemv::{GpuDot, Result};
use gemv_examples::{clock::seconds, count};
use ndarray::linalg::general_mat_vec_mul;
use ndarray::{Array1, Array2, ArrayView2, ShapeBuilder, s};

#[derive(Parser)]
#[command(about = "Times of products of views")]
struct Options {
    /// Shapes, rows x columns.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = shape,
        default_value = "1x300,2x700,50x50,300x300,1000x1000,2000x2000"
    )]
    shape: Vec<(usize, usize)>,
    /// Steps along a row.
    #[arg(long, value_delimiter = ',', default_value = "2,3,5,8,16", value_parser = count)]
    step: Vec<usize>,
}

fn shape(text: &str) -> Result<(usize, usize), String> {
    let sizes = text.split_once('x').and_then(|(m, n)| m.parse().ok().zip(n.parse().ok()));
    sizes.filter(|(m, n)| *m > 0 && *n > 0).ok_or_else(|| "a shape is like 300x300".into())
}

/// Multiply-adds of a measurement at least.
const WORK: usize = 1 << 18;

macro_rules! of_type {
    ($t:ty, $options:expr) => {
        for &(m, n) in &$options.shape {
            let x = Array1::from_shape_fn(n, |j| (j % 7) as $t - 3.0);
            let mut y = Array1::<$t>::zeros(m);
            let many = WORK.div_ceil(m * n);
            let mut both = |a: ArrayView2<'_, $t>| -> Result<[f64; 2]> {
                let mut ours = || {
                    let each = |_| black_box(&a).try_gpu_dot_into(black_box(&x), &mut y);
                    (0..many).try_for_each(each)
                };
                let ours = seconds(None, &mut ours)?;
                let mut ndarray = || {
                    (0..many).for_each(|_| {
                        general_mat_vec_mul(1.0, black_box(&a), black_box(&x), 0.0, &mut y)
                    });
                    Ok(())
                };
                let ndarray = seconds(None, &mut ndarray)?;
                Ok([ours, ndarray].map(|time| time / many as f64))
            };
            let steps = $options.step.iter().copied().max().unwrap_or(1).max(2);
            let number = |(i, j): (usize, usize)| ((i + j) % 5) as $t - 2.0;
            let rows = Array2::from_shape_fn((m, n * steps), number);
            let dense = Array2::from_shape_fn((m, n), number);
            let columns = Array2::from_shape_fn((2 * m, n).f(), number);
            let mut all = vec![
                ("rows".to_string(), dense.view()),
                ("rows, columns reversed".into(), dense.slice(s![.., ..;-1])),
                ("columns".into(), columns.slice(s![..m, ..])),
                ("columns, every second row".into(), columns.slice(s![..;2, ..])),
            ];
            for &step in &$options.step {
                let part = s![.., ..n * step;step as isize];
                all.push((format!("rows, every column of {step}"), rows.slice(part)));
            }
            let plain = both(dense.view())?[0];
            for (name, a) in all {
                let [ours, ndarray] = both(a)?;
                println!(
                    "{:4} {:>11} {name:30} {:>10.2} {:>12.2} {:>12.2}",
                    stringify!($t),
                    format!("{m}x{n}"),
                    ours * 1e6,
                    ndarray / ours,
                    ours / plain
                );
            }
        }
    };
}

fn main() -> Result<()> {
    let options = Options::parse();
    println!(
        "{:4} {:>11} {:30} {:>10} {:>12} {:>12}",
        "type", "shape", "view", "us", "x ndarray", "of no gaps"
    );
    of_type!(f32, options);
    of_type!(f64, options);
    Ok(())
}
