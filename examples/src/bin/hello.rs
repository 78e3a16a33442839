//! A product of two arrays: the smallest program.
#![forbid(unsafe_code)]

use gemv::GpuDot;
use ndarray::array;

fn main() {
    let a = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
    let x = array![1.0, 0.0, -1.0];
    println!("{}", a.gpu_dot(&x));
}
