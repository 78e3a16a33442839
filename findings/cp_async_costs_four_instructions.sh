#!/usr/bin/env bash
# Guess: a copy of 16 bytes from global to shared memory (cp.async) is one instruction, LDGSTS: so the advice to hide it among
#        arithmetic counts one issue slot a copy, and its address.
# Seen:  where a copy may follow reads of shared memory, as each does in a loop over a ring of stages, ptxas puts three loads of
#        shared memory in front of it that a false predicate turns off (@!PT LDS RZ, [RZ]). They do nothing and take three issue slots:
#        four for a copy, on sm_80 to sm_100. A loop that is bound by issue slots pays for it; the copy engine (TMA) has none of them.
# With:  NVRTC and nvdisasm 13.5.37 (pip, x86_64 Linux). No GPU is needed.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install nvidia-cuda-nvrtc==13.5.37 nvidia-cuda-nvdisasm==13.5.37
cat > "$dir/run.py" <<'PY'
import ctypes, re, subprocess, sys
SOURCE = """extern "C" __global__ void stage(const uint4 *from, uint4 *to, unsigned n) {
  extern __shared__ uint4 ring[];
  const unsigned at = (unsigned)__cvta_generic_to_shared(ring + threadIdx.x);
  unsigned sum = 0;
#pragma unroll 1
  for (unsigned i = 0; i < n; i++) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from + i * 32 + threadIdx.x) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    sum ^= ring[threadIdx.x].x;
  }
  to[threadIdx.x].x = sum;
}"""
nvrtc, nvdisasm, cubin = ctypes.CDLL(sys.argv[1]), sys.argv[2], sys.argv[3]
for arch in ["sm_80", "sm_90", "sm_100"]:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE.encode(), b"stage.cu", 0, None, None)
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture={arch}".encode())
    code = nvrtc.nvrtcCompileProgram(program, 1, options)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert code == 0, log.value.decode()
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    image = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, image)
    open(cubin, "wb").write(image.raw)
    text = subprocess.check_output([nvdisasm, "-c", cubin], text=True)
    code = [line.strip() for line in re.findall(r"/\*[0-9a-f]{4}\*/\s+(.*?);", text)]
    copies = [at for at, line in enumerate(code) if "LDGSTS" in line]
    ahead = [sum(line == "@!PT LDS RZ, [RZ]" for line in code[at - 3:at]) for at in copies]
    print(arch, "copies:", len(copies), "loads that are turned off in front of each:", ahead)
    assert copies and all(count == 3 for count in ahead)
PY
find_one() { find "$dir/venv" -name "$1" | head -1; }
"$dir/venv/bin/python" "$dir/run.py" "$(find_one 'libnvrtc.so.13')" "$(find_one nvdisasm)" "$dir/stage.cubin"
