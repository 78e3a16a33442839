"""SciPy's solvers over `gemv.LinearOperator`: unchanged, and with the same iterates by rows and by columns."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg as linalg
from conftest import BF16, assert_same, numbers

import gemv


@pytest.fixture
def matrices(rng):
    """A positive definite matrix, by rows and by columns, and resident."""
    a = numbers(rng, (60, 60), "float64")
    a = a @ a.T + 60 * np.eye(60)
    return a, [np.ascontiguousarray(a), np.asfortranarray(a), a[::-1, ::-1].copy()[::-1, ::-1], gemv.asarray(a)]


def iterates(solve, operator):
    seen = []
    answer = solve(operator, seen.append)
    return answer, [np.array(of, copy=True) for of in seen]


@pytest.mark.parametrize("name", ["cg", "gmres", "bicgstab", "minres"])
def test_iterates_do_not_depend_on_the_layout(rng, matrices, name):
    a, forms = matrices
    b = numbers(rng, 60, "float64")
    named = {"callback_type": "x", "restart": 3} if name == "gmres" else {}
    named["rtol"] = 1e-9
    solve = lambda op, callback: getattr(linalg, name)(op, b, callback=lambda of: callback(np.copy(of)), **named)[0]
    runs = [iterates(solve, gemv.LinearOperator(form)) for form in forms]
    answer, first = runs[0]
    assert len(first) > 2
    np.testing.assert_allclose(a @ answer, b, rtol=1e-4, atol=1e-4)
    for other, steps in runs[1:]:
        assert len(steps) == len(first)
        for one, two in zip([answer, *first], [other, *steps]):
            assert_same(one, two)


def test_least_squares_and_eigenvalues(rng):
    a, b = numbers(rng, (80, 30), "float64"), numbers(rng, 80, "float64")
    for kind in ("float64", "float32"):
        x = [linalg.lsqr(gemv.LinearOperator(np.array(a, kind, order=order)), b)[0] for order in "CF"]
        assert_same(*x)
        np.testing.assert_allclose(x[0], np.linalg.lstsq(a, b, rcond=None)[0], rtol=1e-3, atol=1e-4)
    u = [linalg.svds(gemv.LinearOperator(np.array(a, order=order)), k=3, v0=np.ones(30))[1] for order in "CF"]
    assert_same(*u)
    np.testing.assert_allclose(np.sort(u[0]), np.linalg.svd(a, compute_uv=False)[:3][::-1], rtol=1e-8)
    s = a.T @ a
    w = [linalg.eigsh(gemv.LinearOperator(np.array(s, order=order)), k=4, v0=np.ones(30))[0] for order in "CF"]
    assert_same(*w)
    np.testing.assert_allclose(np.sort(w[0]), np.linalg.eigvalsh(s)[-4:], rtol=1e-8)
    c = numbers(rng, (80, 30), "complex128")
    x = [linalg.lsqr(gemv.LinearOperator(np.array(c, order=order)), c[:, 0])[0] for order in "CF"]
    assert_same(*x)
    np.testing.assert_allclose(x[0], np.eye(30)[0], atol=1e-5)


@pytest.mark.parametrize("kind", ["float16", BF16, "float32", "float64", "complex64", "complex128"], ids=str)
def test_the_four_products(rng, kind):
    a = numbers(rng, (7, 5), kind)
    for of in (a, np.asfortranarray(a), gemv.asarray(a)):
        op = gemv.LinearOperator(of)
        wide = a.astype(op.dtype)
        tolerance = {"rtol": 1e-5, "atol": 1e-5}
        for vectors in ("int8", "float32", "float64", "complex128"):
            x, y = np.arange(5).astype(vectors), np.arange(7).astype(vectors)
            np.testing.assert_allclose(op.matvec(x), wide @ x, **tolerance)
            np.testing.assert_allclose(op.matvec(x[:, None]), (wide @ x)[:, None], **tolerance)
            np.testing.assert_allclose(op.rmatvec(y), wide.conj().T @ y, **tolerance)
            np.testing.assert_allclose(op.matmat(np.stack([x, x], 1)), wide @ np.stack([x, x], 1), **tolerance)
            np.testing.assert_allclose(op.rmatmat(np.stack([y, y], 1)), wide.conj().T @ np.stack([y, y], 1), **tolerance)
            np.testing.assert_allclose(op.H @ y, wide.conj().T @ y, **tolerance)
            np.testing.assert_allclose(op.T @ y, wide.T @ y, **tolerance)


def test_pickled_and_copied(rng):
    a, x = numbers(rng, (7, 5), "float32"), numbers(rng, 5, "float32")
    op = gemv.LinearOperator(a)
    for other in (pickle.loads(pickle.dumps(op)), copy.copy(op), copy.deepcopy(op)):
        assert type(other) is gemv.LinearOperator and other.shape == (7, 5)
        assert_same(other @ x, op @ x)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"\(3,\)"):
        gemv.LinearOperator(np.ones(3))
    with pytest.raises(TypeError, match="int64"):
        gemv.LinearOperator(np.ones((3, 3), "int64"))
    for no_array in ([[1.0]], "text"):
        with pytest.raises(TypeError, match="no array"):
            gemv.LinearOperator(no_array)
    with pytest.raises(TypeError, match="csr.*toarray"):
        gemv.LinearOperator(scipy.sparse.csr_array(np.ones((3, 3))))
    with pytest.raises(ValueError, match="dimension mismatch"):
        gemv.LinearOperator(np.ones((3, 3))).matvec(np.ones(4))
