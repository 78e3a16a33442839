"""Packed matrices and files of weights: bits, what NumPy's users expect, and what is refused."""

import copy
import threading

import gguf
import numpy as np
import pytest
from conftest import BF16, assert_same, numbers

import gemv

FORMATS = gemv.Packed.formats
#: Those that the package gguf reads.
GGUF = ["q8_0", "q4_0", "q4_k", "q6_k", "mxfp4", "nvfp4"]
VECTORS = ["float32", "float16", BF16]
DEVICES = [None, "cpu", "reference"]


def weights(rng, m, n, format):
    """A matrix of a format, and the float32 that it stands for."""
    packed = gemv.Packed.quantize(format, numbers(rng, (m, n), "float32"))
    return packed, packed.dequantize()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_product_has_the_bits_of_the_dequantised_matrix(rng, format, device):
    """Of one vector and of three, in three types, with factors and steps: 36 products a format and device."""
    packed, a = weights(rng, 19, 768, format)
    if device:
        packed = packed.to_device(device)
    assert (packed.device, packed.shape, packed.ndim, len(packed)) == (device, (19, 768), 2, 19)
    for kind in VECTORS:
        # Sums are kept in float32, and rounded once.
        narrow = lambda y: y.astype(kind)  # noqa: E731
        x = numbers(rng, (768, 6), kind)
        for b in (x[:, 0], x[:, :3], x[:, ::2], x[::-1, 2], np.asfortranarray(x)[:, 1:4], x[:, :0]):
            wide = b.astype("float32")
            y = packed @ b
            assert type(y) is np.ndarray and y.dtype == np.dtype(kind)
            assert_same(y, narrow(gemv.matmul(a, wide)))
            out = numbers(rng, y.shape, kind)
            expected = narrow(gemv.matmul(a, wide, alpha=-1.5, beta=0.5, out=out.astype("float32")))
            assert gemv.matmul(packed, b, alpha=-1.5, beta=0.5, out=out) is out
            assert_same(out, expected)


def test_each_column_has_the_bits_of_its_own_product(rng):
    packed, a = weights(rng, 33, 1024, "q6_k")
    x = numbers(rng, (1024, 9), "float32")
    y = packed @ x
    for column in range(9):
        assert_same(y[:, column].copy(), packed @ x[:, column])
        assert_same(y[:, column].copy(), gemv.matvec(packed, x[:, column]))
    # Leading axes are broadcast, as of any matrix.
    for shape in ((9, 1024), (3, 3, 1024), (1, 2, 1024), (0, 1024)):
        vectors = numbers(rng, shape, "float32")
        assert_same(gemv.matvec(packed, vectors), gemv.matvec(a, vectors))
        assert_same(gemv.matvec(packed, vectors[..., ::-1]), gemv.matvec(a, vectors[..., ::-1]))
    columns = numbers(rng, (2, 1, 4, 1024, 3), "float32")
    assert_same(gemv.matmul(packed, columns), gemv.matmul(a, columns))
    assert_same(packed @ columns.swapaxes(0, 2), gemv.matmul(a, columns.swapaxes(0, 2)))


@pytest.mark.parametrize("format", GGUF)
def test_the_package_gguf_has_the_same_values(rng, format):
    kind = gguf.GGMLQuantizationType[format.upper()]
    size, bytes_ = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 120, (64, 3 * bytes_), dtype=np.uint8)
    packed = gemv.Packed(format, blocks)
    assert packed.shape == (64, 3 * size) and packed.nbytes == blocks.nbytes
    assert packed.tobytes() == blocks.tobytes()
    expected = gguf.quants.dequantize(blocks, kind)
    assert_same(packed.dequantize(), expected)
    x = numbers(rng, (3 * size, 3), "float32")
    for b in (x[:, 0], x):
        assert_same(packed @ b, gemv.matmul(expected, b))


@pytest.mark.parametrize("format", ["q8_0", "q4_0", "mxfp4"])
def test_the_package_gguf_rounds_to_the_same_blocks(rng, format):
    a = numbers(rng, (16, 512), "float32")
    expected = gguf.quants.quantize(a, gguf.GGMLQuantizationType[format.upper()])
    for view in (a, np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2]):
        assert gemv.Packed.quantize(format, view).tobytes() == expected.tobytes()


