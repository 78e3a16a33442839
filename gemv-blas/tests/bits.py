"""NumPy's `a @ x` has the bits of `gemv dot`: 400 shapes, layouts and steps.

    LD_PRELOAD=libgemv_blas.so.0 python3 bits.py GEMV        GEMV is the program
"""

import os
import subprocess
import sys
import tempfile

import numpy as np

os.environ.pop("LD_PRELOAD", None)
gemv = sys.argv[1]
rng = np.random.default_rng(11)
SHAPES = [(1, 9), (2, 3), (3, 2), (7, 64), (64, 7), (40, 257), (257, 40), (5, 1000), (700, 90), (300, 300)]
LAYOUTS = {
    "rows": lambda a: a,
    "columns": np.asfortranarray,
    "padded rows": lambda a: np.hstack([a, a])[:, : a.shape[1]],
    "padded columns": lambda a: np.vstack([a, a]).T.copy().T[: a.shape[0]],
    "transposed": lambda a: a.T.copy().T,
}
STEPS = {"1": lambda x: x, "2": lambda x: np.repeat(x, 2)[::2]}


def bits(y):
    return np.ascontiguousarray(y).tobytes()


def product(a, x, folder):
    """By the program, of the values alone."""
    paths = [os.path.join(folder, name) for name in ("a.npy", "x.npy", "y.npy")]
    np.save(paths[0], np.ascontiguousarray(a))
    np.save(paths[1], np.ascontiguousarray(x))
    subprocess.run([gemv, "dot", paths[0], paths[1], "-o", paths[2]], check=True, stdout=subprocess.DEVNULL)
    return np.load(paths[2])


compared = wrong = 0
with tempfile.TemporaryDirectory() as folder:
    for dtype in ("f4", "f8", "c8", "c16"):
        for m, n in SHAPES:
            a = rng.standard_normal((m, n)).astype(dtype)
            x = rng.standard_normal(n).astype(dtype)
            if dtype[0] == "c":
                a = (a + 1j * rng.standard_normal((m, n))).astype(dtype)
                x = (x + 1j * rng.standard_normal(n)).astype(dtype)
            want = bits(product(a, x, folder))
            for layout, arranged in LAYOUTS.items():
                for step, spread in STEPS.items():
                    compared += 1
                    if bits(arranged(a) @ spread(x)) != want:
                        wrong += 1
                        print(f"{dtype} {m} x {n}, {layout}, step {step}: other bits")
print(f"{compared} products of NumPy {np.__version__}, {wrong} with other bits than `gemv dot`")
sys.exit(wrong != 0 or compared != 400)
