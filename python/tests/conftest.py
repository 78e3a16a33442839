"""What the tests share: arrays of every type and layout, and the command `gemv`."""

import os
import subprocess

import ml_dtypes
import numpy as np
import pytest

BF16 = np.dtype(ml_dtypes.bfloat16)
#: A matrix' type and its vectors'.
TYPES = [
    ("float16", "float16"),
    (BF16, BF16),
    ("float32", "float32"),
    ("float64", "float64"),
    ("complex64", "complex64"),
    ("complex128", "complex128"),
    ("float16", "float32"),
    (BF16, "float32"),
    ("float32", "float64"),
]


def numbers(rng, shape, dtype):
    """Random numbers of a type."""
    dtype = np.dtype(dtype)
    parts = rng.standard_normal(shape)
    if dtype.kind == "c":
        parts = parts + 1j * rng.standard_normal(shape)
    return parts.astype(dtype)


def bits(array):
    """An array by its bytes, so that equal means the same bits."""
    return np.ascontiguousarray(array).view(np.uint8)


def assert_same(one, other):
    assert one.dtype == other.dtype and one.shape == other.shape
    assert np.array_equal(bits(one.reshape(-1)), bits(other.reshape(-1)))


@pytest.fixture
def rng():
    return np.random.default_rng(50)


@pytest.fixture
def command(tmp_path):
    """The product by the command ``gemv dot``."""
    program = os.environ["GEMV_COMMAND"]

    def dot(a, x):
        np.save(tmp_path / "a.npy", a)
        np.save(tmp_path / "x.npy", x)
        args = ["dot", "a.npy", "x.npy", "-o", "y.npy", "--device", "cpu"]
        subprocess.run([program, *args], cwd=tmp_path, check=True)
        return np.load(tmp_path / "y.npy").view(x.dtype)

    return dot
