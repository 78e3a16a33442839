"""PyTorch: tensors, operators, gradients, compilation, and the layer."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import vmap
from torch.library import opcheck

import gemv
import gemv.torch

mv, mm, bmm = torch.ops.gemv.mv, torch.ops.gemv.mm, torch.ops.gemv.bmm

TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
MIXED = [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float32, torch.float64)]
PAIRS = [(of, of) for of in TYPES] + MIXED


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(50)


def views(m, n, dtype):
    whole = torch.randn(2 * m, 3 * n, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)
    yield whole[:m, :n].contiguous()
    yield whole[:m, :n].t().contiguous().t()
    yield whole[:m, :n]
    yield whole[::2, ::3]
    yield whole[0, :n].expand(m, n)
    yield whole[:m, :1].expand(m, n)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_views_have_the_bits_of_numpys_copies(pair):
    for m, n in ((3, 5), (64, 64), (70, 600)):
        for a in views(m, n, pair[0]):
            x = torch.randn(2 * n, dtype=torch.float64).to(pair[1])[::2]
            y = gemv.matvec(a, x)
            assert type(y) is torch.Tensor and y.dtype == x.dtype
            assert torch.equal(y, mv(a, x)) and torch.equal(y, gemv.matvec(a.contiguous(), x.contiguous()))
            assert torch.equal(mm(a, x[:, None])[:, 0], y)
            if torch.bfloat16 not in pair:
                assert np.array_equal(gemv.matvec(a.numpy(), x.numpy()), y.numpy())


def test_out_is_written():
    a, x, out = torch.randn(3, 4), torch.randn(4), torch.zeros(6)[::2]
    assert gemv.matvec(a, x, alpha=2, out=out) is out
    assert torch.equal(out, 2 * mv(a, x))
    with pytest.raises(ValueError, match="overlaps"):
        gemv.matvec(a, x, out=a[:, 1])


def test_the_result_is_of_the_vectors_library():
    a, x = np.ones((3, 4), "f4"), torch.ones(4)
    assert type(gemv.matvec(a, x)) is torch.Tensor
    assert type(gemv.matvec(torch.ones(3, 4), x.numpy())) is np.ndarray
    assert type(gemv.asarray(torch.ones(3, 4)) @ x) is torch.Tensor
    assert gemv.vecdot(x, x).shape == () and gemv.vecdot(x, x).item() == 4


COMPLEX = torch.randn(2, 2, dtype=torch.complex64)
REFUSED = {
    "gradients": (TypeError, "gradients.*detach", lambda: torch.eye(2).requires_grad_()),
    "parameter": (TypeError, "gradients", lambda: torch.nn.Parameter(torch.eye(2))),
    "conjugated": (ValueError, "conjugated.*resolve_conj", lambda: COMPLEX.conj()),
    "negative": (ValueError, "negative.*resolve_neg", lambda: COMPLEX.conj().imag),
    "meta": (ValueError, "meta", lambda: torch.eye(2, device="meta")),
    "sparse": (TypeError, "sparse.*to_dense", lambda: torch.eye(2).to_sparse()),
    "rows": (TypeError, "sparse_csr", lambda: torch.eye(2).to_sparse_csr()),
    "integers": (TypeError, "int64", lambda: torch.eye(2).long()),
    "bool": (TypeError, "bool", lambda: torch.eye(2).bool()),
    "float8": (TypeError, r"float8_e4m3fn.*\.to\(torch\.float64\)", lambda: torch.eye(2).to(torch.float8_e4m3fn)),
    "subclass": (TypeError, "subclass", lambda: torch.eye(2).as_subclass(type("Own", (torch.Tensor,), {}))),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_said(name):
    kind, sentence, make = REFUSED[name]
    a = make()
    x = torch.ones(2, dtype=torch.complex64 if a.dtype.is_complex else torch.float32)
    with pytest.raises(kind, match=sentence) as caught:
        gemv.matvec(a, x)
    assert "\n" not in str(caught.value)
    with pytest.raises(kind, match=sentence):
        gemv.matvec(torch.eye(2, dtype=x.dtype), make()[0] if name != "rows" else a)


def test_operators_refuse():
    a, x = torch.randn(3, 4), torch.randn(4)
    for name, call in (
        ("mv", lambda: mv(a, torch.randn(5))),
        ("mv", lambda: mv(a[None], x)),
        ("mm", lambda: mm(a, x)),
        ("mm", lambda: mm(a, a)),
        ("bmm", lambda: bmm(a[None], torch.randn(2, 4, 1))),
        ("bmm", lambda: bmm(a[None], a[None])),
    ):
        with pytest.raises(ValueError, match=f"^{name}: .*fit"):
            call()
    with pytest.raises(TypeError, match="no product"):
        mv(a.double(), x)


@pytest.mark.parametrize("function", [mv, mm, bmm], ids=["mv", "mm", "bmm"])
def test_a_meta_tensor_and_one_with_entries_are_refused(function):
    shapes = {mv: ((3, 4), (4,)), mm: ((3, 4), (4, 2)), bmm: ((2, 3, 4), (2, 4, 2))}[function]
    for devices in (("meta", "cpu"), ("cpu", "meta")):
        with pytest.raises(RuntimeError, match="meta"):
            function(*(torch.ones(shape, device=device) for shape, device in zip(shapes, devices)))


def test_tensors_without_memory_are_refused():
    """Their storage has no address; the first product of each kind is an ordinary one."""
    import subprocess
    import sys

    code = """
