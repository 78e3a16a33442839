"""Matrices as SciPy's solvers take them."""

from __future__ import annotations

import numpy as np
from scipy.sparse import linalg

from ._gemv import Array, matmul

__all__ = ["LinearOperator"]


class LinearOperator(linalg.LinearOperator):
    """A dense matrix as an operator of ``scipy.sparse.linalg``, whose products have one answer.

    A solver's iterates are then the same by rows and by columns, on every device and for any number of threads.

    Parameters
    ----------
    a : array, shape (m, n)
        Of any library, in the host's memory, or a resident :class:`gemv.Array`. It is not copied, whatever its strides.

    Raises
    ------
    ValueError
        If it has not two axes, or is in the memory of a GPU and no :class:`gemv.Array`.
    TypeError
        If it is no array, or there is no product of its element type.

    Examples
    --------
    >>> import numpy as np, gemv
    >>> from scipy.sparse.linalg import cg
    >>> a = np.array([[4.0, 1.0], [1.0, 3.0]])
    >>> x, info = cg(gemv.LinearOperator(a), np.array([1.0, 2.0]))
    >>> info, np.round(x, 3)
    (0, array([0.091, 0.636]))
    """

    # Such an operator is made by its class, not by what SciPy's takes.
    def __new__(cls, a):
        return object.__new__(cls)

    def __init__(self, a):
        if len(a.shape) != 2:
            raise ValueError(f"LinearOperator: the array has shape {tuple(a.shape)}, and a matrix has two axes")
        # What refuses a matrix does so here, not inside of a solver. Of no rows, nothing is read.
        kind = _dtype(a)
        super().__init__(kind, tuple(a.shape))
        self.a = a
        self._turned = a.mT if isinstance(a, Array) else a.T
        # Vectors of another type are converted; those of float64 times a matrix of float32 need not be.
        self._wide = np.dtype(np.float64) if kind == np.float32 else kind
        _product(self, self.a, np.zeros((self.shape[1], 0), kind))

    def _matvec(self, x):
        return _product(self, self.a, x.reshape(-1))

    def _matmat(self, x):
        return _product(self, self.a, x)

    def _rmatvec(self, x):
        return self._adjoint_product(x.reshape(-1))

    def _rmatmat(self, x):
        return self._adjoint_product(x)

    def _adjoint_product(self, x):
        # The conjugate of the vectors, not of the matrix.
        return _product(self, self._turned, x.conj()).conj()

    def _adjoint(self):
        return linalg.LinearOperator(
            self.shape[::-1],
            matvec=self._rmatvec,
            rmatvec=self._matvec,
            matmat=self._rmatmat,
            rmatmat=self._matmat,
            dtype=self.dtype,
        )


def _dtype(a):
    """The element type as SciPy's solvers know it: that of products with vectors of float32 for half precision."""
    name = str(a.dtype).removeprefix("torch.")
    return np.dtype(np.float32 if name in ("float16", "bfloat16") else name)


def _product(operator, a, x):
    """The product with vectors of whatever type a solver has."""
    kind, x = operator.dtype, np.asarray(x)
    if kind.kind != "c" and x.dtype.kind == "c":
        # A real matrix times each part.
        y = np.empty((a.shape[0], *x.shape[1:]), np.result_type(kind, x.dtype))
        y.real, y.imag = _product(operator, a, x.real), _product(operator, a, x.imag)
        return y
    if x.dtype not in (kind, operator._wide):
        x = x.astype(np.result_type(kind, x.dtype) if x.dtype.kind in "fc" else kind)
        if x.dtype not in (kind, operator._wide):
            x = x.astype(operator._wide)
    if x.dtype != kind and str(a.dtype).removeprefix("torch.") in ("float16", "bfloat16"):
        x = x.astype(kind)
    return np.asarray(matmul(a, x))
