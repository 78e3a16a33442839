#!/usr/bin/env bash
# Guess: weights that NVFP4 holds exactly come back as they were: 1536 is 6 * 256, and 256 is a scale of e4m3.
# Seen:  they come back as 1344. ggml rounds every scale of a block from 248 on to 448, the largest: an exponent of 15, which
#        has seven finite numbers in e4m3fn, is taken for overflow. The package gguf has the same.
# With:  pywhispercpp 1.5.1 (ggml 0.13.1), gguf 0.19.0, NumPy 2.4.6.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install numpy==2.4.6 gguf==0.19.0 pywhispercpp==1.5.1
"$dir/venv/bin/python" -W ignore - "$dir" <<'PY'
import ctypes
import pathlib
import sys

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import NVFP4, dequantize

ggml = ctypes.CDLL(str(sorted(pathlib.Path(sys.argv[1]).rglob("libggml-base*.so*"))[0]))
pointer = ctypes.c_void_p
for weight, want in ((1440, 1440), (1536, 1344)):
    weights, block = np.full(64, weight, np.float32), np.zeros(36, np.uint8)
    ggml.quantize_row_nvfp4_ref(weights.ctypes.data_as(pointer), block.ctypes.data_as(pointer), ctypes.c_int64(64))
    read = dequantize(block, Type.NVFP4)
    print(f"64 weights of {weight} have the scale {float(NVFP4.ue4m3_to_fp32(block[:1])[0] * 2)}, and come back as {set(read.tolist())}")
    assert (read == want).all()
scales = np.array([240, 247, 248, 256, 320, 416], np.float32)
rounded = NVFP4.ue4m3_to_fp32(NVFP4.fp32_to_ue4m3(scales)) * 2
print("scales", scales.tolist(), "become", rounded.tolist())
assert rounded.tolist() == [240, 240, 448, 448, 448, 448]
PY
