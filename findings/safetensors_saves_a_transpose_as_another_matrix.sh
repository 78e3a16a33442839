#!/usr/bin/env bash
# Guess: `safetensors.numpy.save({"a": a.T})` either writes the transpose or refuses an array that is not by rows.
# Seen:  it writes the bytes in the order of memory under the transpose's shape, without an error. What is loaded is
#        another matrix. Call `numpy.ascontiguousarray` first.
# With:  safetensors 0.8.0, NumPy 2.4.6.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install numpy==2.4.6 safetensors==0.8.0
"$dir/venv/bin/python" - <<'PY'
import numpy as np
from safetensors.numpy import load, save
a = np.arange(6, dtype=np.float32).reshape(2, 3)
read = load(save({"a": a.T}))["a"]
print("saved: ", a.T.tolist())
print("loaded:", read.tolist())
assert read.shape == (3, 2) and read.tolist() == [[0, 1], [2, 3], [4, 5]]
PY
