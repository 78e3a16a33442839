"""Arrays of other libraries, and what this one says of itself."""

import copy
import ctypes
import doctest
import inspect
import subprocess
import sys

import numpy as np
import pytest
from conftest import BF16, assert_same, numbers

import gemv


class Lent:
    """An array that is lent by DLPack alone, with a version or, as JAX does, without one."""

    def __init__(self, array, versioned=True, device=(1, 0)):
        self.array, self.versioned, self.device = array, versioned, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, **named):
        if not self.versioned:
            if named:
                raise TypeError("no such argument")
            return self.array.__dlpack__()
        return self.array.__dlpack__(**named)


class Interface:
    def __init__(self, array, name="__array_interface__"):
        self.array = array

    @property
    def __array_interface__(self):
        return self.array.__array_interface__


class OnGpu:
    __cuda_array_interface__ = {"shape": (3, 4), "typestr": "<f8", "data": (1 << 40, False), "version": 3}


@pytest.fixture
def pair(rng):
    a, x = numbers(rng, (30, 50), "float32"), numbers(rng, 50, "float32")
    return a, x, gemv.matvec(a, x)


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack(pair, versioned):
    a, x, expected = pair
    for view, other in ((a, x), (a[::-1, ::2], x[::2]), (a[:, ::-1], x[::-1])):
        y = gemv.matvec(Lent(view, versioned), Lent(other, versioned))
        assert_same(y, gemv.matvec(view, other))
    # Lent arrays are given back.
    before = sys.getrefcount(a)
    gemv.matvec(Lent(a, versioned), x)
    assert sys.getrefcount(a) == before


def test_dlpack_that_may_be_written_is_an_out(pair):
    a, x, expected = pair
    out = np.zeros(30, "float32")
    gemv.matvec(a, x, out=Lent(out))
    assert_same(out, expected)
    with pytest.raises(ValueError, match="read-only"):
        gemv.matvec(a, x, out=Lent(out, versioned=False))


def test_other_devices_are_refused(pair):
    a, x, _ = pair
    for device, what in (((2, 1), "CUDA"), ((4, 0), "OpenCL"), ((10, 0), "ROCm"), ((8, 0), "another")):
        with pytest.raises(ValueError, match=f"{what}.*asarray"):
            gemv.matvec(Lent(a, device=device), x)
    # By the driver: that it is not there, or that there is no memory at the address.
    with pytest.raises(RuntimeError, match="cuda"):
        gemv.matvec(OnGpu(), x)


def test_arrays_of_jax_on_a_gpu_are_refused(pair):
    a, x, _ = pair
    members = {"__module__": "jaxlib._jax", "__dlpack_device__": lambda self: (2, 0), "__dlpack__": None}
    OfJax = type("OfJax", (OnGpu,), members)
    with pytest.raises(ValueError, match=r"jax\.device_put\(a, "):
        gemv.matvec(OfJax(), x)


class LentFloat8(Lent):
    """DLPack's type 10 of 8 bits, in an array of uint8: the code is a byte of the tensor's description."""

    def __dlpack__(self, *, stream=None, **named):
        capsule = self.array.__dlpack__(**named)
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        at = get(capsule, b"dltensor_versioned")
        # Behind the version, the context, the deleter and the flags: an address, the device, and the number of axes.
        code = ctypes.c_uint8.from_address(at + 32 + 8 + 8 + 4)
        assert code.value == 1
        code.value = 10
        return capsule


def test_float8_has_a_name(pair):
    with pytest.raises(TypeError, match="entries of float8_e4m3fn"):
        gemv.matvec(LentFloat8(np.ones((3, 4), "uint8")), pair[1])


def test_array_interface(pair):
    a, x, expected = pair
    assert_same(gemv.matvec(Interface(a), Interface(x)), expected)


class Namespace:
    """A library whose arrays are lent, and which takes NumPy's."""

    class Array(Lent):
        def __array_namespace__(self, api_version=None):
            return Namespace

    @staticmethod
    def from_dlpack(array):
        return Namespace.Array(np.from_dlpack(array))


