#!/usr/bin/env bash
# Guess: `einsum("ij,j->i", A, x)` and `einsum("ji,j->i", A.T.copy(), x)` are one product; of float16 both keep sums in float32, as `@` does.
# Seen:  where the sum runs along the last axis it is kept in float32; along the first axis each step is rounded to float16, and a
#        sum of ones ends at 2048. `A.sum(axis=0)` and `A.sum(axis=1)` differ in the same way.
# With:  NumPy 2.4.6.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
import numpy as np
a, x = np.ones((2, 5000), np.float16), np.ones(5000, np.float16)
b = a.T.copy()
by_rows, by_columns = np.einsum("ij,j->i", a, x)[0], np.einsum("ji,j->i", b, x)[0]
print(f"einsum along the last axis {by_rows}, along the first {by_columns}; @ {(a @ x)[0]}, {(b.T @ x)[0]}")
print(f"sum along the last axis {a.sum(axis=1)[0]}, along the first {b.sum(axis=0)[0]}")
assert (by_rows, by_columns, a.sum(axis=1)[0], b.sum(axis=0)[0]) == (5000, 2048, 5000, 2048)
assert (a @ x)[0] == (b.T @ x)[0] == 5000
PY
