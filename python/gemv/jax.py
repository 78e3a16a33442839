"""Products for JAX, inside of ``jax.jit`` and outside.

Outside, arrays on the CPU are lent by DLPack, and nothing is copied. Inside of ``jit`` a product is a call back to Python
(``jax.pure_callback``), on the CPU whatever the device of the arrays: it costs some tens of microseconds, and the copy of
the operands if they are on a GPU. Both have gradients and rules for ``vmap``. Outside, an array on a GPU is refused: pass
``jax.device_put(x, jax.devices("cpu")[0])``.

Where several threads of Python run compiled programs on the CPU, JAX may wait for ever for an operand of a call back (its
issues 24255 and 25861). Have it wait for each program, before its first use::

    jax.config.update("jax_cpu_enable_async_dispatch", False)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from . import _gemv
from ._gemv import _MIXED, _TYPES

__all__ = ["matmul", "matvec"]


def _on_host(function):
    def call(a, x):
        return np.asarray(function(np.asarray(a), np.asarray(x)))

    return call


_MATVEC, _MATMUL = _on_host(_gemv.matvec), _on_host(_gemv.matmul)


def _result_type(a, x):
    """The name of the type of a product, in either order; None if there is none."""
    a, x = a.dtype.name, x.dtype.name
    if a == x:
        return a if a in _TYPES else None
    return next((x_type for a_type, x_type in _MIXED if {a, x} == {a_type, x_type}), None)


def _product(call, direct, a, x, shape):
    if not any(isinstance(of, jax.core.Tracer) for of in (a, x)):
        return direct(a, x)
    result = jax.ShapeDtypeStruct(shape, jnp.dtype(_result_type(a, x)))
    return jax.pure_callback(call, result, a, x, vmap_method="expand_dims")


def _same_rank(a, x, behind):
    """With as many axes of a batch in front of both."""
    batch = max(a.ndim - 2, x.ndim - behind)
    return (
        a.reshape((1,) * (batch + 2 - a.ndim) + a.shape),
        x.reshape((1,) * (batch + behind - x.ndim) + x.shape),
    )


@jax.custom_vjp
def _matvec(a, x):
    shape = (*jnp.broadcast_shapes(a.shape[:-2], x.shape[:-1]), a.shape[-2])
    return _product(_MATVEC, _gemv.matvec, a, x, shape)


def _matvec_forward(a, x):
    return _matvec(a, x), (a, x)


def _matvec_backward(saved, g):
    a, x = saved
    # JAX's convention: without the conjugate.
    ga = (g[..., :, None] * x[..., None, :]).astype(a.dtype)
    gx = _matvec(jnp.swapaxes(a, -1, -2), g).astype(x.dtype)
    return _summed(ga, a.shape), _summed(gx, x.shape)


_matvec.defvjp(_matvec_forward, _matvec_backward)


@jax.custom_vjp
def _matmul(a, b):
    shape = (*jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    return _product(_MATMUL, _gemv.matmul, a, b, shape)


def _matmul_forward(a, b):
    return _matmul(a, b), (a, b)


def _matmul_backward(saved, g):
    a, b = saved
    ga = _matmul(g, jnp.swapaxes(b, -1, -2)).astype(a.dtype)
    gb = _matmul(jnp.swapaxes(a, -1, -2), g).astype(b.dtype)
    return _summed(ga, a.shape), _summed(gb, b.shape)


_matmul.defvjp(_matmul_forward, _matmul_backward)


def _summed(gradient, shape):
    """The gradient of an operand that was broadcast."""
    axes = tuple(axis for axis, (wide, own) in enumerate(zip(gradient.shape, shape)) if wide != own)
    return gradient.sum(axes, keepdims=True) if axes else gradient


def _check(name, a, x, fits, form):
    if not fits:
        raise ValueError(f"{name}: shapes {a.shape} and {x.shape} do not fit: {form}")
    if _result_type(a, x) is None:
        raise TypeError(
            f"{name}: {a.dtype.name} and {x.dtype.name} have no product: both are of one of {', '.join(_TYPES)}, "
            f"or {', or '.join(' with '.join(pair) for pair in _MIXED)}"
        )


def matvec(a, x):
    """The product of matrices (..., m, n) and vectors (..., n), as :func:`gemv.matvec`.

    Raises
    ------
    ValueError, TypeError
        As :func:`gemv.matvec`, and while a program is traced. ValueError if an array is on a GPU outside of ``jit``.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, gemv.jax
    >>> a, x = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1.0, -1.0])
    >>> jax.jit(gemv.jax.matvec)(a, x).tolist()
    [-1.0, -1.0]
    """
    a, x = jnp.asarray(a), jnp.asarray(x)
    fits = a.ndim >= 2 and x.ndim >= 1 and a.shape[-1] == x.shape[-1]
    _check("matvec", a, x, fits, "(..., m, n) and (..., n) give (..., m)")
    return _matvec(*_same_rank(a, x, 1))


def matmul(a, b):
    """The product of matrices (..., m, n) and (..., n, k), as :func:`gemv.matmul`.

    Raises
    ------
    ValueError, TypeError
        As :func:`gemv.matmul`, and while a program is traced. ValueError if an array is on a GPU outside of ``jit``.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, gemv.jax
    >>> a = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> jax.jit(gemv.jax.matmul)(a, a).tolist()
    [[7.0, 10.0], [15.0, 22.0]]
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    fits = a.ndim >= 2 and b.ndim >= 2 and a.shape[-1] == b.shape[-2]
    _check("matmul", a, b, fits, "(..., m, n) and (..., n, k) give (..., m, k)")
    return _matmul(*_same_rank(a, b, 2))
