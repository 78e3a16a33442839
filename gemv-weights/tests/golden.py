"""Small files of weights, and the values of their matrices, by the packages gguf and safetensors.

    python golden.py golden

writes the folder `golden`: model.gguf and layers.safetensors, and the values of each of their matrices in .values.safetensors; and
layer.gguf, the layer of a small model.
It needs numpy, ml_dtypes, gguf and safetensors.
"""

import pathlib
import sys

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
random = np.random.default_rng(5)
types = gguf.GGMLQuantizationType


def normal(*shape):
    return random.standard_normal(shape).astype(np.float32)


def copy(array):
    return np.ascontiguousarray(array)


# GGUF: a value of each kind of metadata, tensors of several types and numbers of axes.
writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
writer.add_uint8("kinds.u8", 200)
writer.add_int8("kinds.i8", -100)
writer.add_uint16("kinds.u16", 60000)
writer.add_int16("kinds.i16", -30000)
writer.add_uint32("kinds.u32", 4000000000)
writer.add_int32("kinds.i32", -2000000000)
writer.add_uint64("kinds.u64", 2**63)
writer.add_int64("kinds.i64", -(2**62))
writer.add_float32("kinds.f32", 0.5)
writer.add_float64("kinds.f64", 0.1)
writer.add_bool("kinds.bool", True)
writer.add_string("kinds.text", "größer als\neine Zeile")
writer.add_array("kinds.texts", ["a", "bc", ""])
writer.add_array("kinds.numbers", [1, 2, 3])
values = {}


def add(name, array, kind=None):
    if kind is None:
        writer.add_tensor(name, array)
        values[name] = array.astype(np.float32).reshape(-1, array.shape[-1])
        return
    if kind == types.BF16:
        packed = array.astype(ml_dtypes.bfloat16).view(np.uint8)
    elif kind in (types.Q4_K, types.Q6_K, types.NVFP4):  # which the package does not round to
        size = gguf.quant_shape_to_byte_shape(array.shape, kind)
        packed = random.integers(0, 120, size, dtype=np.uint8)
    else:
        packed = gguf.quantize(array, kind)
    writer.add_tensor(name, packed, raw_dtype=kind)
    values[name] = gguf.dequantize(packed, kind).astype(np.float32).reshape(-1, array.shape[-1])


add("output_norm.weight", normal(7))
add("blk.0.attn_q.weight", normal(3, 5).astype(np.float16))
add("blk.0.attn_k.weight", normal(2, 6), types.BF16)
add("blk.0.attn_v.weight", normal(3, 64), types.Q8_0)
add("blk.0.attn_output.weight", normal(2, 32), types.Q4_0)
add("blk.0.ffn_up.weight", normal(2, 256), types.Q4_K)
add("blk.0.ffn_down.weight", normal(1, 512), types.Q6_K)
add("blk.0.ffn_gate.weight", normal(3, 64), types.MXFP4)
add("blk.0.ffn_gate_inp.weight", normal(2, 128), types.NVFP4)
writer.add_tensor("blk.0.ffn_gate_inp.scale", np.array([0.75], np.float32))
add("blk.0.ffn_up_exps.weight", normal(2, 3, 32), types.Q8_0)
writer.add_tensor("kinds.q5_1", gguf.quantize(normal(2, 32), types.Q5_1), raw_dtype=types.Q5_1)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
save_file(values, folder / "model.values.safetensors")

