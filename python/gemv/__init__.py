"""Matrix-vector products with one answer: the same bits on every device, for every layout, on one thread or many.

``matvec``, ``matmul`` and ``vecdot`` have the array API's meaning and take arrays of any library: NumPy's, and those that
are lent by DLPack or ``__array_interface__``. ``asarray`` keeps a matrix on a device. ``Packed`` is a matrix of packed weights, and
``WeightFile`` a file of them. ``gemv.torch`` registers operators of
PyTorch, ``gemv.jax`` has products for ``jax.jit``, and ``LinearOperator`` is for SciPy's solvers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ._gemv import Array, Packed, WeightFile, __version__, asarray, matmul, matvec, vecdot
from ._gemv import __order_version__, _devices

__all__ = [
    "Array",
    "Device",
    "LinearOperator",
    "Packed",
    "WeightFile",
    "asarray",
    "devices",
    "matmul",
    "matvec",
    "order_version",
    "vecdot",
]

#: The version of the order of additions, on which the bits of every result depend.
order_version: int = __order_version__


class Device(NamedTuple):
    """A line of :func:`devices`: a device, or a backend without any."""

    #: What ``asarray(.., device=..)`` takes; of a backend without devices, its name.
    id: str
    #: Why it cannot be used, in one sentence; None if it can.
    why_not: str | None
    name: str = ""
    #: Cores or multiprocessors.
    units: int = 0
    #: Bytes, where they are known.
    memory: int | None = None
    driver: str = ""


def devices() -> list[Device]:
    """Every device of the machine, and for a backend without any, why.

    The first that can be used is where products of host arrays are computed, or what ``GEMV_BACKEND`` names.

    >>> import gemv
    >>> gemv.devices()[0].id
    'cpu'
    """
    return [Device(**line) for line in _devices()]


def __getattr__(name: str) -> Any:
    # SciPy is needed by those who ask for it.
    if name == "LinearOperator":
        from .scipy import LinearOperator

        return LinearOperator
    raise AttributeError(f"module 'gemv' has no attribute {name!r}")
