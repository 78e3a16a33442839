#!/usr/bin/env bash
# Guess: a masked array is not lent by DLPack, which has no masks.
# Seen:  it is lent, with the entries that its mask hides: the borrower's sum is another than the lender's.
# With:  NumPy 2.4.6.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
import numpy as np

masked = np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False])
lent = np.from_dlpack(masked)
print("the lender's sum:", masked.sum(), "| the borrower's:", lent.sum())
assert (masked.sum(), lent.sum()) == (4.0, 6.0), "it has changed"
PY
