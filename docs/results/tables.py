#!/usr/bin/env python3
"""Prints the tables of docs/RESULTS.md from the data files beside this script."""

import csv
import gzip
from math import exp, inf, log, log2
from pathlib import Path

HERE = Path(__file__).parent


def rows(name):
    with (gzip.open if name.endswith(".gz") else open)(HERE / name, "rt", newline="") as file:
        return list(csv.DictReader(file))


def geomean(values):
    values = list(values)
    return exp(sum(map(log, values)) / len(values))


def line(*cells):
    print("| " + " | ".join(map(str, cells)) + " |")


def header(*cells):
    line(*cells)
    line(*["---"] * len(cells))


def h200(title, file, dtypes=("f32", "f64")):
    """Every shape of at least 16 x 16: time of gemv, of cuBLAS, of a pass that only reads. The least have no such pass."""
    shapes = {}
    for row in rows(file):
        if int(row["m"]) >= 16 and int(row["n"]) >= 16 and row["read_us"]:
            key = (row["dtype"], row["layout"], int(row["m"]), int(row["n"]), int(row["bytes"]))
            shapes.setdefault(key, {"read": float(row["read_us"])})[row["who"]] = float(row["us"])
    # cuBLAS has no result for some matrices of f16.
    shapes = {k: t for k, t in shapes.items() if "cublas" in t}
    mib = 1 << 20
    classes = [
        ("over 48 MiB", lambda b: b > 48 * mib),
        ("1 to 48 MiB", lambda b: mib <= b <= 48 * mib),
        ("under 1 MiB", lambda b: b < mib),
    ]
    print(f"## {title}\n")
    header("matrix", "bytes", "shapes", "gemv: share of read bandwidth", "cuBLAS: share",
           "times faster than cuBLAS")
    for dtype in dtypes:
        for layout, long in (("row", "row-major"), ("col", "column-major")):
            for name, within in classes:
                times = [t for k, t in shapes.items()
                         if k[0] == dtype and k[1] == layout and within(k[4])]
                cells = [[t["read"] / t["gemv"] for t in times],
                         [t["read"] / t["cublas"] for t in times],
                         [t["cublas"] / t["gemv"] for t in times]]
                line(f"{dtype} {long}", name, len(times),
                     *[f"{geomean(c):.2f} / {min(c):.2f}" for c in cells])
    ratio = [t["cublas"] / t["gemv"] for t in shapes.values()]
    slower = [r for r in ratio if r < 1]
    print(f"\nall {len(ratio)}: geomean {geomean(ratio):.2f}, {min(ratio):.2f} to {max(ratio):.1f},"
          f" slower on {len(slower)}, by more than 4 % on {sum(r < 1 / 1.04 for r in ratio)}")


PEERS = ["mkl", "openblas-deb", "openblas-new", "blis", "faer", "gemm", "nalgebra",
         "ndarray.dot+openblas", "ndarray.dot", "matrixmultiply"]
OURS = ("gemv", "gemv-outside")
REGIMES = {"4x4": "4x4", "16x16": "16x16", "64x64": "64x64", "256x256": "L2", "512x512": "L2",
           "1024x1024": "L3", "2048x2048": "L3", "8192x8192": "DRAM",
           "100000x100": "tall", "10000x1000": "tall", "1000000x16": "tall",
           "100x100000": "wide", "1000x10000": "wide", "16x1000000": "wide"}


