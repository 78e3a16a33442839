#!/usr/bin/env bash
# Guess: what `safetensors.numpy.save` writes `safetensors.numpy.load` reads.
# Seen:  it writes ml_dtypes' bfloat16 and both float8 types as BF16, F8_E4M3 and F8_E5M2, and raises KeyError when it reads them.
# With:  safetensors 0.8.0, NumPy 2.4.6, ml_dtypes 0.6.0.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install safetensors==0.8.0 numpy==2.4.6 ml_dtypes==0.6.0
"$dir/venv/bin/python" - <<'PY'
import json
import ml_dtypes
import numpy as np
from safetensors.numpy import load, save
for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
    file = save({"a": np.ones(4, dtype)})
    name = json.loads(file[8 : 8 + int.from_bytes(file[:8], "little")])["a"]["dtype"]
    try:
        load(file)
        seen = "loaded"
    except KeyError as e:
        seen = f"KeyError: {e}"
    print(f"{np.dtype(dtype)}, saved as {name}: {seen}")
    assert (seen == "loaded") == (dtype is np.float16), "it has changed"
PY
