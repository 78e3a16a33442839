"""Operators of PyTorch, registered when this is imported: ``torch.ops.gemv.mv``, ``mm`` and ``bmm``, and :class:`Linear`.

``mv(a, x)``: a matrix (m, n) times a vector (n). ``mm(a, b)``: times a matrix (n, k), each of whose columns has the bits of its
own ``mv``; the result lies by columns where ``b`` does. ``bmm(a, b)``: a batch of those. They take views of any strides
without a copy, tensors of one type, or a matrix of half precision with float32, or of float32 with float64.

They have gradients of any order by ``torch.autograd``, rules for ``torch.func.vmap``, and results without entries for
``torch.compile``. ``torch.func.grad`` and ``jvp`` have no rules for operators of ``torch.library``, and raise.

Tensors on CUDA are multiplied on torch's current stream, and the result lies in memory of torch's allocator. A CUDA graph may
capture it once the product has run on the same stream before: ``torch.cuda.graph(graph, stream=stream)``. Each graph needs such
a run of its own: a product whose rows are split among blocks has scratch memory, which the graph keeps.
"""

from __future__ import annotations

import torch

from ._gemv import _MIXED as _PAIRS
from ._gemv import _bmm, _direct_mv, _mm, _mv

__all__ = ["Linear"]

_library = torch.library.Library("gemv", "DEF")
_tags = (torch.Tag.pt2_compliant_tag,)
for _name, _axes, _kernel in (("mv", (2, 1), _mv), ("mm", (2, 2), _mm), ("bmm", (3, 3), _bmm)):
    _library.define(f"{_name}(Tensor a, Tensor b) -> Tensor", tags=_tags)
    _library.impl(_name, _kernel, "CPU")
    _library.impl(_name, _kernel, "CUDA")

_mv_op = torch.ops.gemv.mv.default
_mm_op = torch.ops.gemv.mm.default
_bmm_op = torch.ops.gemv.bmm.default

#: Types of a matrix, and others of vectors that it has products with.
_MIXED = {(getattr(torch, a), getattr(torch, x)) for a, x in _PAIRS}


def _fake(name, axes):
    def fake(a, b):
        torch._check(
            (a.dim(), b.dim()) == axes,
            lambda: f"{name}: tensors of {a.dim()} and {b.dim()} axes, and it takes {axes[0]} and {axes[1]}",
        )
        torch._check(
            a.device == b.device,
            lambda: f"{name}: the operands are on two devices, {a.device} and {b.device}: pass both on one",
        )
        inner = b.shape[0] if b.dim() == 1 else b.shape[-2]
        torch._check(a.shape[-1] == inner, lambda: f"{name}: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")
        torch._check(
            a.dtype == b.dtype or (a.dtype, b.dtype) in _MIXED,
            lambda: f"{name}: {a.dtype} and {b.dtype} have no product",
        )
        if name == "mv":
            return b.new_empty((a.shape[0],))
        torch._check(a.shape[:-2] == b.shape[:-2], lambda: f"{name}: batches of {a.shape[0]} and {b.shape[0]}")
        if name == "mm" and b.shape[0] > 1 and b.shape[1] > 1 and b.stride(0) == 1 and b.stride(1) > 1:
            return b.new_empty((b.shape[1], a.shape[0])).mT
        return b.new_empty((*a.shape[:-1], b.shape[-1]))

    return fake


for _name, _axes in (("mv", (2, 1)), ("mm", (2, 2)), ("bmm", (3, 3))):
    torch.library.register_fake(f"gemv::{_name}", _fake(_name, _axes), lib=_library)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _conjugated(product, a, b):
    """The product with the conjugate of ``a``, of which no copy is made."""
    return product(a, b.conj()).conj() if b.is_complex() else product(a, b)


def _mv_backward(ctx, g):
    a, x = ctx.saved_tensors
    ga = gx = None
    if ctx.needs_input_grad[0]:
        # One rounding an entry, so that it has one answer too; of complex numbers by this library's order.
        ga = _mm_op(g.unsqueeze(1), x.conj().unsqueeze(0)) if g.is_complex() else torch.outer(g, x)
        ga = ga.to(a.dtype)
    if ctx.needs_input_grad[1]:
        gx = _conjugated(_mv_op, a.t(), g)
    return ga, gx


