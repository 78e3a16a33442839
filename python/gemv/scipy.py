"""Matrices as SciPy's solvers take them."""

from __future__ import annotations

import numpy as np
from scipy.sparse import linalg

from ._gemv import Array, asarray, matmul

__all__ = ["LinearOperator"]


class LinearOperator(linalg.LinearOperator):
    """A dense matrix as an operator of ``scipy.sparse.linalg``, whose products have one answer.

    A solver's iterates are then the same by rows and by columns, on every device and for any number of threads.

    Parameters
    ----------
    a : array, shape (m, n)
        Of any library, in the host's memory, or a resident :class:`gemv.Array`. It is not copied, whatever its strides,
        unless a solver's vectors are of a wider type that it has no product with: complex128 for a matrix of complex64,
        float64 for one of half precision.

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
        if not (hasattr(a, "shape") and hasattr(a, "dtype")):
            raise TypeError(f"LinearOperator: a {type(a).__name__} is no array: pass numpy.asarray of it")
        if len(a.shape) != 2:
            raise ValueError(f"LinearOperator: the array has shape {tuple(a.shape)}, and a matrix has two axes")
        self._name = str(a.dtype).removeprefix("torch.")
        # Solvers know no half precision: their vectors are of the type in which it is summed.
        kind = np.dtype(np.float32 if self._name in _HALF else self._name)
        super().__init__(kind, tuple(a.shape))
        self.a = a
        self._turned = a.mT if isinstance(a, Array) else a.T
        self._copies = {}
        # What refuses a matrix does so here, not inside of a solver: nothing is read.
        matmul(a, np.zeros((self.shape[1], 0), kind))

    def __reduce__(self):
        return type(self), (self.a,)

    def _matvec(self, x):
        return self._product(x.reshape(-1), False)

    def _matmat(self, x):
        return self._product(x, False)

    def _rmatvec(self, x):
        return self._adjoint_product(x.reshape(-1))

    def _rmatmat(self, x):
        return self._adjoint_product(x)

    def _adjoint_product(self, x):
        # The conjugate of the vectors, not of the matrix.
        return self._product(np.conj(x), True).conj()

    def _adjoint(self):
        return linalg.LinearOperator(
            self.shape[::-1],
            matvec=self._rmatvec,
            rmatvec=self._matvec,
            matmat=self._rmatmat,
            rmatmat=self._matmat,
            dtype=self.dtype,
        )

    def _product(self, x, turned):
        """The product with vectors of whatever type a solver has."""
        x = np.asarray(x)
        if x.dtype.kind == "c" and self.dtype.kind != "c":
            # A real matrix times each part.
            re, im = self._product(x.real, turned), self._product(x.imag, turned)
            y = np.empty(re.shape, np.result_type(re.dtype, np.complex64))
            y.real, y.imag = re, im
            return y
        kind = np.result_type(self.dtype, x.dtype) if x.dtype.kind in "fc" else self.dtype
        return np.asarray(matmul(self._matrix(kind, turned), x.astype(kind, copy=False)))

    def _matrix(self, kind, turned):
        """The matrix for vectors of this type: a wider copy, made once, of those that have no product with them."""
        of = np.float32 if self._name in _HALF else np.complex128
        if kind == self.dtype or self.dtype == np.float32 and self._name not in _HALF:
            return self._turned if turned else self.a
        if "wide" not in self._copies:
            wide = np.asarray(self.a).astype(of)
            on_device = isinstance(self.a, Array)
            self._copies["wide"] = asarray(wide, device=self.a.device) if on_device else wide
        wide = self._copies["wide"]
        return wide.T if turned else wide


_HALF = ("float16", "bfloat16")
