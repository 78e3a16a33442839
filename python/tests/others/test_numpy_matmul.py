"""NumPy's own cases of `matmul`, by this library's, in the types that it has."""

import numpy as np
from numpy._core.tests import test_multiarray

import gemv


def matmul(a, b, **named):
    # The last lines of some cases are of bool, whatever the types.
    return np.matmul(a, b, **named) if a.dtype == bool else gemv.matmul(a, b, **named)


class TestMatmul(test_multiarray.MatmulCommon):
    types = "efdFD"
    matmul = staticmethod(matmul)


def test_its_cases_are_there():
    assert len([name for name in dir(test_multiarray.MatmulCommon) if name.startswith("test_")]) >= 7