import torch, gemv, gemv.torch
def refused(call):
    try:
        call()
    except ValueError as e:
        assert "does not lie in memory" in str(e), e
    else:
        raise AssertionError("it is computed")
a, x = torch.randn(30, 40), torch.randn(40)
for product in (gemv.matvec, torch.ops.gemv.mv):
    product(a, x)
    for emptied in (0, 1):
        operands = [a.clone(), x.clone()]
        operands[emptied].untyped_storage().resize_(0)
        refused(lambda: product(*operands))
refused(lambda: gemv.matvec(torch._efficientzerotensor((30, 40)), x))
refused(lambda: gemv.matvec(a, torch._efficientzerotensor(40)))
print("as it should be")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "as it should be", (done.returncode, done.stderr)


def samples(function):
    a = torch.randn(5, 300)
    shapes = {mv: (300,), mm: (300, 7), bmm: (300, 7)}
    left = (lambda t: t[None].repeat(2, 1, 1)) if function is bmm else (lambda t: t)
    b = left(torch.randn(shapes[function]))
    yield left(a), b
    yield left(a.t().contiguous().t()), b
    yield left(a.clone()).requires_grad_(), b.clone().requires_grad_()
    yield left(a.bfloat16()).requires_grad_(), b.clone().requires_grad_()
    yield left(a.to(torch.complex64)).requires_grad_(), b.to(torch.complex64).requires_grad_()
    if function is mm:
        yield a, b.t().contiguous().t()
        yield a, b.t().contiguous().t().requires_grad_()
        yield a, b[:, :1]
        yield a[:1], b.t().contiguous().t()


@pytest.mark.parametrize("function", [mv, mm, bmm], ids=["mv", "mm", "bmm"])
def test_opcheck(function):
    for sample in samples(function):
        opcheck(function.default, sample)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_gradients_of_first_and_second_order(dtype):
    def random(*shape):
        return torch.randn(*shape, dtype=dtype, requires_grad=True)

    for function, operands in ((mv, (random(4, 5), random(5))), (mm, (random(4, 5), random(5, 3))), (bmm, (random(2, 4, 5), random(2, 5, 3)))):
        assert gradcheck(function, operands)
        assert gradgradcheck(function, operands)
    assert gradcheck(lambda a, x: mv(a.t(), x), (random(5, 4), random(5)))
    assert gradcheck(lambda a, x: mv(a.conj(), x), (random(4, 5), random(5)))


