"""Products of NumPy arrays: bits, layouts, results, and what is refused."""

import ctypes
import multiprocessing
import os
import threading
import time

import numpy as np
import pytest
from conftest import BF16, TYPES, assert_same, numbers

import gemv


def layouts(rng, m, n, dtype):
    """Matrices of one shape, each with memory of its own kind."""
    whole = numbers(rng, (2 * m + 3, 3 * n + 5), dtype)
    yield "rows", np.ascontiguousarray(whole[:m, :n])
    yield "columns", np.asfortranarray(whole[:m, :n])
    yield "transposed", np.ascontiguousarray(whole[:m, :n].T).T
    yield "padded", whole[1 : m + 1, 2 : n + 2]
    yield "steps", whole[: 2 * m : 2, : 3 * n : 3]
    yield "backwards", whole[m - 1 :: -1, n - 1 :: -1] if m * n else whole[:m, :n]
    yield "repeated rows", np.broadcast_to(whole[0, :n], (m, n))
    yield "repeated columns", np.broadcast_to(whole[:m, :1], (m, n))


SHAPES = [(1, 1), (3, 5), (64, 64), (7, 300), (130, 66)]


@pytest.mark.parametrize("kinds", TYPES, ids=str)
def test_a_view_has_the_bits_of_a_copy(rng, kinds):
    """Five shapes in eight layouts with two of x, in nine pairs of types: 720 products."""
    for m, n in SHAPES:
        steps = numbers(rng, 2 * n, kinds[1])
        for name, a in layouts(rng, m, n, kinds[0]):
            for x in (steps[:n].copy(), steps[::-2]):
                expected = gemv.matvec(np.array(a, order="C", copy=True), np.array(x, copy=True))
                assert expected.dtype == x.dtype and expected.shape == (m,)
                assert_same(gemv.matvec(a, x), expected)
                assert_same(gemv.matmul(a, x[:, None])[:, 0], expected)


@pytest.mark.parametrize("kinds", TYPES, ids=str)
def test_the_command_has_the_same_bits(rng, command, kinds):
    for m, n in ((3, 700), (65, 130)):
        views = dict(layouts(rng, m, n, kinds[0]))
        x = numbers(rng, 3 * n, kinds[1])[::3]
        for name in ("steps", "backwards"):
            assert_same(gemv.matvec(views[name], x), command(np.ascontiguousarray(views[name]), np.ascontiguousarray(x)))


def test_values_are_right(rng):
    a, x = numbers(rng, (50, 70), "float64"), numbers(rng, 70, "float64")
    np.testing.assert_allclose(gemv.matvec(a, x), a @ x, rtol=1e-12)
    z, w = numbers(rng, (50, 70), "complex128"), numbers(rng, 70, "complex128")
    np.testing.assert_allclose(gemv.matvec(z, w), z @ w, rtol=1e-12)
    np.testing.assert_allclose(gemv.vecdot(z, w), np.array([np.vdot(row, w) for row in z]), rtol=1e-12)


@pytest.mark.parametrize(
    "one, other",
    [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (6, 4, 5)),
        ((4,), (2, 3, 4, 5)),
        ((2, 3, 4), (4,)),
        ((0, 4), (4, 5)),
        ((3, 0), (0, 5)),
        ((3, 4), (4, 0)),
        ((0, 3, 4), (1, 4, 5)),
        ((2, 3, 1, 4), (1, 3, 4, 1)),
    ],
)
def test_matmul_has_numpys_shapes(rng, one, other):
    a, b = numbers(rng, one, "float64"), numbers(rng, other, "float64")
    y = gemv.matmul(a, b)
    np.testing.assert_allclose(y, np.matmul(a, b), rtol=1e-12, atol=1e-13)
    assert np.shape(y) == np.matmul(a, b).shape
    z = np.moveaxis(np.stack([a, a]), 0, -1)[..., 0]  # strides of two entries
    np.testing.assert_array_equal(gemv.matmul(z, b), y)


