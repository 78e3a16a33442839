"""NumPy's namespace of the array API with this library's `matmul`, `vecdot` and `matvec`, for array-api-tests.

The standard promotes types; this library asks for one type, or a pair that it has. So operands of other pairs are promoted
here first. Products of integers are NumPy's.
"""

import numpy as np
from numpy import *  # noqa: F403
from numpy import linalg as _linalg

import gemv

__array_api_version__ = "2024.12"


def _promoted(function):
    def call(x1, x2, /, **named):
        dtype = np.result_type(x1, x2)
        if dtype.kind not in "fc":
            return getattr(np, function.__name__)(x1, x2, **named)
        if x1.dtype == x2.dtype or {x1.dtype, x2.dtype} == {np.dtype("f4"), np.dtype("f8")}:
            return function(x1, x2, **named)
        return function(x1.astype(dtype), x2.astype(dtype), **named)

    return call


matmul = _promoted(gemv.matmul)
matvec = _promoted(gemv.matvec)
vecdot = _promoted(gemv.vecdot)


def matrix_transpose(x, /):
    """By a resident array where it is one."""
    if x.ndim in (2, 3) and x.dtype.kind in "fc" and x.dtype.char in "fdFD":
        return np.asarray(gemv.asarray(x).mT)
    return np.matrix_transpose(x)


class linalg:
    """The extension's names are the same functions."""


for _name in dir(_linalg):
    if not _name.startswith("_"):
        setattr(linalg, _name, staticmethod(getattr(_linalg, _name)))
linalg.matmul, linalg.vecdot = staticmethod(matmul), staticmethod(vecdot)
linalg.matrix_transpose = staticmethod(matrix_transpose)