def cpu():
    """The best round of two runs; with two threads a run on one thread counts where it is faster."""
    best, ceiling = {}, {}
    for name in ("cpu/dense.csv", "cpu/dense-again.csv"):
        for row in rows(name):
            cell = (row["dtype"], row["layout"], f"{row['m']}x{row['n']}")
            threads, ns = int(row["threads"]), float(row["ns_best_round"])
            into, who = (ceiling, "read") if row["peer"].startswith("ceiling") else (best, row["peer"])
            if who in OURS:
                who = "gemv"
            who = who.removesuffix("@native").removesuffix("-in-pool")
            for t in {threads} if who == "gemv" else {threads, 2}:
                key = (cell, who, t)
                into[key] = min(ns, into.get(key, ns))
    cells = sorted({cell for cell, _, _ in best})
    print("\n## CPU: share of read bandwidth\n")
    names = list(dict.fromkeys(REGIMES.values()))
    header("threads", *names)
    for threads in (1, 2):
        share = {}
        for cell in cells:
            ours = best[cell, "gemv", threads]
            share.setdefault(REGIMES[cell[2]], []).append(ceiling[cell, "read", threads] / ours)
        line(threads, *[f"{geomean(share[name]):.2f}" for name in names])
    print("\n## CPU: times faster\n")
    header("peer", "1 thread", "2 threads")
    for peer in PEERS:
        line(peer, *[
            f"{geomean(best[c, peer, t] / best[c, 'gemv', t] for c in cells):.2f}" for t in (1, 2)])
    for t in (1, 2):
        ratio = [min(best[c, p, t] for p in PEERS) / best[c, "gemv", t] for c in cells]
        print(f"\nbest peer of each cell, {t} thread(s): geomean {geomean(ratio):.2f},"
              f" {sum(r < 0.95 for r in ratio)} of {len(ratio)} under 0.95")


def columns():
    """Several right-hand sides: times as multiples of the time of one, and beside cuBLAS's gemm."""
    times = {}
    for row in rows("h200/columns.csv"):
        key = (row["dtype"], row["layout"], f"{row['m']} x {row['n']}")
        times.setdefault(key, {})[row["who"], int(row["rhs"])] = float(row["us"])
    counts = (2, 4, 8, 16, 32, 64)
    print("\n## H200: time of k right-hand sides over that of one, by rows\n")
    header("type", "rows x columns", *[f"k = {k}" for k in counts])
    for (dtype, layout, shape), of in times.items():
        if layout == "row":
            line(dtype, shape, *[f"{of['gemv', k] / of['gemv', 1]:.2f}" for k in counts])
    print("\n## H200: times faster than cuBLAS's gemm, geometric means over the shapes\n")
    counts = (1, *counts)
    header("type", "layout", *[f"k = {k}" for k in counts])
    kinds = [(dtype, layout) for layout in ("row", "col") for dtype in ("f32", "f64", "bf16")]
    for kind in kinds:
        some = [of for key, of in times.items() if key[:2] == kind]
        line(*kind, *[
            f"{geomean(of['cublas', k] / of['gemv', k] for of in some):.2f}"
            if all(("cublas", k) in of for of in some) else "" for k in counts])


def further():
    """Several right-hand sides of shapes for which no bar was set: times as multiples of the time of one."""
    times, counts = {}, (2, 4, 8, 16)
    for row in rows("h200/further.csv"):
        kind = row["dtype"], row["layout"]
        of = times.setdefault(kind, {}).setdefault((row["m"], row["n"]), {})
        of[int(row["rhs"])] = float(row["us"])
    print("\n## H200: time of k right-hand sides over that of one, 20 further shapes, geometric mean / most\n")
    header("type", "layout", *[f"k = {k}" for k in counts])
    for kind, shapes in times.items():
        ratios = {k: [of[k] / of[1] for of in shapes.values() if k in of] for k in counts}
        line(*kind, *[f"{geomean(r):.2f} / {max(r):.2f}" if r else "" for r in ratios.values()])


def decode():
    """The products of a layer of an 8B language model: share of the read bandwidth by right-hand sides."""
    share, counts = {}, (1, 2, 3, 4)
    for row in rows("h200/decode.csv"):
        if row["who"] == "gemv":
            of = share.setdefault(f"{row['m']} x {row['n']}", {})
            of[int(row["rhs"])] = float(row["read_us"]) / float(row["us"])
    print("\n## H200: bf16, share of the read bandwidth\n")
    header("rows x columns", *[f"k = {k}" for k in counts])
    for shape, of in share.items():
        line(shape, *[f"{of[k]:.2f}" for k in counts])