def test_blocks_are_kept_or_copied(rng):
    packed, a = weights(rng, 4, 64, "q8_0")
    blocks, x = packed.tobytes(), numbers(rng, 64, "float32")
    array = np.frombuffer(blocks, np.uint8).copy()
    step = np.zeros(2 * array.size, np.uint8)
    step[::2] = array
    for of in (blocks, bytearray(blocks), memoryview(blocks), array, array.reshape(4, -1), step[::2]):
        assert_same(gemv.Packed("q8_0", of, (4, 64)) @ x, gemv.matvec(a, x))
    # Nobody's writes reach it.
    kept = gemv.Packed("q8_0", array, [np.int64(4), 64])
    array[:] = 0
    assert_same(kept.dequantize(), a)
    # Bytes stay, whoever lets go of them.
    kept = [gemv.Packed("q8_0", bytes(bytearray(blocks)), (4, 64))[k : k + 1] for k in range(4)]
    assert_same(np.concatenate([row @ x for row in kept]), gemv.matvec(a, x))


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_views(rng, device):
    packed, a = weights(rng, 20, 256, "q4_k")
    x = numbers(rng, 256, "float32")
    there = packed.to_device(device) if device else packed
    for rows in (slice(3, 9), slice(None), slice(-4, None), slice(5, 5), slice(0, 1000), slice(9, 3)):
        assert there[rows].shape == a[rows].shape
        assert_same(there[rows] @ x, gemv.matvec(a[rows], x))
        assert_same(there[2:18][rows] @ x, gemv.matvec(a[2:18][rows], x))
    assert packed[2:5].tobytes() == packed.tobytes()[2 * 144 : 5 * 144]
    for wrong in (3, slice(0, 4, 2), slice(None, None, -1), (slice(1), slice(1)), "a", None):
        with pytest.raises(TypeError, match=r"slice of rows.*a\[10:20\]"):
            there[wrong]
    with pytest.raises(TypeError, match="slice of rows"):
        list(there)


def test_where_the_result_lives(rng):
    packed, a = weights(rng, 6, 128, "fp8")
    x = numbers(rng, (128, 2), "float32")
    expected = gemv.matmul(a, x)
    for on in (packed, packed.to_device("reference")):
        resident = on @ gemv.asarray(x, device="reference")
        assert type(resident) is gemv.Array and resident.device == "reference"
        assert_same(np.asarray(resident), expected)
    like = packed.to_device(gemv.asarray(x, device="reference"))
    assert like.device == "reference" and like.to_device("reference").device == "reference"
    assert_same(like @ x, expected)

    class Lent:
        def __dlpack__(self, **named):
            return x.__dlpack__(**named)

        def __dlpack_device__(self):
            return (1, 0)

    assert_same(packed @ Lent(), expected)


def test_a_device_that_reads_blocks_in_its_own_arrangement(rng):
    """OpenCL on a CPU shares the host's memory, and blocks of the host are uploaded for it all the same."""
    packed, a = weights(rng, 5, 64, "q8_0")
    x = numbers(rng, (64, 2), "float32")
    y = packed @ gemv.asarray(x, device="opencl:0")
    assert y.device == "opencl:0"
    assert_same(np.asarray(y), gemv.matmul(a, x))
    assert_same(np.asarray(packed.to_device("opencl:0") @ gemv.asarray(x, device="opencl:0")), gemv.matmul(a, x))


def test_a_scale_is_a_factor(rng):
    blocks = numbers(rng, (3, 64), "float32")
    packed = gemv.Packed.quantize("nvfp4", blocks)
    scaled = gemv.Packed("nvfp4", packed.tobytes(), (3, 64), scale=0.3)
    x, a = numbers(rng, 64, "float32"), packed.dequantize()
    scale = np.float32(0.3)
    assert scaled.scale == float(scale) and packed.scale == 1 and scaled[1:].to_device("cpu").scale == float(scale)
    assert_same(scaled.dequantize(), a)
    assert_same(scaled @ x, gemv.matvec(a, x, alpha=scale))
    assert_same(gemv.matvec(scaled, x, alpha=3), gemv.matvec(a, x, alpha=np.float32(3) * scale))
    out = np.ones(3, "float32")
    assert_same(gemv.matvec(scaled, x, alpha=2, beta=1, out=out), gemv.matvec(a, x, alpha=2 * scale, beta=1, out=np.ones(3, "float32")))
    # With alpha = 0 nothing of it is read, whatever the scale is.
    infinite = gemv.Packed("nvfp4", packed.tobytes(), (3, 64), scale=float("inf"))
    assert (gemv.matvec(infinite, x, alpha=0) == 0).all()