def test_each_column_has_the_bits_of_its_own_product(rng):
    for kind in ("float32", "complex64"):
        a, b = numbers(rng, (33, 500), kind), numbers(rng, (500, 9), kind)
        y = gemv.matmul(a, b)
        for column in range(9):
            assert_same(y[:, column].copy(), gemv.matvec(a, b[:, column]))
        stack = np.stack([a, a[::-1], 2 * a])
        for entry, matrix in zip(gemv.matvec(stack, b[:, 0]), stack):
            assert_same(entry.copy(), gemv.matvec(matrix, b[:, 0]))


def test_a_wider_matrix_times_narrower_vectors(rng):
    a, x = numbers(rng, (20, 600), "float64"), numbers(rng, (600, 3), "float32")
    expected = gemv.matmul(a, x.astype("float64"))
    assert_same(gemv.matmul(a, x), expected)
    assert_same(gemv.matvec(a, x[:, 1]), expected[:, 1].copy())
    assert_same(gemv.matmul(x.T, a.T), np.ascontiguousarray(expected.T))
    assert gemv.vecdot(a[0], x[:, 0]) == expected[0, 0] == gemv.vecdot(x[:, 0], a[0])


def test_vecdot_takes_axes_and_batches(rng):
    a, b = numbers(rng, (3, 4, 5), "complex128"), numbers(rng, (4, 1, 5), "complex128")
    np.testing.assert_allclose(gemv.vecdot(a, b[:, 0]), (a.conj() * b[:, 0]).sum(-1), rtol=1e-12)
    np.testing.assert_allclose(gemv.vecdot(a, a, axis=-2), (a.conj() * a).sum(-2), rtol=1e-12)
    assert isinstance(gemv.vecdot(a[0, 0], a[0, 0]), np.complex128)


def test_factors_and_out(rng):
    a, x, y = (numbers(rng, of, "float64") for of in ((30, 40), 40, 60))
    out = y[::2]
    expected = 2.5 * gemv.matvec(a, x)
    assert gemv.matvec(a, x, alpha=2.5, out=out) is out
    np.testing.assert_array_equal(out, expected)
    before, kept = out.copy(), y[1::2].copy()
    gemv.matvec(a, x, alpha=-1, beta=np.float32(0.5), out=out)
    np.testing.assert_allclose(out, 0.5 * before - a @ x, rtol=1e-12)
    np.testing.assert_array_equal(y[1::2], kept)  # what lies between stays
    z, w = numbers(rng, (3, 4), "complex64"), numbers(rng, 4, "complex64")
    np.testing.assert_allclose(gemv.matvec(z, w, alpha=2 - 1j), (2 - 1j) * (z @ w), rtol=1e-5)
    full = np.full((3, 2), np.nan, "complex64").T
    gemv.matmul(np.stack([w, w]), z.T, out=full)  # beta is 0: not read
    assert np.isfinite(full).all()


def test_memory_that_cannot_be_written_is_read(rng, tmp_path):
    a, x = numbers(rng, (20, 30), "float32"), numbers(rng, 30, "float32")
    expected = gemv.matvec(a, x)
    np.save(tmp_path / "a.npy", a)
    assert_same(gemv.matvec(np.load(tmp_path / "a.npy", mmap_mode="r"), x), expected)
    a.flags.writeable = x.flags.writeable = False
    assert_same(gemv.matvec(a, x), expected)


