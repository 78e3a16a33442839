#!/usr/bin/env bash
# Guess: `i?amax` of a vector with one NaN gives the place of the NaN, as NumPy's argmax does, or that of the largest number.
# Seen:  OpenBLAS gives a third place, whose number is not the largest. It depends on the length, on where the NaN is, and on the type.
# With:  SciPy 1.17.1 with its OpenBLAS 0.3.31, on x86-64.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install numpy==2.4.6 scipy==1.17.1
"$dir/venv/bin/python" - <<'PY'
import numpy as np
from scipy.linalg import blas
nan, wrong = np.nan, []
for name, x in (
    ("isamax", np.array([1, nan, 3], np.float32)),
    ("idamax", np.array([1, 2, 3, nan])),
    ("icamax", np.array([1, 2, nan], np.complex64)),
    ("izamax", np.array([nan, 2, 3, 1], np.complex128)),
):
    at = getattr(blas, name)(x)
    print(f"{name} of {x.real}: place {at}, which has {x[at].real}")
    assert not np.isnan(x[at]) and x[at].real < np.nanmax(x.real), "it has changed"
PY
