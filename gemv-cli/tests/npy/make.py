"""Makes the files beside it: python make.py (numpy 2.4.6 and ml_dtypes 0.6.0 made those checked in).

A is 3 x 4 and x has 4 entries of small values that every type holds exactly; so is the product.
"""
import pathlib

import ml_dtypes
import numpy as np

here = pathlib.Path(__file__).parent
a = np.array([[1, 2, 3, 4], [-5, 0.5, 7, 8], [9, 10, -0.25, 12]])
x = np.array([1, -2, 0.5, 3])
i = np.array([[1j, 0, 2, -1j], [0, 1, -1j, 0], [3, 0, 0, 1j]])
for name in ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8", "<c8", "<c16", ">c8", ">c16", "bfloat16"]:
    dtype = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
    file = name.replace("<", "le_").replace(">", "be_")
    full = a + i if "c" in name else a
    np.save(here / f"{file}_a.npy", full.astype(dtype))
    np.save(here / f"{file}_a_fortran.npy", np.asfortranarray(full.astype(dtype)))
    np.save(here / f"{file}_x.npy", x.astype(dtype))
for version in [(2, 0), (3, 0)]:
    with open(here / f"version{version[0]}_a.npy", "wb") as f:
        np.lib.format.write_array(f, a.astype("<f4"), version)
np.save(here / "ints.npy", np.arange(12).reshape(3, 4))
np.save(here / "records.npy", np.zeros(3, [("a", "<f4"), ("ä", "<f4")]))
np.save(here / "scalar.npy", np.float32(1))
np.savez(here / "archive.npz", a=a)
np.savez_compressed(here / "both.npz", a=a.astype("<f4"), x=x.astype("<f4"))
