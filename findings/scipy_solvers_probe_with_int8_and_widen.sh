#!/usr/bin/env bash
# Guess: a LinearOperator of float32 is only called with the solver's vectors, of float32, and each solver answers in the
#        type of its right-hand side.
# Seen:  LinearOperator without a dtype calls the product once when it is made, with zeros of int8, to find its own type: a
#        product that takes floats alone fails before any solver runs. Then every solver calls it with float32; cg, bicgstab
#        and gmres answer in float32, but minres, lsqr and lsmr in float64.
# With:  SciPy 1.16.3, NumPy 2.3.5.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install numpy==2.3.5 scipy==1.16.3
"$dir/venv/bin/python" -W ignore - <<'PY'
import numpy as np
import scipy.sparse.linalg as sla

rng = np.random.default_rng(1)
a = rng.standard_normal((50, 50)).astype(np.float32)
a = a @ a.T + 50 * np.eye(50, dtype=np.float32)
b = rng.standard_normal(50).astype(np.float32)
seen = set()

def product(x):
    seen.add(x.dtype.name)
    return a @ x

sla.LinearOperator((50, 50), matvec=product)
print("when it is made:", sorted(seen))
assert seen == {"int8"}, "it has changed"
kinds = {}
for name in ["cg", "bicgstab", "gmres", "minres", "lsqr", "lsmr"]:
    op = sla.LinearOperator((50, 50), matvec=product, rmatvec=product, dtype=np.float32)
    seen.clear()
    answer = getattr(sla, name)(op, b)[0].dtype.name
    kinds[name] = (sorted(seen), answer)
    print(f"{name}: called with {kinds[name][0]}, answers {kinds[name][1]}")
for name, answer in kinds.items():
    wide = name in ["minres", "lsqr", "lsmr"]
    assert answer == (["float32"], "float64" if wide else "float32"), f"{name} has changed"
PY