# The matrices of a layer, and its norms.
writer = gguf.GGUFWriter(folder / "layer.gguf", "llama")
layer = np.random.default_rng(6)
for name, rows, columns, kind in (
    ("attn_q", 64, 64, types.Q8_0),
    ("attn_k", 32, 64, types.Q4_0),
    ("attn_v", 32, 64, types.Q8_0),
    ("attn_output", 64, 64, types.MXFP4),
    ("ffn_gate", 96, 64, types.Q4_0),
    ("ffn_up", 96, 64, types.Q8_0),
    ("ffn_down", 64, 96, types.Q4_0),
):
    array = (layer.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
    writer.add_tensor(f"blk.0.{name}.weight", gguf.quantize(array, kind), raw_dtype=kind)
for name in ("attn_norm", "ffn_norm"):
    writer.add_tensor(f"blk.0.{name}.weight", layer.uniform(0.5, 1.5, 64).astype(np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

# safetensors.
tensors, values = {}, {}
e4m3 = ml_dtypes.float8_e4m3fn
f8 = (normal(129, 256) * 40).astype(e4m3)
scale = np.abs(normal(2, 2)) + np.float32(0.1)
tensors["blocks.weight"] = f8
tensors["blocks.weight_scale_inv"] = scale
# The last rows.
values["blocks.weight"] = (np.repeat(np.repeat(scale, 128, 0)[:129], 128, 1) * f8.astype(np.float32))[126:]
f8 = copy(f8[:3, :128])
scale = (np.abs(normal(3, 1)) + np.float32(0.1)).astype(ml_dtypes.bfloat16)
tensors["rows.weight"] = f8
tensors["rows.weight_scale"] = scale
values["rows.weight"] = scale.astype(np.float32) * f8.astype(np.float32)
tensors["all.weight"] = f8
tensors["all.weight_scale"] = np.array(0.3, np.float32)
values["all.weight"] = np.float32(0.3) * f8.astype(np.float32)

rows, columns, group = 16, 128, 64
codes = random.integers(0, 16, (rows, columns), dtype=np.uint32)
zeros = random.integers(1, 16, (rows, columns // group), dtype=np.uint32)
scales = np.abs(normal(rows, columns // group)).astype(np.float16)
centred = codes.astype(np.float32) - np.repeat(zeros, group, 1).astype(np.float32)
int4 = np.repeat(scales.astype(np.float32), group, 1) * centred


def words(numbers, order=range(8)):
    """8 numbers of the last axis in a word, in this order from the lowest bits on."""
    parts = numbers.reshape(*numbers.shape[:-1], -1, 8)[..., list(order)]
    return (parts << (4 * np.arange(8, dtype=np.uint32))).sum(axis=-1, dtype=np.uint32).view(np.int32)


for name, less in (("gptq", 1), ("second", 0)):
    tensors[f"{name}.qweight"] = copy(words(codes).T)
    tensors[f"{name}.qzeros"] = words(copy((zeros - less).T))
    tensors[f"{name}.scales"] = copy(scales.T)
    tensors[f"{name}.g_idx"] = (np.arange(columns) // group).astype(np.int32)
    values[f"{name}.weight"] = int4
order = [0, 2, 4, 6, 1, 3, 5, 7]
tensors["awq.qweight"] = words(copy(codes.T), order)
tensors["awq.qzeros"] = words(copy(zeros.T), order)
tensors["awq.scales"] = copy(scales.T)
values["awq.weight"] = int4

table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
codes = random.integers(0, 16, (3, 128), dtype=np.uint8)
pairs = codes[:, ::2] | codes[:, 1::2] << 4
scale = random.integers(1, 127, (3, 8), dtype=np.uint8).view(e4m3)
nvfp4 = np.repeat(scale.astype(np.float32), 16, 1) * table[codes]
for name, end, second, number in (("modelopt", "", "_scale_2", 0.25), ("compressed", "_packed", "_global_scale", 4.0)):
    tensors[f"{name}.weight{end}"] = pairs
    tensors[f"{name}.weight_scale"] = scale
    tensors[f"{name}.weight{second}"] = np.array([number], np.float32)
    values[f"{name}.weight"] = nvfp4
scale = random.integers(100, 140, (3, 4), dtype=np.uint8)
mxfp4 = np.repeat(2.0 ** (scale.astype(np.float32) - 127), 32, 1).astype(np.float32) * table[codes]
tensors["micro.weight_packed"] = pairs
tensors["micro.weight_scale"] = scale
values["micro.weight"] = mxfp4
tensors["experts_blocks"] = pairs.reshape(3, 1, 4, 16)
tensors["experts_scales"] = scale.reshape(3, 1, 4)
values["experts"] = mxfp4
tensors["norm.weight"] = normal(5).astype(ml_dtypes.bfloat16)
values["norm.weight"] = tensors["norm.weight"].astype(np.float32).reshape(1, 5)
save_file(tensors, folder / "layers.safetensors", metadata={"format": "pt"})
save_file(values, folder / "layers.values.safetensors")