def test_vmap_has_the_bits_of_a_loop():
    a, x, b = torch.randn(6, 4, 300), torch.randn(6, 300), torch.randn(6, 300, 2)
    loop = torch.stack([mv(a[i], x[i]) for i in range(6)])
    assert torch.equal(vmap(mv)(a, x), loop)
    assert torch.equal(vmap(mv, (None, 0))(a[0], x), torch.stack([mv(a[0], of) for of in x]))
    assert torch.equal(vmap(mv, (0, None))(a, x[0]), torch.stack([mv(of, x[0]) for of in a]))
    assert torch.equal(vmap(mv, (2, 1))(a.permute(1, 2, 0), x.t()), loop)
    assert torch.equal(vmap(mm, (None, 0))(a[0], b), torch.stack([mm(a[0], of) for of in b]))
    assert torch.equal(vmap(bmm, (0, None))(a[:, None], b[:1]), torch.stack([bmm(of[None], b[:1]) for of in a]))
    assert torch.equal(vmap(vmap(mv, (None, 0)), (0, None))(a, x)[2, 3], mv(a[2], x[3]))
    # Autograd of what vmap has computed.
    weight = a[0].clone().requires_grad_()
    vmap(mv, (None, 0))(weight, x).square().sum().backward()
    torch.testing.assert_close(weight.grad, 2 * (x @ a[0].t()).t() @ x, rtol=1e-4, atol=1e-3)


def test_what_torchs_library_has_no_rules_for_raises():
    a, x = torch.randn(4, 5), torch.randn(5)
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jvp(lambda x: mv(a, x), (x,), (x,))
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jacfwd(lambda x: mv(a, x))(x)
    with pytest.raises(RuntimeError):
        torch.func.grad(lambda x: mv(a, x).sum())(x)


def test_compiled_with_the_same_bits():
    layer = gemv.torch.Linear(300, 40)
    tokens = torch.randn(9, 300)
    compiled = torch.compile(layer, fullgraph=True)
    y = compiled(tokens)
    assert torch.equal(y, layer(tokens))
    y.square().sum().backward()
    ours = layer.weight.grad.clone()
    layer.zero_grad()
    layer(tokens).square().sum().backward()
    assert torch.equal(layer.weight.grad, ours)
    f = torch.compile(lambda a, x: mv(a, x).relu() + 1, fullgraph=True)
    for m in (5, 8, 11):  # of any shape
        a = torch.randn(m, 300)
        assert torch.equal(f(a, tokens[0]), mv(a, tokens[0]).relu() + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_token_has_the_same_bits_in_any_batch(dtype):
    layer = gemv.torch.Linear(700, 130, dtype=dtype)
    tokens = torch.randn(33, 700, dtype=dtype)
    with torch.no_grad():
        y = layer(tokens)
        assert y.is_contiguous() and y.dtype == dtype
        for count in (1, 2, 7, 32):
            assert torch.equal(layer(tokens[:count]), y[:count])
        assert torch.equal(layer(tokens[5]), y[5])
        assert torch.equal(layer(tokens.reshape(3, 11, 700)), y.reshape(3, 11, 130))
        assert torch.equal(layer(tokens[::2]), y[::2])
    assert layer(torch.empty(0, 700, dtype=dtype)).shape == (0, 130)


def test_the_layer_loads_torchs_state_and_learns():
    torchs, ours = torch.nn.Linear(20, 3), gemv.torch.Linear(20, 3)
    ours.load_state_dict(torchs.state_dict())
    tokens = torch.randn(5, 20)
    torch.testing.assert_close(ours(tokens), torchs(tokens))
    torchs(tokens).square().sum().backward()
    ours(tokens).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, torchs.weight.grad)
    torch.testing.assert_close(ours.bias.grad, torchs.bias.grad)
    assert gemv.torch.Linear(20, 3, bias=False)(tokens).shape == (5, 3)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_the_layer_checks_the_last_axis():
    layer = gemv.torch.Linear(20, 3)
    for shape in ((5, 21), (20, 5), (20, 1), ()):
        with pytest.raises(ValueError, match=r"Linear.*last axis.*20 entries"):
            layer(torch.ones(shape))
    empty = gemv.torch.Linear(0, 4)
    assert torch.equal(empty(torch.ones(3, 0)), empty.bias.expand(3, 4))
    assert empty(torch.ones(0)).shape == (4,) and layer(torch.ones(20)).shape == (3,)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.ones(20)).dtype == torch.float32


