"""Blocks of every format with their values by other programs, and weights with the blocks that ggml makes of them.

    python golden.py FOLDER [SEED [COUNT [WHEEL]]]

writes NAME.values (the number of blocks, the blocks, their values in f32) and NAME.blocks (the number, weights, blocks). It needs
numpy, gguf and ml_dtypes. WHEEL is a folder with ggml's library, as `pip install --target WHEEL pywhispercpp` makes one: its C code is the
reference of quantisation. Without it, those formats are written that the package gguf rounds to.

    pip install --target wheel pywhispercpp
    python golden.py golden 1 24 wheel

wrote the folder `golden`.
"""

import ctypes
import pathlib
import sys

import gguf
import ml_dtypes
import numpy as np

folder = pathlib.Path(sys.argv[1])
seed, count = (int(a) for a in (sys.argv[2:4] + ["1", "24"][len(sys.argv[2:4]) :]))
libraries = sorted(pathlib.Path(sys.argv[4]).rglob("libggml-base*.so*")) if len(sys.argv) > 4 else []
ggml = ctypes.CDLL(str(libraries[0])) if libraries else None
if len(sys.argv) > 4:
    assert ggml, f"no libggml-base in {sys.argv[4]}"
random = np.random.default_rng(seed)
np.seterr(all="ignore")
e4m3 = ml_dtypes.float8_e4m3fn
folder.mkdir(parents=True, exist_ok=True)


def write(name, *arrays):
    with open(folder / name, "wb") as file:
        file.write(np.uint32(len(arrays[0])).tobytes())
        for array in arrays:
            file.write(np.ascontiguousarray(array).tobytes())


def blocks_of(size, count):
    """Random bytes, of which a third has the least or greatest codes."""
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    blocks[::6] = 0
    blocks[3::6] = 255
    return blocks


SCALES = {
    2: np.array([0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0x7E00], np.uint16),
    4: np.array([0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000], np.uint32),
}


def put_scales(blocks, at, width=2, signed=True):
    """Scales from zero to NaN, some negative, in most blocks; the others have usual ones."""
    kind = SCALES[width]
    usual = random.uniform(-1, 1, len(blocks)) * 2.0 ** random.integers(-12, 3, len(blocks))
    usual = usual.astype({2: np.float16, 4: np.float32}[width]).view(kind.dtype)
    chosen = np.where(np.arange(len(blocks)) % 2 == 0, usual, kind[random.integers(0, len(kind), len(blocks))])
    sign = np.where(random.integers(0, 2, len(blocks)) == 1, kind.dtype.type(1 << (8 * width - 1)), kind.dtype.type(0))
    chosen = (chosen | sign).astype(kind.dtype)
    blocks[:, at : at + width] = chosen.view(np.uint8).reshape(-1, width)


kinds = gguf.GGMLQuantizationType
GGUF = {  # name: type, where its f16 scales are
    "q8_0": (kinds.Q8_0, [0]),
    "q4_0": (kinds.Q4_0, [0]),
    "q4_k": (kinds.Q4_K, [0, 2]),
    "q6_k": (kinds.Q6_K, [208]),
    "mxfp4": (kinds.MXFP4, []),
    "nvfp4": (kinds.NVFP4, []),
}
for name, (kind, scales) in GGUF.items():
    length, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = blocks_of(size, max(6, count * 32 // length))
    for at in scales:
        put_scales(blocks, at)
    if name == "mxfp4":  # 255 is NaN, but in ggml
        blocks[:, 0] = np.minimum(blocks[:, 0], 254)
    if name == "nvfp4":  # NaN and negative ones are others in ggml
        blocks[:, :4] = np.minimum(blocks[:, :4] & 127, 126)
    write(f"{name}.values", blocks, gguf.dequantize(blocks.ravel(), kind).astype(np.float32))

for group in (32, 64, 128, 256):
    for name, scale_type in (("", np.float16), ("bf16", ml_dtypes.bfloat16)):
        blocks = blocks_of(4 + group // 2, max(6, count * 32 // group))
        put_scales(blocks, 0)
        blocks[:, 3] = 0
        s = blocks[:, :2].copy().view(scale_type).astype(np.float32)
        parts = blocks[:, 4:].reshape(len(blocks), -1, 16)
        q = np.concatenate([parts & 15, parts >> 4], axis=2).reshape(len(blocks), group)
        values = s * (q.astype(np.float32) - blocks[:, 2:3].astype(np.float32))
        write(f"int4g{group}{name}.values", blocks, values)

blocks = blocks_of(132, max(6, count // 4))
put_scales(blocks, 0, width=4)
s = blocks[:, :4].copy().view(np.float32)
write("fp8.values", blocks, s * blocks[:, 4:].view(e4m3).astype(np.float32))


def weights(length, count):
    """Usual weights, and blocks that are equal, zero, tiny, large, or have one weight that is much larger than the others."""
    w = (random.standard_normal((count, length)) * 0.02).astype(np.float32)
    special = [
        np.zeros(length),
        np.full(length, 0.37),
        np.full(length, -0.37),
        random.standard_normal(length) * 1e-7,
        random.standard_normal(length) * 1e-9,
        random.uniform(-1, 1, length) * 1.4e3,
        np.where(np.arange(length) == 5, 100, w[0]),
        np.where(np.arange(length) == 7, -3.5, 0),
        random.integers(-8, 9, length) / 8,
        np.abs(w[0]),
        -np.abs(w[0]),
        np.where(np.arange(length) == 0, np.float32(4) * (1 - 2.0**-23), w[0]),
    ]
    for i, row in enumerate(special):
        w[(2 * i) % count if count > 2 * i else i % count] = row
    return w


def by_ggml(name, w, size):
    blocks = np.zeros((len(w), size), np.uint8)
    function = getattr(ggml, f"quantize_row_{name}_ref")
    pointer = ctypes.c_void_p
    function(w.ctypes.data_as(pointer), blocks.ctypes.data_as(pointer), ctypes.c_int64(w.size))
    return blocks


for name, (kind, _) in GGUF.items():
    length, size = gguf.GGML_QUANT_SIZES[kind]
    w = weights(length, max(24, count * 32 // length))
    if ggml:
        blocks = by_ggml({"q4_k": "q4_K", "q6_k": "q6_K"}.get(name, name), w, size)
        if name in ("q8_0", "q4_0", "mxfp4"):
            assert (blocks == gguf.quantize(w, kind)).all(), f"{name}: ggml and gguf differ"
    elif name in ("q8_0", "q4_0", "mxfp4"):
        blocks = gguf.quantize(w, kind)
    else:
        continue
    write(f"{name}.blocks", w, blocks)

w = weights(128, max(24, count // 4))
s = np.abs(w).max(axis=1, keepdims=True) / np.float32(448)
codes = np.where(s == 0, np.float32(0), w / s).astype(e4m3).view(np.uint8)
write("fp8.blocks", w, np.concatenate([s.view(np.uint8), codes], axis=1))
