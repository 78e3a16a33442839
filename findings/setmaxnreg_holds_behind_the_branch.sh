#!/usr/bin/env bash
# Guess: setmaxnreg gives some warps of a block more registers and takes some from others, so the compiler keeps to the larger number in
#        the code that only the first reach, wherever the two instructions stand in front of it.
# Seen:  it keeps to the number that flows together. `if (warp >= 8) dec 40; else inc 232;` and, behind it, parts that return early for warp 8 and those above:
#        the rest, which only warps with 232 registers reach, is compiled for 40 and spills by the kilobyte. With the early parts and their
#        returns inside of the first branch, and inc behind it, the same code spills nothing. There is no warning.
# With:  NVRTC 13.0.48, 13.5.37 (pip, x86_64 Linux), sm_90a. No GPU is needed.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
cat > "$dir/run.py" <<'PY'
import ctypes, re, sys
DEC = 'asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");'
INC = 'asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");'
EARLY = "if (warp == 8) { to[threadIdx.x] = from[n]; return; }\n if (warp > 8) { to[threadIdx.x] = from[n + warp]; return; }"
TOGETHER = f"if (warp >= 8) {DEC} else {INC}\n {EARLY}"
NESTED = f"if (warp >= 8) {{ {DEC} {EARLY} }}\n {INC}"
SOURCE = """extern "C" __global__ void __launch_bounds__(384, 1) sums(const float *from, float *to, int n) {
  const int warp = threadIdx.x / 32;
  %s
  float v[160];
#pragma unroll
  for (int k = 0; k < 160; k++) v[k] = from[k * 256 + threadIdx.x];
#pragma unroll 1
  for (int i = 0; i < n; i++) {
    const float by = from[i];
#pragma unroll
    for (int k = 0; k < 160; k++) v[k] = v[k] * by + v[(k + 1) %% 160];
  }
#pragma unroll
  for (int k = 0; k < 160; k++) to[k * 256 + threadIdx.x] = v[k];
}"""
nvrtc = ctypes.CDLL(sys.argv[1])
def spilled(part):
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), (SOURCE % part).encode(), b"sums.cu", 0, None, None)
    options = (ctypes.c_char_p * 2)(b"--gpu-architecture=sm_90a", b"--ptxas-options=-v")
    code = nvrtc.nvrtcCompileProgram(program, 2, options)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.value.decode()
    assert code == 0 and "warning" not in text, text
    return int(re.search(r"(\d+) bytes spill stores", text)[1])
together, nested = spilled(TOGETHER), spilled(NESTED)
print("bytes that spill: behind the branches", together, "- with the early parts inside of one", nested)
assert together > 400 and nested == 0
PY
for version in 13.0.48 13.5.37; do
  "$dir/venv/bin/pip" -q --disable-pip-version-check install "nvidia-cuda-nvrtc==$version"
  echo "NVRTC $version"
  library=$(find "$dir/venv" -name 'libnvrtc.so.13')
  LD_LIBRARY_PATH=$(dirname "$library") "$dir/venv/bin/python" "$dir/run.py" "$library"
done
