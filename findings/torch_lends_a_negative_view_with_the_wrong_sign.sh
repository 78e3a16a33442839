#!/usr/bin/env bash
# Guess: what `__dlpack__` lends has the entries of the tensor, or it refuses, as it does for a conjugated view.
# Seen:  the imaginary part of a conjugated view is a view that is marked as negative. DLPack lends the memory without the mark,
#        so every entry comes out with the other sign, in NumPy and in torch itself. `numpy()` refuses the same view.
# With:  torch 2.15.0, NumPy 2.4.6.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install torch==2.15.0 numpy==2.4.6
"$dir/venv/bin/python" -W ignore - <<'PY'
import numpy as np
import torch

view = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
print("the tensor:", view.tolist(), "| marked as negative:", view.is_neg())
lent, again = np.from_dlpack(view), torch.from_dlpack(view)
print("by DLPack in NumPy:", lent.tolist(), "| in torch:", again.tolist())
try:
    view.numpy()
    refused = "not refused"
except RuntimeError as e:
    refused = str(e)
print("numpy():", refused)
assert (lent == -np.array(view.tolist())).all() and torch.equal(again, -view), "it has changed"
assert "negative bit" in refused, "it has changed"
PY
