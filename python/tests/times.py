"""Times of small calls beside NumPy's and torch's, in turns in one run: ``python python/tests/times.py``, with the wheel.

The least of many rounds, in nanoseconds, and the ratio to the other library's.
"""

import importlib
import time

import numpy as np

import gemv


def least(ways, calls=500, rounds=60):
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, work in ways.items():
            start = time.perf_counter()
            for _ in range(calls):
                work()
            best[name] = min(best[name], (time.perf_counter() - start) / calls)
    return best


def show(title, ways):
    best = least(ways)
    base = next(iter(best.values()))
    print(title, ", ".join(f"{name} {of * 1e9:.0f} ({of / base:.2f})" for name, of in best.items()))


def main():
    for kind in ("float64", "float32"):
        a, x = np.random.randn(64, 64).astype(kind), np.random.randn(64).astype(kind)
        show(f"64 x 64 {kind}:", {"a @ x": lambda: a @ x, "gemv.matvec": lambda: gemv.matvec(a, x)})
    try:
        import torch
    except ImportError:
        return
    importlib.import_module("gemv.torch")
    a, x, mv = torch.randn(64, 64), torch.randn(64), torch.ops.gemv.mv
    with torch.no_grad():
        show(
            "64 x 64 torch.float32:",
            {"torch.mv": lambda: torch.mv(a, x), "gemv.matvec": lambda: gemv.matvec(a, x), "torch.ops.gemv.mv": lambda: mv(a, x)},
        )


if __name__ == "__main__":
    main()
