#!/usr/bin/env bash
# Guess: arithmetic on unsigned integers in CUDA C++ that cannot overflow gives the same in a loop that is rolled as in one that
#        is unrolled: half a word is read where f[at / 2] >> at % 2 * 16 says.
# Seen:  with at = 8 * i / 32, i = 8 * term + k, the loop over term rolled and the one over k unrolled, the code reads the
#        wrong word for k = 4 to 7: of the first term the upper half of f[1] in place of that of f[0]. Unrolled, or with
#        at = 2 * term + k / 4, it is right. The PTX is wrong already, so it shows without a GPU: the script runs it.
# With:  NVRTC 13.0.48, 13.5.37 (pip, x86_64 Linux).
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
cat > "$dir/run.py" <<'PY'
import ctypes, re, sys
SOURCE = """extern "C" __global__ void pick(const unsigned *from, unsigned *to, unsigned n) {
  __shared__ unsigned f[64];
  f[threadIdx.x] = from[threadIdx.x];
  __syncthreads();
  unsigned found[8] = {};
#pragma unroll ROLL
  for (unsigned term = 0; term < 4; term++)
#pragma unroll
    for (unsigned k = 0; k < 8; k++) {
      const unsigned i = 8 * term + k, at = AT;
      if (i < n) found[k] = found[k] * 31 + (f[at / 2] >> (at % 2 * 16) & 65535u);
    }
#pragma unroll
  for (unsigned k = 0; k < 8; k++) to[threadIdx.x * 8 + k] = found[k];
}"""
nvrtc = ctypes.CDLL(sys.argv[1])
def ptx(at, times):
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = SOURCE.replace("AT", at).replace("ROLL", str(times))
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"pick.cu", 0, None, None)
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_90")
    assert nvrtc.nvrtcCompileProgram(program, 1, options) == 0
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, text)
    return text.value.decode()
def run(text):
    """Thread 0 alone, of the few instructions that there are. Global memory has word j at 4 * j; `to` lies from 4096 on."""
    halves = {2 * j: (j * 2654435761 >> 7) & 65535 for j in range(128)}
    shared, out, r = dict(halves), {}, {"pick_param_0": 0, "pick_param_1": 4096, "pick_param_2": 32}
    lines = [l.strip() for l in text[text.index("{"):].splitlines()]
    lines = [l for l in lines if l and not l.startswith((".", "//", "{", "}"))]
    labels = {l.rstrip(":"): n for n, l in enumerate(lines) if l.endswith(":")}
    value = lambda v: r[v] if v in r else 0 if v == "%tid.x" or v.startswith("_Z") else int(v, 0)
    def address(v):
        base, _, offset = v.strip("[]").partition("+")
        return value(base) + int(offset or 0)
    at = 0
    while True:
        line = lines[at].rstrip(";")
        at += 1
        if line.endswith(":"):
            continue
        guard = re.match(r"@(!?)(%p\d+)\s+", line)
        if guard:
            line = line[guard.end():]
            if r[guard[2]] == (guard[1] == "!"):
                continue
        name, *rest = line.split(maxsplit=1)
        a = [v.strip() for v in "".join(rest).split(",")]
        op = name.split(".")[0]
        if op == "ret":
            return [out[4096 + 4 * k] for k in range(8)]
        elif op == "bra":
            at = labels[a[-1]]
        elif op == "bar":
            pass
        elif op in ("mov", "cvta", "cvt"):
            r[a[0]] = value(a[1])
        elif op == "ld" and ".param" in name:
            r[a[0]] = r[a[1].strip("[]")]
        elif op == "ld":
            of, where = (shared if ".shared" in name else halves), address(a[1])
            r[a[0]] = of[where] if "16" in name.split(".")[-1] else of[where] | of[where + 2] << 16
        elif op == "st" and ".shared" in name:
            shared[address(a[0])], shared[address(a[0]) + 2] = value(a[1]) & 65535, value(a[1]) >> 16
        elif op == "st":
            out[address(a[0])] = value(a[1]) & 0xFFFFFFFF
        elif op == "setp":
            x, y = value(a[1]), value(a[2])
            r[a[0]] = {"ge": x >= y, "gt": x > y, "lt": x < y, "le": x <= y, "ne": x != y, "eq": x == y}[name.split(".")[1]]
        elif op == "selp":
            r[a[0]] = value(a[1]) if r[a[3]] else value(a[2])
        else:
            x = [value(v) for v in a[1:]]
            r[a[0]] = {"add": lambda: x[0] + x[1], "shl": lambda: x[0] << x[1], "shr": lambda: x[0] >> x[1], "or": lambda: x[0] | x[1],
                       "and": lambda: x[0] & x[1], "mul": lambda: x[0] * x[1], "mad": lambda: x[0] * x[1] + x[2]}[op]() & (1 << (32 if name.endswith("32") and "wide" not in name else 64)) - 1
def expected():
    found, word = [0] * 8, lambda j: (j * 2654435761 >> 7) & 65535
    for i in range(32):
        found[i % 8] = (found[i % 8] * 31 + word(8 * i // 32)) & 0xFFFFFFFF
    return found
want = expected()
plain, other = "8 * i / 32", "2 * term + k / 4"
wrong = [k for k, (a, b) in enumerate(zip(run(ptx(plain, 1)), want)) if a != b]
print("at = 8 * i / 32, rolled: other values for k =", wrong)
assert wrong == [4, 5, 6, 7]
assert run(ptx(plain, 4)) == want and run(ptx(other, 1)) == want
PY
for version in 13.0.48 13.5.37; do
  "$dir/venv/bin/pip" -q --disable-pip-version-check install "nvidia-cuda-nvrtc==$version"
  echo "NVRTC $version"
  library=$(find "$dir/venv" -name 'libnvrtc.so.13')
  LD_LIBRARY_PATH=$(dirname "$library") "$dir/venv/bin/python" "$dir/run.py" "$library"
done
