#!/usr/bin/env bash
# Guess: `A[:, ::2] @ x` has the bits of the same product with a copy of A[:, ::2]: BLAS copies what it cannot read.
# Seen:  NumPy hands a matrix to BLAS only if one of its axes has neighbouring entries. For the view it runs a loop of its own,
#        one entry after the other, and most entries of the result differ from the copy's.
# With:  NumPy 2.4.6.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
import numpy as np
rng = np.random.default_rng(0)
a, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((300, 600), 300))
view, copy = a[:, ::2] @ x, np.ascontiguousarray(a[:, ::2]) @ x
loop = np.zeros(300, np.float32)
for j in range(300):
    loop = loop + a[:, 2 * j] * x[j]  # each step rounded to f32
print(f"{(view != copy).sum()} of 300 entries differ from the copy's, {(view != loop).sum()} from a plain loop's")
assert (view != copy).sum() > 150 and (view != loop).sum() == 0
PY
