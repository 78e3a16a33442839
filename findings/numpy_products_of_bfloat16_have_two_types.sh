#!/usr/bin/env bash
# Guess: `A @ x` and `np.dot(A, x)` of ml_dtypes' bfloat16 have one type, and `einsum` takes what they take.
# Seen:  `A @ x` is float32, `np.dot(A, x)` bfloat16, and `einsum` refuses the type. Both products keep sums in float32; `A.mean()` keeps
#        them in bfloat16, so that the mean of a thousand ones is 0.256.
# With:  NumPy 2.4.6, ml_dtypes 0.6.0.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install numpy==2.4.6 ml_dtypes==0.6.0
"$dir/venv/bin/python" - <<'PY'
import ml_dtypes
import numpy as np
a, x = np.ones((2, 1000), ml_dtypes.bfloat16), np.ones(1000, ml_dtypes.bfloat16)
operator, function = a @ x, np.dot(a, x)
print(f"A @ x {operator[0]} of {operator.dtype}, np.dot(A, x) {function[0]} of {function.dtype}, mean {x.mean()}")
assert (operator.dtype, function.dtype) == (np.float32, ml_dtypes.bfloat16)
assert operator[0] == function[0] == 1000 and 0.25 < x.mean() < 0.26
try:
    print("einsum", np.einsum("ij,j->i", a, x))
except TypeError as e:
    print("einsum:", e)
else:
    raise AssertionError("it has changed")
PY