def batches():
    """Batches: share of the read bandwidth, and times faster than cuBLAS's batched gemm."""
    times, kinds = {}, [(d, l) for d in ("f32", "f64", "bf16") for l in ("row", "col")]
    for row in rows("h200/batches.csv"):
        shape = f"{int(row['batch']):,} of {row['m']} x {row['n']}"
        of = times.setdefault(shape, {}).setdefault((row["dtype"], row["layout"]), {})
        of[row["who"]], of["read"] = float(row["us"]), float(row["read_us"])
    print("\n## H200: batches, share of the read bandwidth, and times faster than cuBLAS\n")
    header("matrices", *[f"{d} {l}" for d, l in kinds])
    for shape, of in times.items():
        line(shape, *[f"{t['read'] / t['gemv']:.2f}, {t['cublas'] / t['gemv']:.1f}"
                      for t in (of[kind] for kind in kinds)])


def sgemm(path, title, unit):
    """The best of each kernel of Nugteren's tutorial, beside our product and the rival's, in units of so many FLOP/s."""
    flops, best = {}, {}
    for row in rows(path):
        work = 2 * int(row["m"]) * int(row["n"]) * int(row["rhs"])
        name = row["params"].split(" ")[0] if row["who"] == "scan" else row["who"]
        speed = work / float(row["us"]) * 1e6 / unit
        if row["who"] != "classic" and speed > flops.get(name, 0):
            flops[name], best[name] = speed, row["params"]
    print(f"\n## {title}\n")
    header("kernel", title.split(": ")[1].split(" ")[0], "parameters")
    for name, speed in flops.items():
        line(name, f"{speed:.1f}", f"`{best[name]}`")


def opencl_columns():
    """Several right-hand sides with OpenCL on an H200: times over that of one, as geometric mean / most; and CLBlast's time over ours."""
    times, counts = {}, (2, 4, 8, 16)
    for row in rows("h200/opencl-rhs.csv"):
        of = times.setdefault((row["dtype"], row["layout"]), {}).setdefault((row["m"], row["n"]), {})
        of[int(row["rhs"])] = float(row["us"])
    print("\n## H200, OpenCL: time of k right-hand sides over that of one, geometric mean / most\n")
    header("type", "layout", *[f"k = {k}" for k in counts])
    for (dtype, layout), shapes in times.items():
        ratios = [[of[k] / of[1] for of in shapes.values()] for k in counts]
        line(dtype, layout, *[f"{geomean(r):.2f} / {max(r):.1f}" for r in ratios])
    times = {}
    for row in rows("h200/opencl-rhs-clblast.csv"):
        of = times.setdefault((row["dtype"], row["layout"]), {}).setdefault((row["m"], row["n"], row["rhs"]), {})
        of[row["who"]] = float(row["us"])
    print("\n## H200, OpenCL: CLBlast's time over that of gemv\n")
    problems = list(next(iter(times.values())))
    header("type", "layout", *[f"{m} x {n}, k = {k}" for m, n, k in problems])
    for (dtype, layout), of in times.items():
        line(dtype, layout, *[f"{of[p]['clblast'] / of[p]['gemv']:.2f}" for p in problems])


def opencl_columns_on_cpu():
    """Several right-hand sides on PoCL: times over that of one, and the CPU backend's time over that of PoCL."""
    times = {}
    for row in rows("pocl/columns.csv"):
        if row["who"] == "gemv":
            of = times.setdefault((row["dtype"], row["layout"]), {}).setdefault((row["m"], row["n"]), {})
            of[row["device"].split(":")[0], int(row["rhs"])] = float(row["us"])
    print("\n## PoCL: time of k right-hand sides over that of one; gemv-cpu's time over PoCL's\n")
    shapes = list(next(iter(times.values())))
    header("type", "layout", "k", *[f"{m} x {n}" for m, n in shapes])
    for (dtype, layout), of in times.items():
        for k in (4, 8):
            cell = lambda t: f"{t['opencl', k] / t['opencl', 1]:.1f}, {t['cpu', k] / t['opencl', k]:.2f}"
            line(dtype, layout, k, *[cell(of[shape]) for shape in shapes])