def test_the_result_is_of_the_vectors_library(pair):
    a, x, expected = pair
    y = gemv.matvec(a, Namespace.Array(x))
    assert type(y) is Namespace.Array
    assert_same(np.asarray(y.array), expected)
    assert type(gemv.matvec(Namespace.Array(a), x)) is np.ndarray
    assert type(gemv.matmul(Namespace.Array(x), a.T)) is Namespace.Array


def test_bfloat16_is_ml_dtypes(rng):
    a, x = numbers(rng, (20, 300), BF16), numbers(rng, 300, BF16)
    y = gemv.matvec(a, x)
    assert y.dtype == BF16
    assert_same(gemv.matvec(a, x.astype("float32")), gemv.matvec(a.astype("float32"), x.astype("float32")))


class TestResident:
    def test_products(self, pair):
        a, x, expected = pair
        A = gemv.asarray(a[::-1, ::-1].T, device="cpu")
        assert (A.shape, A.ndim, A.size, A.device, A.dtype) == ((50, 30), 2, 1500, "cpu", np.float32)
        # In x's library: NumPy's, or resident.
        assert_same(A.T @ x[::-1], expected[::-1].copy())
        resident = A.mT @ gemv.asarray(x[::-1], device="cpu")
        assert type(resident) is gemv.Array
        assert_same(np.asarray(resident), expected[::-1].copy())
        assert_same(x[::-1] @ A, expected[::-1].copy())
        assert_same(gemv.matvec(A.T, x[::-1], alpha=2), 2 * expected[::-1])
        assert_same(np.asarray(A), a[::-1, ::-1].T.copy())
        assert_same(np.asarray(A.T, dtype="float64"), a[::-1, ::-1].astype("float64"))
        out = np.zeros(30, "float32")
        assert_same(gemv.matvec(A.T, x[::-1], out=out), expected[::-1].copy())

    def test_the_result_is_resident_only_if_both_are(self, pair):
        a, x, expected = pair
        A = gemv.asarray(a, device="cpu")
        X = np.stack([x, 2 * x], 1)
        for y, want in ((A @ X, gemv.matmul(a, X)), (X.T @ A.T, gemv.matmul(a, X).T), (x @ A.T, expected)):
            assert type(y) is np.ndarray
            assert_same(y, np.ascontiguousarray(want))
        for y in (a @ gemv.asarray(x, device="cpu"), gemv.matmul(a, gemv.asarray(X, device="cpu"))[:, 0]):
            assert_same(np.ascontiguousarray(y), expected)
        assert type(gemv.asarray(X.T, device="cpu") @ A.T) is gemv.Array

    def test_the_other_operand_gets_its_turn(self, pair):
        A = gemv.asarray(pair[0], device="cpu")

        class Other:
            def __matmul__(self, other):
                return NotImplemented

            def __rmatmul__(self, other):
                return "mine"

        assert A @ Other() == "mine"
        for call in (lambda: Other() @ A, lambda: A @ [1.0], lambda: [1.0] @ A):
            with pytest.raises(TypeError, match="unsupported operand"):
                call()

    def test_a_copy_is_itself(self, pair):
        A = gemv.asarray(pair[0], device="cpu")
        assert copy.copy(A) is A and copy.deepcopy([A])[0] is A

    def test_the_reference_is_a_device(self, pair):
        a, x, expected = pair
        assert_same(gemv.asarray(a, device="reference") @ x, expected)

    def test_batches_and_types(self, rng):
        for kind in ("float16", BF16, "float32", "float64", "complex64", "complex128"):
            a, x = numbers(rng, (3, 5, 70), kind), numbers(rng, (3, 70), kind)
            A = gemv.asarray(a)
            assert A.dtype == np.dtype(kind)
            y = gemv.matvec(A, gemv.asarray(x))
            assert (y.shape, y.dtype) == ((3, 5), np.dtype(kind))
            assert_same(np.asarray(y), gemv.matvec(a, x))
        empty = gemv.asarray(np.ones((0, 4))) @ gemv.asarray(np.ones(4))
        assert np.asarray(empty).shape == (0,)

    def test_dlpack(self, pair):
        a, x, expected = pair
        A = gemv.asarray(a, device="cpu")
        assert A.__dlpack_device__() == (1, 0)
        assert_same(np.from_dlpack(A).copy(), a)
        with pytest.raises(BufferError, match="copy"):
            A.__dlpack__(copy=False)
        with pytest.raises(BufferError, match="dl_device"):
            A.__dlpack__(dl_device=(2, 0))
        with pytest.raises(ValueError, match="copy"):
            A.__array__(copy=False)

    def test_what_is_refused(self, pair):
        a, x, _ = pair
        A = gemv.asarray(a, device="cpu")
        assert gemv.asarray(A, device="cpu") is A
        there = gemv.asarray(A, device="reference")
        assert there.device == "reference"
        with pytest.raises(ValueError, match="cpu and reference|reference and cpu"):
            A @ gemv.asarray(x, device="reference")
        with pytest.raises(ValueError, match="abacus"):
            gemv.asarray(a, device="abacus")
        with pytest.raises(ValueError, match="4 axes"):
            gemv.asarray(np.ones((1, 1, 1, 1)))
        with pytest.raises(TypeError, match="resident"):
            gemv.matvec(A, x, out=gemv.asarray(np.zeros(30, "float32"), device="cpu"))
        with pytest.raises(ValueError, match=r"\(50,\)"):
            gemv.asarray(x).T
        with pytest.raises(ValueError, match=r"\(30, 50\).*\(3,\)"):
            A @ np.ones(3, "float32")