def _products_backward(product):
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        ga = gb = None
        if ctx.needs_input_grad[0]:
            ga = product(g.conj(), b.mT).conj() if g.is_complex() else product(g, b.mT)
            ga = ga.to(a.dtype)
        if ctx.needs_input_grad[1]:
            gb = _conjugated(product, a.mT, g)
        return ga, gb

    return backward


class _Mv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, keys, a, x):
        ctx.save_for_backward(a, x)
        return _below(keys, a, x)

    @staticmethod
    def backward(ctx, g):
        ctx.needs_input_grad, before = ctx.needs_input_grad[1:], ctx.needs_input_grad
        try:
            return None, *_mv_backward(ctx, g)
        finally:
            ctx.needs_input_grad = before


def _below(keys, a, x):
    with torch._C._AutoDispatchBelowAutograd():
        return _mv_op.redispatch(keys & torch._C._after_autograd_keyset, a, x)


def _mv_autograd(keys, a, x):
    """As torch.library.register_autograd has it, but that a product whose gradients nobody wants takes a third of the time."""
    y = _direct_mv(a, x)
    if y is not None:
        return y
    if torch.is_grad_enabled() and (a.requires_grad or x.requires_grad):
        return _Mv.apply(keys, a, x)
    return _below(keys, a, x)


_library.impl("mv", _mv_autograd, "Autograd", with_keyset=True)
torch.library.register_autograd("gemv::mm", _products_backward(_mm_op), setup_context=_save, lib=_library)
torch.library.register_autograd("gemv::bmm", _products_backward(_bmm_op), setup_context=_save, lib=_library)


def _batched(tensor, dim, size):
    """With the axis of the batch in front; shared by all of it where there is none."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _mv_vmap(info, in_dims, a, x):
    if in_dims[0] is None:
        # One matrix: the vectors are columns.
        return _mm_op(a, x.movedim(in_dims[1], 0).mT), 1
    size = info.batch_size
    a, x = _batched(a, in_dims[0], size), _batched(x, in_dims[1], size)
    return _bmm_op(a, x.unsqueeze(2)).squeeze(2), 0


def _mm_vmap(info, in_dims, a, b):
    size = info.batch_size
    return _bmm_op(_batched(a, in_dims[0], size), _batched(b, in_dims[1], size)), 0


def _bmm_vmap(info, in_dims, a, b):
    size = info.batch_size
    a, b = _batched(a, in_dims[0], size), _batched(b, in_dims[1], size)
    y = _bmm_op(a.reshape(-1, *a.shape[2:]), b.reshape(-1, *b.shape[2:]))
    return y.reshape(size, -1, *y.shape[1:]), 0


torch.library.register_vmap("gemv::mv", _mv_vmap, lib=_library)
torch.library.register_vmap("gemv::mm", _mm_vmap, lib=_library)
torch.library.register_vmap("gemv::bmm", _bmm_vmap, lib=_library)


class Linear(torch.nn.Linear):
    """``torch.nn.Linear`` by this library's products: a token has the same bits alone and in any batch.

    It has the parameters of ``torch.nn.Linear``, with the weight as (out_features, in_features), and loads its state. The
    input is (..., in_features), the output (..., out_features). Under ``torch.autocast`` it stays in the type of its weight.

    Raises
    ------
    ValueError
        If the last axis of the input has another number of entries than in_features.

    Examples
    --------
    >>> import torch, gemv.torch
    >>> layer = gemv.torch.Linear(300, 40)
    >>> tokens = torch.randn(7, 300)
    >>> torch.equal(layer(tokens)[3], layer(tokens[3]))
    True
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The products of the weight with each token, and the bias."""
        if input.dim() == 0 or input.shape[-1] != self.in_features:
            raise ValueError(
                f"Linear: the input has shape {tuple(input.shape)}, and its last axis has to have {self.in_features} entries"
            )
        columns = input.reshape(input.shape[:-1].numel(), self.in_features).t()
        y = _mm_op(self.weight, columns).t()
        if self.bias is not None:
            y = y + self.bias
        return y.reshape(*input.shape[:-1], self.out_features)
