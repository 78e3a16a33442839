#!/usr/bin/env bash
# Guess: a block of weights with a NaN in it shows the NaN when it is read back, in any block format.
# Seen:  in MXFP4 the 32 weights of the block come back as zeros, so a broken weight goes unseen. In Q8_0, Q5_0 and
#        Q4_0 all 32 come back as NaN.
# With:  gguf 0.19.0, NumPy 2.4.6.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install numpy==2.4.6 gguf==0.19.0
"$dir/venv/bin/python" -W ignore - <<'PY'
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
block = np.ones((1, 32), np.float32)
block[0, 5] = np.nan
read = {t.name: dequantize(quantize(block, t), t)[0] for t in (Type.MXFP4, Type.Q8_0, Type.Q5_0, Type.Q4_0)}
print({name: ("NaN", int(np.isnan(r).sum()), "zeros", int((r == 0).sum())) for name, r in read.items()})
assert (read.pop("MXFP4") == 0).all() and all(np.isnan(r).all() for r in read.values())
PY
