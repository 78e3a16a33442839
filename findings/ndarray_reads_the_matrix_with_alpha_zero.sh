#!/usr/bin/env bash
# Guess: `general_mat_vec_mul(0, A, x, 1, y)` leaves y alone: for BLAS's gemv, alpha = 0 means that A and x are not read.
# Seen:  ndarray and nalgebra multiply all the same, and 0 * NaN is NaN: a NaN of A, or one in memory that was not
#        written yet, reaches y.
# With:  ndarray 0.17.2, nalgebra 0.34.1, without a BLAS.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/src"
cat > "$dir/Cargo.toml" <<'TOML'
[package]
name = "probe"
version = "0.0.0"
edition = "2021"
[dependencies]
nalgebra = "=0.34.1"
ndarray = "=0.17.2"
[workspace]
TOML
cat > "$dir/src/main.rs" <<'RS'
fn main() {
    let (a, x, mut y) = (ndarray::array![[f64::NAN]], ndarray::array![1.0], ndarray::array![2.0]);
    ndarray::linalg::general_mat_vec_mul(0.0, &a, &x, 1.0, &mut y);
    let a = nalgebra::DMatrix::from_element(1, 1, f64::NAN);
    let x = nalgebra::DVector::from_element(1, 1.0);
    let mut z = nalgebra::DVector::from_element(1, 2.0);
    z.gemv(0.0, &a, &x, 1.0);
    println!("0 * [NaN] [1] + 1 * [2]: ndarray {}, nalgebra {}; BLAS: 2", y[0], z[0]);
    assert!(y[0].is_nan() && z[0].is_nan(), "it has changed");
}
RS
cargo run -q --manifest-path "$dir/Cargo.toml" --target-dir "$dir/target"
