#!/usr/bin/env bash
# Guess: an operator of torch.library that has a backward and no forward-mode rule raises under torch.func.jvp, as it does under
#        torch.func.grad.
# Seen:  jvp and jacfwd answer with zeros and say nothing. torch.func.grad raises, and asks for a `setup_context` that the
#        operator has.
# With:  torch 2.15.0.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q --disable-pip-version-check install torch==2.15.0 numpy==2.4.6
"$dir/venv/bin/python" -W ignore - <<'PY'
import torch


@torch.library.custom_op("probe::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


double.register_fake(lambda x: torch.empty_like(x))
double.register_autograd(lambda ctx, g: g * 2, setup_context=lambda ctx, inputs, output: None)

x = torch.tensor([1.0, 2.0], requires_grad=True)
double(x).sum().backward()
print("backward:", x.grad.tolist())
x = x.detach()
value, tangent = torch.func.jvp(double, (x,), (torch.ones(2),))
print("jvp:", tangent.tolist())
try:
    torch.func.grad(lambda x: double(x).sum())(x)
    grad = "no error"
except RuntimeError as e:
    grad = str(e)
print("torch.func.grad:", grad[:90])
assert tangent.tolist() == [0.0, 0.0], "jvp has changed"
assert "setup_context" in grad, "torch.func.grad has changed"
PY
