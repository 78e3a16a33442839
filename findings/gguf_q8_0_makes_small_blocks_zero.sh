#!/usr/bin/env bash
# Guess: an 8-bit block format with a scale for each block keeps a block of small weights to about 1/256 of its largest.
# Seen:  the scale, the largest weight over 127, is kept in f16. Blocks whose largest weight is below 127 * 2^-25 (about
#        3.8e-6) get the scale 0 and come back as zeros. The formats with fewer bits keep them: their scale is larger.
# With:  gguf 0.19.0 (the reference in Python of GGUF's formats), NumPy 2.4.6.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install numpy==2.4.6 gguf==0.19.0
"$dir/venv/bin/python" - <<'PY'
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
block = np.full((1, 32), 3.6e-6, np.float32)
largest = {t.name: float(dequantize(quantize(block, t), t).max()) for t in (Type.Q8_0, Type.Q5_0, Type.Q4_0)}
print("32 weights of 3.6e-6 come back as", largest)
assert largest["Q8_0"] == 0.0 and min(largest["Q5_0"], largest["Q4_0"]) > 3e-6
PY