def opencl_on_cpu():
    """PoCL beside the CPU backend and CLBlast: other times divided by that of ours on PoCL, as geometric mean / least."""
    times = {}
    for row in rows("pocl/beside-cpu.csv"):
        key = row["dtype"], row["layout"]
        of = times.setdefault(key, {}).setdefault((row["m"], row["n"]), {})
        of[row["device"].split(":")[0], row["who"]] = float(row["us"])
    print("\n## PoCL: how many times the others' time, geometric mean / least\n")
    header("type", "layout", "gemv-cpu", "CLBlast")
    for (dtype, layout), shapes in times.items():
        def of(*who):
            ratios = {shape: t[who] / t["opencl", "gemv"] for shape, t in shapes.items()}
            least = min(ratios, key=ratios.get)
            return f"{geomean(list(ratios.values())):.2f} / {ratios[least]:.2f} ({' x '.join(least)})"
        line(dtype, layout, of("cpu", "gemv"), of("opencl", "clblast"))


def opencl_in_caches():
    """PoCL beside the CPU backend on matrices in the caches: the time of gemv-cpu divided by that on PoCL."""
    times, most = {}, 1 << 20
    for row in rows("pocl/cached.csv"):
        if row["who"] == "gemv":
            where = "under 1 MiB" if int(row["bytes"]) < most else "4 to 13 MB"
            of = times.setdefault((where, row["dtype"], row["layout"]), {}).setdefault((row["m"], row["n"]), {})
            of[row["device"].split(":")[0]] = float(row["us"])
    print("\n## PoCL in the caches: share of gemv-cpu's speed, geometric mean / least\n")
    header("matrix", "f32 row", "f32 col", "f64 row", "f64 col")
    for where in ("under 1 MiB", "4 to 13 MB"):
        cells = []
        for kind in (("f32", "row"), ("f32", "col"), ("f64", "row"), ("f64", "col")):
            shares = [of["cpu"] / of["opencl"] for of in times[where, *kind].values()]
            cells.append(f"{geomean(shares):.2f} / {min(shares):.2f}")
        line(where, *cells)


def published():
    """The search over the published kernels: the best of all on each sample, beside our choice and cuBLAS."""
    best = {}
    with gzip.open(HERE / "h200/cuda-nvidia-h200-classic.cells.csv.gz", "rt", newline="") as file:
        for row in csv.DictReader(file):
            if row["kind"] == "trial" and row["checked"] == "true":
                shape, trial = (int(row["m"]), int(row["n"])), (float(row["us"]), row["params"])
                best[shape] = min(trial, best.get(shape, trial))
    others = {"gemv": {}, "cublas": {}}
    for row in rows("h200/classic-mesh.csv"):
        others[row["who"]][int(row["m"]), int(row["n"])] = float(row["us"])
    shapes = [shape for shape in best if shape in others["gemv"]]
    mib = 1 << 20
    print(f"\n## H200: the published kernels, best of all on {len(best)} samples\n")
    header("matrix", "shapes", "gemv: times faster than the best", "cuBLAS: times faster")
    for name, low, high in (("over 48 MiB", 48 * mib, 1 << 62), ("1 to 48 MiB", mib, 48 * mib),
                            ("under 1 MiB", 0, mib)):
        some = [shape for shape in shapes if low <= 4 * shape[0] * shape[1] < high]
        ratios = [[best[shape][0] / others[who][shape] for shape in some] for who in others]
        line(name, len(some), *[f"{geomean(r):.2f} / {min(r):.2f}" for r in ratios])
    kernels = [params.split(" ")[0] for _, params in best.values()]
    counts = sorted(((kernels.count(k), k) for k in set(kernels)), reverse=True)
    print("\nbest on so many samples: " + ", ".join(f"`{k}` {n}" for n, k in counts))