REFUSED = {
    "shapes": (ValueError, r"\(3, 4\).*\(5,\)", lambda a, x: gemv.matvec(a, np.ones(5))),
    "axes": (ValueError, r"\(4,\)", lambda a, x: gemv.matvec(x, x)),
    "batches": (ValueError, r"\(2, 3, 4\).*\(5, 4\)", lambda a, x: gemv.matvec(np.ones((2, 3, 4)), np.ones((5, 4)))),
    "many axes": (ValueError, "9 axes", lambda a, x: gemv.matvec(np.ones((1,) * 9), x)),
    "numbers": (ValueError, r"\(\)", lambda a, x: gemv.matmul(np.ones(()), x)),
    "axis": (ValueError, "axis -2", lambda a, x: gemv.vecdot(x, x, axis=-2)),
    "integers": (TypeError, "int64.*astype", lambda a, x: gemv.matvec(a.astype("int64"), x)),
    "bool": (TypeError, "bool", lambda a, x: gemv.matvec(a > 0, x)),
    "longdouble": (TypeError, "longdouble|float128", lambda a, x: gemv.matvec(a.astype("longdouble"), x)),
    "objects": (TypeError, "object", lambda a, x: gemv.matvec(a.astype(object), x)),
    "byte order": (TypeError, "byte order", lambda a, x: gemv.matvec(a.astype(">f8"), x)),
    "types": (TypeError, "float32 and complex128.*complex128", lambda a, x: gemv.matvec(a.astype("f4"), x.astype("c16"))),
    "half": (TypeError, "float16 and float64", lambda a, x: gemv.matvec(a.astype("f2"), x)),
    "list": (TypeError, "list", lambda a, x: gemv.matvec([[1.0]], [1.0])),
    "mask": (TypeError, "mask", lambda a, x: gemv.matvec(np.ma.masked_array(a, a > 1), x)),
    "alpha": (TypeError, "alpha", lambda a, x: gemv.matvec(a, x, alpha=1j)),
    "alpha of NumPy": (TypeError, "alpha is complex", lambda a, x: gemv.matvec(a, x, alpha=np.complex64(1j))),
    "out's byte order": (TypeError, "byte order.*written where they lie", lambda a, x: gemv.matvec(a, x, out=np.ones(3, ">f8"))),
    "out of integers": (TypeError, "int64.*written where they lie", lambda a, x: gemv.matvec(a, x, out=np.ones(3, "int64"))),
    "text": (TypeError, "alpha", lambda a, x: gemv.matvec(a, x, alpha="2")),
    "beta alone": (ValueError, "out", lambda a, x: gemv.matvec(a, x, beta=1)),
    "out's shape": (ValueError, r"\(4,\).*\(3,\)", lambda a, x: gemv.matvec(a, x, out=np.ones(4))),
    "out's type": (TypeError, "float32.*float64", lambda a, x: gemv.matvec(a, x, out=np.ones(3, "f4"))),
    "out is x": (ValueError, "overlaps", lambda a, x: gemv.matvec(a[:, :3], a[0, :3], out=a[0, :3])),
    "out in a": (ValueError, "overlaps", lambda a, x: gemv.matvec(a, x, out=a[:, 1])),
    "out repeated": (ValueError, "one place", lambda a, x: gemv.matvec(a, x, out=np.lib.stride_tricks.as_strided(np.ones(1), (3,), (0,)))),
    "no such keyword": (TypeError, "gamma", lambda a, x: gemv.matvec(a, x, gamma=1)),
    "by position": (TypeError, "positional", lambda a, x: gemv.matvec(a=a, x=x)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_said(name):
    kind, sentence, call = REFUSED[name]
    a, x = np.arange(12.0).reshape(3, 4), np.arange(4.0)
    with pytest.raises(kind, match=sentence) as caught:
        call(a, x)
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(a, np.arange(12.0).reshape(3, 4))


def test_read_only_out_is_refused(rng):
    out = np.zeros(3)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        gemv.matvec(np.ones((3, 2)), np.ones(2), out=out)


def test_fields_of_records_are_refused():
    records = np.zeros(4, dtype=np.dtype({"names": ["v", "w"], "formats": ["<f8", "<f4"], "itemsize": 12}))
    records["v"] = [1, 2, 3, 4]
    for dtype in (records.dtype, np.dtype([("w", "<f4"), ("v", "<f8")], align=False)):
        field = np.zeros(4, dtype)["v"]
        with pytest.raises(ValueError, match="copy"):
            gemv.matvec(np.ones((1, 4)), field)
    assert gemv.matvec(np.ones((1, 4)), records["v"].copy()) == [10]
    # Strides of whole entries are read where they lie.
    aligned = np.zeros(4, np.dtype([("w", "<f8"), ("v", "<f8")]))
    aligned["v"] = [1, 2, 3, 4]
    assert gemv.matvec(np.ones((1, 4)), aligned["v"]) == [10]


def test_numbers_at_odd_addresses_are_refused():
    odd = np.zeros(33, np.uint8)[1:].view("f8")
    with pytest.raises(ValueError, match="boundaries"):
        gemv.matvec(np.ones((1, 4)), odd)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_subclasses_that_mean_their_entries(rng):
    a = numbers(rng, (3, 4), "float64")
    assert type(gemv.matvec(a, np.ones(4).view(np.matrix).A1)) is np.ndarray
    np.testing.assert_array_equal(gemv.matvec(np.asmatrix(a), np.ones(4)), gemv.matvec(a, np.ones(4)))


def test_special_values():
    inf, nan = np.inf, np.nan
    y = gemv.matvec(np.array([[inf, 1.0], [nan, 0.0], [0.0, 0.0], [-0.0, -0.0], [5e-324, 0.0]]), np.array([1.0, 1.0]))
    assert y[0] == inf and np.isnan(y[1]) and y[4] == 5e-324
    empty = gemv.matvec(np.ones((2, 0)), np.ones(0))
    assert_same(empty, np.zeros(2))


def test_threads_share_operands(rng):
    a, x = numbers(rng, (300, 2000), "float64"), numbers(rng, 2000, "float64")
    expected, wrong = gemv.matvec(a, x), []

    def work():
        for _ in range(20):
            if not np.array_equal(gemv.matvec(a, x), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


def times_others_run(work):
    """In how many of five calls another thread of Python runs, well after it has begun and well before it ends."""
    stamps, stop = [], threading.Event()

    def stamp():
        while not stop.is_set():
            stamps.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=stamp)
    thread.start()
    try:
        calls = []
        for _ in range(5):
            begin = time.perf_counter()
            work()
            calls.append((begin, time.perf_counter()))
    finally:
        stop.set()
        thread.join()
    quarters = [(begin + (end - begin) / 4, end - (end - begin) / 4) for begin, end in calls]
    return sum(any(early < stamp < late for stamp in stamps) for early, late in quarters)


def test_other_threads_run_meanwhile(rng):
    """A large product does not keep the interpreter's lock."""
    a, b = np.ones((3000, 3000), "float32"), np.ones((3000, 32), "float32")
    assert times_others_run(lambda: gemv.matmul(a, b)) >= 3
    if os.name == "posix":
        # By a call that keeps the lock: what the test would see.
        assert times_others_run(lambda: ctypes.PyDLL(None).usleep(60_000)) < 3


def test_factors_are_read_before_the_operands():
    """A factor's own code may change an array, whose address is taken after it."""
    a, x = np.ones((2, 3)), np.ones(3)

    class Grows:
        def __float__(self):
            x.resize(4, refcheck=False)
            return 1.0

    with pytest.raises(ValueError, match=r"\(4,\)"):
        gemv.matvec(a, x, alpha=Grows())


def child(a, x, expected, queue):
    queue.put(np.array_equal(gemv.matvec(a, x), expected))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes(rng):
    a, x = numbers(rng, (2000, 2000), "float32"), numbers(rng, 2000, "float32")
    expected = gemv.matvec(a, x)  # by a pool, which the child has not
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(a, x, expected, queue))
    process.start()
    try:
        assert queue.get(timeout=60)
    finally:
        process.kill()
        process.join()


def test_nothing_is_kept():
    """No reference to an operand, a result or a type stays behind."""
    import gc
    import sys

    a, x, short = np.ones((3, 3)), np.ones(3), np.ones(4)

    def counts():
        gc.collect()
        return [sys.getrefcount(of) for of in (a, x, short, x.dtype)]

    def work():
        for _ in range(10):
            y = gemv.matvec(a, x)
            try:
                gemv.matvec(a, short)
            except ValueError:
                pass
        assert sys.getrefcount(y) == 2

    work()
    before = counts()
    work()
    assert counts() == before
