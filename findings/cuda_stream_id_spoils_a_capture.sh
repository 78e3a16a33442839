#!/usr/bin/env bash
# Guess: cuStreamGetId only looks at a stream, as cuStreamIsCapturing and cuPointerGetAttribute do, so it may be called while the
#        stream is captured into a graph.
# Seen:  it answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900) and spoils the capture, whose end then fails. The other two leave
#        it whole. A library that finds its state by the number of the stream breaks its callers' graphs.
# With:  driver 580.159 (CUDA 13.0) on an H200, torch 2.11.0 as the program that captures. It needs an NVIDIA GPU.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install torch==2.11.0 numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
import ctypes

import torch

driver = ctypes.CDLL("libcuda.so.1")


def whole_after(query):
    """What the query answers, and whether the capture goes on."""
    stream, x, graph = torch.cuda.Stream(), torch.ones(10, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    answer = None
    try:
        with torch.cuda.graph(graph, stream=stream):
            y = x + 1
            answer = query(ctypes.c_void_p(stream.cuda_stream), y)
    except RuntimeError:
        return answer, False
    return answer, True


number, state, ordinal = ctypes.c_ulonglong(), ctypes.c_int(), ctypes.c_int()
queries = {
    "cuStreamIsCapturing": lambda s, y: driver.cuStreamIsCapturing(s, ctypes.byref(state)),
    "cuPointerGetAttribute": lambda s, y: driver.cuPointerGetAttribute(
        ctypes.byref(ordinal), 9, ctypes.c_ulonglong(y.data_ptr())
    ),
    "cuStreamGetId": lambda s, y: driver.cuStreamGetId(s, ctypes.byref(number)),
}
seen = {name: whole_after(query) for name, query in queries.items()}
for name, (answer, whole) in seen.items():
    print(f"{name}: {answer}, the capture is {'whole' if whole else 'spoilt'}")
assert seen["cuStreamIsCapturing"] == (0, True) and seen["cuPointerGetAttribute"] == (0, True)
assert seen["cuStreamGetId"] == (900, False), "it has changed"
PY