def opencl(gpu):
    """Every shape of at least 16 x 16: NVIDIA's OpenCL beside its own pass that only reads, CUDA and cuBLAS."""
    shapes = {}
    for row in rows(f"{gpu}/opencl-mesh.csv"):
        if int(row["m"]) >= 16 and int(row["n"]) >= 16:
            key = (row["dtype"], row["layout"], int(row["m"]), int(row["n"]), int(row["bytes"]))
            times = shapes.setdefault(key, {})
            times[row["device"], row["who"]] = float(row["us"])
            if row["device"] == "opencl:0":
                times["read"] = float(row["read_us"] or "nan")
    mib = 1 << 20
    print(f"\n## {gpu.upper()}: OpenCL beside CUDA\n")
    header("matrix", "bytes", "shapes", "share of OpenCL's read bandwidth", "of CUDA's speed", "of cuBLAS's speed")
    for dtype in ("f32", "f64"):
        for layout, long in (("row", "row-major"), ("col", "column-major")):
            for name, low, high in (("over 48 MiB", 48 * mib, 1 << 62), ("1 to 48 MiB", mib, 48 * mib)):
                of = [t for k, t in shapes.items() if k[:2] == (dtype, layout) and low < k[4] <= high]
                others = ("read", ("cuda:0", "gemv"), ("cuda:0", "cublas"))
                speeds = [[t[other] / t["opencl:0", "gemv"] for t in of] for other in others]
                line(f"{dtype} {long}", name, len(of),
                     *[f"{geomean(c):.2f} / {min(c):.2f}" for c in speeds])


def complex_columns():
    """Complex matrices by columns: speed relative to cuBLAS."""
    times = {}
    for row in rows("h200/complex.csv"):
        times.setdefault(row["dtype"], {})[row["who"], row["m"], row["n"]] = float(row["us"])
    print("\n## H200: complex matrices by columns, speed relative to cuBLAS\n")
    shapes = [key[1:] for key in times["c32"] if key[0] == "gemv"]
    header("type", *[" x ".join(shape) for shape in shapes])
    for dtype, of in times.items():
        line(dtype, *[f"{of['cublas', *shape] / of['gemv', *shape]:.2f}" for shape in shapes])


def cpu_columns():
    """Several right-hand sides on the CPU: times as multiples of the time of one, and beside others."""
    times, counts = {}, (2, 4, 8, 16)
    libraries = {"OpenBLAS": "cpu/columns-openblas.csv", "MKL": "cpu/columns-mkl.csv"}
    beside = {}
    for library, path in libraries.items():
        for row in rows(path):
            key = library, row["dtype"]
            of = beside.setdefault(key, {}).setdefault((row["m"], row["n"]), {})
            of[row["who"], int(row["rhs"])] = float(row["us"])
    for row in rows("cpu/columns.csv"):
        of = times.setdefault(row["dtype"], {}).setdefault((row["m"], row["n"]), {})
        of[row["who"], int(row["rhs"])] = float(row["us"])
    least = {}
    for path in ("cpu/columns.csv", *libraries.values()):
        for row in rows(path):
            if row["who"] == "gemv":
                key = row["dtype"], row["m"], row["n"], int(row["rhs"])
                least[key] = min(least.get(key, float("inf")), float(row["us"]))
    print("\n## CPU: k right-hand sides, geometric mean / worst\n")
    header("type", "", *[f"k = {k}" for k in counts])
    for dtype, shapes in times.items():
        ratios = [[least[dtype, *s, k] / least[dtype, *s, 1] for s in shapes] for k in counts]
        line(dtype, "time over that of one", *[f"{geomean(r):.2f} / {max(r):.2f}" for r in ratios])
        for who, name in (("matrixmul", "matrixmultiply"), ("ndarray", "ndarray")):
            ratios = [[of[who, k] / of["gemv", k] for of in shapes.values()] for k in counts]
            line(dtype, f"times faster than {name}",
                 *[f"{geomean(r):.2f} / {min(r):.2f}" for r in ratios])
        for library in libraries:
            of_shapes = beside[library, dtype].values()
            ratios = [[of["cblas", k] / of["gemv", k] for of in of_shapes] for k in counts]
            line(dtype, f"times faster than {library}",
                 *[f"{geomean(r):.2f} / {min(r):.2f}" for r in ratios])


