"""JAX: arrays by DLPack, and products inside of its transformations."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gemv
import gemv.jax

jax.config.update("jax_enable_x64", True)
KINDS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


def random(seed, shape, kind):
    return jax.random.normal(jax.random.key(seed), shape, "float32").astype(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_outside_of_jit(kind):
    a, x = random(0, (30, 500), kind), random(1, 500, kind)
    y = gemv.matvec(a, x)
    assert isinstance(y, jax.Array) and y.dtype == x.dtype
    assert (np.asarray(y) == gemv.matvec(np.asarray(a), np.asarray(x))).all()
    with pytest.raises(ValueError, match="read-only"):
        gemv.matvec(a, x, out=y)


@pytest.mark.parametrize("kind", KINDS)
def test_inside_of_jit(kind):
    a, x, b = random(0, (300, 500), kind), random(1, 500, kind), random(2, (500, 3), kind)
    y, z = gemv.jax.matvec(a, x), gemv.jax.matmul(a, b)
    assert (jax.jit(gemv.jax.matvec)(a, x) == y).all()
    assert (jax.jit(gemv.jax.matmul)(a, b) == z).all()
    assert (jax.jit(lambda a, x: gemv.jax.matvec(a, 2 * x) + 1)(a, x) == gemv.jax.matvec(a, 2 * x) + 1).all()


def test_large_operands_of_a_callback_do_not_wait_for_ever():
    a, x = random(0, (2000, 3000), "float32"), random(1, 3000, "float32")
    y = jax.jit(lambda a, x: gemv.jax.matvec(jnp.sin(a), jnp.cos(x)))(a, x)
    assert y.shape == (2000,) and jnp.isfinite(y).all()


def test_batches_and_vmap():
    a, x = random(0, (6, 4, 300), "float32"), random(1, (6, 300), "float32")
    each = jnp.stack([gemv.jax.matvec(a[i], x[i]) for i in range(6)])
    assert (gemv.jax.matvec(a, x) == each).all()
    assert (jax.vmap(gemv.jax.matvec)(a, x) == each).all()
    assert (jax.jit(jax.vmap(gemv.jax.matvec, (0, None)))(a, x[0])[2] == gemv.jax.matvec(a[2], x[0])).all()
    assert (jax.vmap(gemv.jax.matvec, (None, 0))(a, x[:, None])[3, :, 0] == gemv.jax.matvec(a, x[3][None])[:, 0]).all()
    b = random(2, (300, 2), "float32")
    assert (jax.vmap(gemv.jax.matmul, (0, None))(a, b)[1] == gemv.jax.matmul(a[1], b)).all()


def test_gradients():
    from jax.test_util import check_grads

    a, x, b = random(0, (4, 5), "float64"), random(1, 5, "float64"), random(2, (5, 3), "float64")
    check_grads(gemv.jax.matvec, (a, x), order=2, modes=["rev"])
    check_grads(gemv.jax.matmul, (a, b), order=2, modes=["rev"])
    check_grads(gemv.jax.matvec, (a, jnp.stack([x, 2 * x])), order=1, modes=["rev"])
    half = jax.grad(lambda a: gemv.jax.matvec(a, x.astype("float32")).sum())(a.astype("bfloat16"))
    assert half.dtype == jnp.bfloat16


@pytest.mark.parametrize("kinds", [("float64", "float32"), ("float32", "float64"), ("float32", "bfloat16")])
def test_two_types_inside_of_jit(kinds):
    a, x, b = random(0, (30, 50), kinds[0]), random(1, 50, kinds[1]), random(2, (50, 3), kinds[1])
    for function, other in ((gemv.jax.matvec, x), (gemv.jax.matmul, b)):
        y = function(a, other)
        assert y.dtype == ("float64" if "float64" in kinds else "float32")
        inside = jax.jit(function)(a, other)
        assert inside.dtype == y.dtype and (inside == y).all()
        gradients = jax.jit(jax.grad(lambda a, other: function(a, other).sum(), (0, 1)))(a, other)
        assert [of.dtype for of in gradients] == [a.dtype, other.dtype]


def test_two_threads_inside_of_jit():
    """With the setting that the page names. Without it JAX may wait for ever, whatever the call back computes."""
    import subprocess
    import sys

    code = """
import threading
import jax, jax.numpy as jnp
jax.config.update("jax_cpu_enable_async_dispatch", False)
import gemv.jax
f = jax.jit(lambda a, x: gemv.jax.matvec(jnp.sin(a), jnp.cos(x)))
a, x = jnp.ones((500, 700)), jnp.ones(700)
y, right = f(a, x), []
def work():
    right.append(all((f(a, x) == y).all() for _ in range(20)))
threads = [threading.Thread(target=work) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(right)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[True, True]", done.stderr


def test_what_is_wrong_is_said():
    a, x = random(0, (3, 4), "float32"), random(1, 5, "float32")
    with pytest.raises(ValueError, match=r"\(3, 4\).*\(5,\)"):
        jax.jit(gemv.jax.matvec)(a, x)
    with pytest.raises(TypeError, match="int"):
        gemv.jax.matvec(jnp.ones((3, 4), int), jnp.ones(4, int))
    for function, shapes in ((gemv.jax.matvec, ((3, 4), 4)), (gemv.jax.matmul, ((3, 4), (4, 2)))):
        for kinds in (("int32", "int32"), ("float16", "float64"), ("complex64", "float32")):
            one, other = (jnp.ones(shape, kind) for shape, kind in zip(shapes, kinds))
            for of in (function, jax.jit(function)):
                with pytest.raises(TypeError, match=" and ".join(kinds)):
                    of(one, other)
    with pytest.raises(TypeError, match="gemv.jax"):
        jax.jit(gemv.matvec)(a, x[:4])  # of a value that is not there yet


@pytest.mark.parametrize("of", [gemv.jax.matvec, gemv.jax.matmul], ids=["matvec", "matmul"])
def test_examples(of):
    parsed = doctest.DocTestParser().get_doctest(of.__doc__, {}, of.__name__, None, None)
    assert parsed.examples and doctest.DocTestRunner().run(parsed).failed == 0
