#!/usr/bin/env bash
# Guess: converting an f64 to a 16-bit type rounds once, to the nearest value, as IEEE 754 asks of a conversion.
# Seen:  ml_dtypes (bfloat16) and the Rust crate half (f16 and bf16) round to f32, or drop the low bits, first. The number
#        1 + 2^-8 + 2^-40 lies above the middle of two bf16 values, becomes the middle, and then goes down to 1, where
#        1.0078125 is nearest. NumPy's own float16 rounds once. Expected values made by either are off by one there.
# With:  ml_dtypes 0.6.0, NumPy 2.4.6; half 2.7.1.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install numpy==2.4.6 ml_dtypes==0.6.0
"$dir/venv/bin/python" - <<'PY'
import ml_dtypes, numpy as np
bf16 = float(np.array([1 + 2.0**-8 + 2.0**-40]).astype(ml_dtypes.bfloat16)[0])
f16 = float(np.float64(1 + 2.0**-11 + 2.0**-40).astype(np.float16))
print("ml_dtypes bfloat16:", bf16, "nearest:", 1 + 2.0**-7)
print("NumPy float16:", f16, "nearest:", 1 + 2.0**-10)
assert bf16 == 1.0 and f16 == 1 + 2.0**-10
PY
mkdir -p "$dir/rust/src"
cat > "$dir/rust/Cargo.toml" <<'TOML'
[package]
name = "probe"
version = "0.0.0"
edition = "2021"
[dependencies]
half = "=2.7.1"
[workspace]
TOML
cat > "$dir/rust/src/main.rs" <<'RS'
fn main() {
    let of = |middle: f64| 1.0 + middle + 2f64.powi(-40);
    let bf16 = half::bf16::from_f64(of(2f64.powi(-8))).to_f64();
    let f16 = half::f16::from_f64(of(2f64.powi(-11))).to_f64();
    println!("half bf16: {bf16}, f16: {f16}");
    assert!(bf16 == 1.0 && f16 == 1.0, "it has changed");
}
RS
cargo run -q --manifest-path "$dir/rust/Cargo.toml" --target-dir "$dir/target"