def test_fake_tensors_have_no_entries():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a, x = torch.empty(3, 4), torch.empty(4)
        assert mv(a, x).shape == (3,)
        with pytest.raises(RuntimeError, match="devices"):
            mv(a, torch.empty(4, device="meta"))
        with pytest.raises((TypeError, ValueError)):
            gemv.matvec(a, x)
    assert mv(torch.empty(3, 4, device="meta"), torch.empty(4, device="meta")).device.type == "meta"


def test_threads_that_flush_subnormals():
    torch.set_flush_denormal(True)
    try:
        assert gemv.matvec(np.array([[5e-324]]), np.ones(1))[0].tobytes() == np.float64(5e-324).tobytes()
    finally:
        torch.set_flush_denormal(False)


def test_a_torch_without_dlpacks_table():
    """By the tensors' methods, with the same bits and refusals."""
    import subprocess
    import sys

    code = """
import torch
assert hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
del torch.Tensor.__dlpack_c_exchange_api__
import numpy as np, gemv, gemv.torch
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128):
    a, x = torch.randn(20, 30, dtype=torch.complex128).to(dtype), torch.randn(30, dtype=torch.float64).to(dtype)
    y = gemv.matvec(a.t()[::3], x[:20])
    assert type(y) is torch.Tensor and y.dtype == dtype and torch.equal(y, torch.ops.gemv.mv(a.t()[::3], x[:20]))
    assert torch.equal(y, gemv.matvec(a.t()[::3].contiguous(), x[:20].clone()))
    if dtype is not torch.bfloat16:
        assert (gemv.matvec(a.t().numpy()[::3], x[:20].numpy()) == y.numpy()).all()
b = torch.randn(7, 30).t()
y = torch.ops.gemv.mm(torch.randn(5, 30), b)
assert y.t().is_contiguous()
for bad in (torch.eye(2).to_sparse(), torch.eye(2, device="meta"), torch.eye(2).requires_grad_(), torch.eye(2).int()):
    try:
        gemv.matvec(bad, torch.ones(2))
    except (TypeError, ValueError):
        continue
    raise AssertionError(bad)
print("as it should be")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "as it should be", done.stderr


def test_the_example_of_the_layer():
    import doctest

    parsed = doctest.DocTestParser().get_doctest(gemv.torch.Linear.__doc__, {}, "Linear", None, None)
    assert parsed.examples and doctest.DocTestRunner().run(parsed).failed == 0


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_packed_matrices_take_tensors(kind):
    weights = torch.randn(7, 256)
    a = gemv.Packed.quantize("q6_k", weights)
    assert a.tobytes() == gemv.Packed.quantize("q6_k", weights.numpy()).tobytes()
    assert a.tobytes() == gemv.Packed("q6_k", torch.frombuffer(bytearray(a.tobytes()), dtype=torch.uint8).view(7, -1)).tobytes()
    x = torch.randn(2 * 256, 3).to(kind)[::2]
    expected = torch.from_numpy(gemv.matmul(a.dequantize(), x.float().numpy())).to(kind)
    for on in (a, a.to_device("cpu")):
        y = on @ x
        assert type(y) is torch.Tensor and torch.equal(y, expected)
        assert torch.equal(gemv.matvec(on, x[:, 1]), expected[:, 1])
        out = torch.zeros_like(y)
        assert gemv.matmul(on, x, out=out) is out and torch.equal(out, expected)
    with pytest.raises(TypeError, match="left.*dequantize"):
        x.t() @ a
    with pytest.raises(TypeError, match="gradients"):
        a @ x.requires_grad_()