def test_what_is_printed_and_copied(rng):
    packed, _ = weights(rng, 4, 64, "q8_0")
    assert repr(packed) == "gemv.Packed(format='q8_0', shape=(4, 64))"
    assert repr(packed.to_device("cpu")) == "gemv.Packed(format='q8_0', shape=(4, 64), device='cpu')"
    scaled = gemv.Packed("q8_0", packed.tobytes(), (4, 64), scale=0.5)
    assert repr(scaled) == "gemv.Packed(format='q8_0', shape=(4, 64), scale=0.5)"
    assert packed.nbytes == 4 * 68 == packed.to_device("cpu").nbytes
    assert copy.copy(packed) is packed and copy.deepcopy([packed])[0] is packed


def test_empty_ones(rng):
    for shape in ((0, 32), (4, 0), (0, 0)):
        packed = gemv.Packed("q8_0", b"", shape)
        assert packed.dequantize().shape == shape
        for of in (packed, packed.to_device("cpu"), packed.to_device("reference")):
            y = of @ np.ones((shape[1], 2), "float32")
            assert y.shape == (shape[0], 2) and (y == 0).all()


def test_threads(rng):
    packed, a = weights(rng, 300, 2048, "q4_0")
    x = numbers(rng, 2048, "float32")
    expected, found = gemv.matvec(a, x), []

    def work():
        found.extend(np.array_equal(packed @ x, expected) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert len(found) == 40 and all(found)


def test_what_is_refused(rng):
    packed, a = weights(rng, 4, 64, "q8_0")
    x, blocks = numbers(rng, 64, "float32"), packed.tobytes()
    on = packed.to_device("cpu")
    refused = [
        (ValueError, "q4_1.*q8_0, q4_0", lambda: gemv.Packed("q4_1", blocks, (4, 64))),
        (TypeError, "format", lambda: gemv.Packed(8, blocks, (4, 64))),
        (ValueError, "272 bytes.*340", lambda: gemv.Packed("q8_0", blocks, (5, 64))),
        (ValueError, "row of 60", lambda: gemv.Packed("q8_0", blocks, (4, 60))),
        (ValueError, r"\(rows, columns\)", lambda: gemv.Packed("q8_0", blocks, (4, 64, 1))),
        (ValueError, r"\(-4, 64\)", lambda: gemv.Packed("q8_0", blocks, (-4, 64))),
        (ValueError, r"\(4.0, 64\)", lambda: gemv.Packed("q8_0", blocks, (4.0, 64))),
        (ValueError, "can be addressed", lambda: gemv.Packed("q8_0", blocks, (2**62, 64))),
        (ValueError, "shape is missing", lambda: gemv.Packed("q8_0", blocks)),
        (ValueError, "rows of 60 bytes", lambda: gemv.Packed("q8_0", np.zeros((4, 60), np.uint8))),
        (TypeError, "float32.*uint8", lambda: gemv.Packed("q8_0", a, (4, 64))),
        (TypeError, "object.*uint8", lambda: gemv.Packed("q8_0", None, (4, 64))),
        (TypeError, "float64.*float32", lambda: packed @ x.astype("float64")),
        (TypeError, "complex64.*float32", lambda: gemv.matvec(packed, x.astype("complex64"))),
        (ValueError, r"\(4, 64\) and \(4,\)", lambda: packed @ x[:4]),
        (ValueError, r"\(4, 64\) and \(\)", lambda: packed @ np.float32(1)[...]),
        (TypeError, "left.*dequantize", lambda: x[:4] @ packed),
        (TypeError, "left.*dequantize", lambda: packed @ packed),
        (TypeError, "left.*dequantize", lambda: gemv.vecdot(packed, x)),
        (TypeError, "unsupported operand", lambda: packed @ [1.0]),
        (TypeError, "unsupported operand", lambda: [1.0] @ packed),
        (TypeError, "complex", lambda: gemv.matvec(packed, x, alpha=1j)),
        (ValueError, "beta", lambda: gemv.matvec(packed, x, beta=1)),
        (ValueError, r"out has shape \(3,\)", lambda: gemv.matvec(packed, x, out=np.zeros(3, "float32"))),
        (TypeError, "out has entries of float64", lambda: gemv.matvec(packed, x, out=np.zeros(4))),
        (TypeError, "to_device", lambda: gemv.asarray(packed)),
        (TypeError, "dequantize", lambda: np.asarray(packed)),
        (ValueError, "abacus", lambda: packed.to_device("abacus")),
        (ValueError, "pass a name", lambda: packed.to_device(x)),
        (TypeError, "no array", lambda: packed.to_device(3)),
        (ValueError, "host's memory.*on cpu", lambda: on.dequantize()),
        (ValueError, "host's memory.*on cpu", lambda: on.tobytes()),
        (ValueError, "host's memory.*on cpu", lambda: on.to_device("reference")),
        (ValueError, "on cpu.*on reference.*to_device", lambda: on @ gemv.asarray(x, device="reference")),
        (TypeError, "float64.*float32", lambda: gemv.Packed.quantize("q8_0", a.astype("float64"))),
        (ValueError, r"\(64,\)", lambda: gemv.Packed.quantize("q8_0", x)),
        (ValueError, "row of 60", lambda: gemv.Packed.quantize("q8_0", a[:, :60])),
        (ValueError, "weight 5 is NaN", lambda: gemv.Packed.quantize("q8_0", np.where(np.arange(64) == 5, np.float32("nan"), a))),
        (ValueError, "too large", lambda: gemv.Packed.quantize("q4_0", np.full((1, 32), 1e9, "float32"))),
        (TypeError, "packed already", lambda: gemv.Packed.quantize("q8_0", packed)),
        (ValueError, "host's memory", lambda: gemv.Packed.quantize("q8_0", gemv.asarray(a))),
        (TypeError, "no array", lambda: gemv.Packed.quantize("q8_0", [1.0])),
    ]
    for kind, sentence, call in refused:
        with pytest.raises(kind, match=sentence) as e:
            call()
        assert "\n" not in str(e.value)


@pytest.fixture
def files(tmp_path, rng):
    """A file of each kind, and what is in it."""
    from safetensors.numpy import save_file

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    norm, weight = numbers(rng, 64, "float32"), numbers(rng, (2, 3, 64), "float32")
    blocks = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("norm", norm)
    writer.add_tensor("up.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file()
    writer.close()
    half = numbers(rng, (3, 5), BF16)
    codes, scales = rng.integers(0, 256, (2, 32), dtype=np.uint8), rng.integers(100, 120, (2, 2), dtype=np.uint8)
    scalar = np.array(2.5, "float64")
    save_file({"half": half, "scalar": scalar, "l.weight_packed": codes, "l.weight_scale": scales}, tmp_path / "a.safetensors")
    return tmp_path, norm, weight, blocks, half, scalar, codes


def test_files(files, rng):
    folder, norm, weight, blocks, half, scalar, codes = files
    file = gemv.WeightFile(folder / "model.gguf")
    assert file.tensors() == {"norm": ("float32", (64,)), "up.weight": ("q8_0", (2, 3, 64))}
    assert "model.gguf" in repr(file) and "2 tensors" in repr(file)
    assert_same(file.load("norm"), norm)
    packed = file.load("up.weight")
    assert (packed.format, packed.shape, packed.tobytes()) == ("q8_0", (6, 64), blocks.tobytes())
    del file  # its matrices keep it open
    x = numbers(rng, 64, "float32")
    assert_same(packed @ x, gemv.matvec(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0).reshape(6, 64), x))
    assert_same(packed.to_device("cpu")[1:] @ x, (packed @ x)[1:])

    file = gemv.WeightFile(str(folder / "a.safetensors"), gptq_version=2)
    assert file.tensors()["half"] == ("bfloat16", (3, 5)) and file.tensors()["l.weight_packed"] == ("U8", (2, 32))
    assert_same(file.load("half"), half)
    assert file.load("scalar").shape == () and file.load("scalar") == 2.5
    assert file.load("l").format == file.load("l.weight").format == "mxfp4"
    assert file.load("l").shape == (2, 64)


def test_files_that_are_refused(files):
    folder = files[0]
    (folder / "short.gguf").write_bytes((folder / "model.gguf").read_bytes()[:100])
    (folder / "text").write_text("not one of them at all")
    with pytest.raises(FileNotFoundError, match="none.gguf"):
        gemv.WeightFile(folder / "none.gguf")
    for name, sentence in (("short.gguf", "short.gguf: "), ("text", "neither"), (".", "plain file")):
        with pytest.raises(ValueError, match=sentence):
            gemv.WeightFile(folder / name)
    with pytest.raises(TypeError):
        gemv.WeightFile(3)
    file = gemv.WeightFile(folder / "a.safetensors")
    for name, sentence in (("other", 'no tensor "other"'), ("l.weight_scale", "has no .* beside it")):
        with pytest.raises(ValueError, match=sentence):
            file.load(name)