def test_devices():
    lines = {line.id: line for line in gemv.devices()}
    assert lines["cpu"].why_not is None and lines["cpu"].name
    # Nothing is linked: drivers that are not there are a sentence.
    assert all(line.why_not is None or line.why_not.strip() for line in lines.values())
    assert any(id.startswith("cuda") for id in lines) and any(id.startswith("opencl") for id in lines)
    assert gemv.order_version == 1


PUBLIC = [gemv.matvec, gemv.matmul, gemv.vecdot, gemv.asarray, gemv.Array, gemv.devices, gemv.LinearOperator]
PUBLIC += [gemv.Packed, gemv.WeightFile]


@pytest.mark.parametrize("of", PUBLIC, ids=lambda of: of.__name__)
def test_examples_of_the_docstrings(of):
    examples = doctest.DocTestParser().get_doctest(of.__doc__, {}, of.__name__, None, None)
    assert examples.examples
    # A result that is resident is printed with its text.
    assert doctest.DocTestRunner().run(examples).failed == 0


def test_stubs_name_what_there_is():
    import ast
    import pathlib

    tree = ast.parse((pathlib.Path(gemv.__file__).parent / "_gemv.pyi").read_text())
    native = sys.modules["gemv._gemv"]
    stubs = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    names = {name for name in dir(native) if not name.startswith("__")}
    values = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    assert all(name in dir(native) for name in values)
    values = {name for name in values if not name.startswith("__")}
    assert names == values | {name for name in stubs if not name.startswith("_") or name in dir(native)} - {"__all__"}
    for name in ("matvec", "matmul", "vecdot", "asarray"):
        arguments = stubs[name].args
        given = inspect.signature(getattr(native, name)).parameters
        assert [a.arg for a in arguments.posonlyargs] + [a.arg for a in arguments.kwonlyargs] == list(given)
    for of in ("Array", "Packed", "WeightFile"):
        members = {node.name for node in stubs[of].body if isinstance(node, ast.FunctionDef)}
        fields = {node.target.id for node in stubs[of].body if isinstance(node, ast.AnnAssign)}
        own = {name for name in vars(getattr(native, of)) if not name.startswith("__")}
        assert own <= members | fields
        assert all(hasattr(getattr(native, of), name) for name in members | fields)


def test_numpy_is_all_that_is_imported():
    code = "import sys, gemv; print(sorted(m for m in ('torch', 'jax', 'scipy', 'ml_dtypes') if m in sys.modules))"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"