def bounds(text):
    """`2^4..100` as logarithms."""
    def number(side, otherwise):
        base, _, power = side.partition("^")
        return otherwise if not side else float(power) if power else log2(max(int(base), 1))
    low, between, high = text.partition("..")
    return number(low, 0.0), number(high if between else low, float("inf"))


def held_out():
    """Regret of rows of shipped tables, by the times of the held-out shapes that the tuner left: OpenCL's h100.txt, without
    columns of complex types, whose rows are of later measurements, joined from two; and several right-hand sides on the CPU."""
    def sorted_words(params):
        kernel, *args = params.split()
        return kernel, *sorted(args)

    def table(path):
        for row in (HERE / "../.." / path).read_text().splitlines():
            if not row.startswith("#"):
                key, params = row.split(" : ")
                dtype, layout, *ranges = key.split()
                ranges = dict(part.split("=") for part in ranges)
                low, between, high = ranges.get("align", "..").partition("..")
                align = int(low or 1), int(high or 64) if between else int(low)
                rhs = bounds(ranges.get("rhs", "1"))
                yield dtype, layout, align, rhs, *(bounds(ranges.get(axis, "..")) for axis in "mn"), params

    def fits(row, n):
        # The one kernel here that does not take every matrix of its layout.
        return n <= 8 or not row[-1].startswith("gemm-narrow ")

    print("\n## Regret on held-out shapes\n")
    header("measured", "shapes", "without a time", "geometric mean", "worst")
    for name, path in (("h100/opencl-complex", "gemv-opencl/tables/h100.txt"), ("h100/opencl-16-bit", "gemv-opencl/tables/h100.txt"),
                       ("cpu/tune-rhs", "gemv-cpu/tables/cpu.txt")):
        present, times, unknown, regrets = list(table(path)), {}, 0, []
        with gzip.open(HERE / f"{name}.holdout.csv.gz", "rt", newline="") as file:
            for row in csv.DictReader(file):
                later = name == "h100/opencl-complex" and row["layout"] == "col"
                if row["kind"] == "trial" and row["us"] and not later:
                    numbers = [int(row[key] or 1) for key in ("m", "n", "rhs")]
                    key = (row["dtype"], row["layout"], 2 ** int(row["align"]), *numbers)
                    of, params = times.setdefault(key, {}), sorted_words(row["params"])
                    # Some are measured twice, in two orders of their arguments.
                    of[params] = min(float(row["us"]), of.get(params, inf))
        for (dtype, layout, align, m, n, rhs), of in times.items():
            def distance(row):
                far = [max(low - log2(v), log2(v) - high, 0) for v, (low, high) in ((m, row[4]), (n, row[5]))]
                return far[0] ** 2 + far[1] ** 2
            fit = [row for row in present if row[:2] == (dtype, layout) and row[2][0] <= align <= row[2][1]
                   and row[3][0] <= log2(rhs) <= row[3][1] and fits(row, n)]
            chosen = of.get(sorted_words(min(fit, key=distance)[-1]))
            unknown += chosen is None
            if chosen:
                regrets.append(chosen / min(of.values()))
        line(name, len(times), unknown, f"{100 * geomean(regrets) - 100:.2f} %", f"{100 * max(regrets) - 100:.1f} %")


h200("H200", "h200/mesh.csv")
h200("H200, powers of two", "h200/mesh-powers-of-two.csv")
h200("H200, other types", "h200/mesh-types.csv.gz", ("f16", "bf16", "c32", "c64"))
complex_columns()
columns()
further()
decode()
batches()
opencl("h100")
opencl("h200")
sgemm("h200/sgemm.csv", "H200: TFLOP/s of a product of f32 4096 x 4096 matrices", 1e12)
sgemm("pocl/sgemm.csv", "PoCL: GFLOP/s of a product of f32 512 x 512 matrices", 1e9)
opencl_columns()
opencl_on_cpu()
opencl_in_caches()
opencl_columns_on_cpu()
published()
cpu()
cpu_columns()
held_out()
