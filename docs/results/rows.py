#!/usr/bin/env python3
"""Rows of gemv-cuda/tables/h200.txt for several right-hand sides of one matrix, from measured times.

    python3 docs/results/rows.py > rows.txt

The times are in h200/several-{row,col}.cells.csv.gz: what `gemv tune` measured, with every candidate of each problem. Up to
16 columns, `gemm-narrow` is the fastest everywhere, with as many columns as the matrix has. For the rest, the plane of the
logarithms of rows and columns is cut in two again and again, where it saves most, until a further row saves less than a
rate. Rows hold for the sizes that they name; between them the nearest one does. f16 has the rows of bf16.
"""

import csv
import gzip
import re
from collections import Counter, defaultdict
from math import floor, log, log2
from pathlib import Path

HERE = Path(__file__).parent
ALIGN = {
    "f32": [("16..", 16, 64), ("8", 8, 8), ("..4", 1, 4)],
    "f64": [("16..", 16, 64), ("..8", 8, 8)],
    "bf16": [("16..", 16, 64), ("8", 8, 8), ("4", 4, 4), ("..2", 2, 2)],
}
BYTES = {"f32": 4, "f64": 8, "bf16": 2}
RHS = {2: "2", 4: "3..4", 8: "5..8", 16: "9.."}
# What a further row has to save: a sum of logarithms of times.
RATE = 0.66
# Kernel parameters that the rows of a type and layout may name, with `max_n` of gemm-thread as one.
MOST = {"f32": 36, "f64": 30, "bf16": 40}
# In place of the time of what was not measured.
MISSING = log(1.6)
# Matrices of more bytes than this count WEIGHT times as much: a mesh has few of them, and most is lost there.
LARGE, WEIGHT = 1 << 24, 4


# Rows that stand first: of an older table, faster than those below at matrices of columns.csv, on which they were chosen.
# At two of the 20 of further.csv, whose rows end in a part of a segment, those of f64 are up to 10 % slower.
FIRST = """
f32 col align=16.. rhs=3..4 batch=1 m=12289.. n=193..1024 : gemm-col-tile threads=256 tile_rhs=4 vec=4 stages=4 min_blocks=1
f32 col align=16.. rhs=3..4 batch=1 m=769..28232 n=4096..2^24 : gemm-col-tile threads=128 tile_rhs=4 vec=4 stages=4 min_blocks=2
f64 row align=16.. rhs=2 batch=1 m=2^11.. n=2^12..2^15 : gemm-row-panel threads=256 warps_k=8 tile_rhs=2 rows=4 vec=1 min_blocks=1
f64 row align=16.. rhs=3..4 batch=1 m=2^11.. n=2^12..2^15 : gemm-row-panel threads=256 warps_k=8 tile_rhs=4 rows=4 vec=1 min_blocks=1
f64 row align=16.. rhs=5..8 batch=1 m=2^11.. n=2^12 : gemm-row-panel threads=256 warps_k=8 tile_rhs=8 rows=4 vec=1 min_blocks=1
f64 row align=16.. rhs=5..8 batch=1 m=2^11.. n=2^13 : gemm-row-panel threads=256 warps_k=8 tile_rhs=8 rows=4 vec=1 min_blocks=1
f64 row align=16.. rhs=5..8 batch=1 m=2^11.. n=14336 : gemm-row-panel threads=256 warps_k=8 tile_rhs=8 rows=4 vec=1 min_blocks=1
f64 row align=16.. rhs=5..8 batch=1 m=2^11.. n=2^14 : gemm-row-panel threads=256 warps_k=8 tile_rhs=8 rows=4 vec=1 min_blocks=1
bf16 row align=16.. rhs=2 batch=1 m=8193..2^17 n=4097..8192 : gemm-row-ring threads=512 warps_k=16 tile_rhs=2 rows=8 stages=3 min_blocks=1
bf16 row align=16.. rhs=3..4 batch=1 m=12289.. n=2049..8192 : gemm-row-ring threads=512 warps_k=16 tile_rhs=4 rows=8 stages=3 min_blocks=1
bf16 row align=16.. rhs=2 batch=1 m=100001.. n=193..256 : gemm-row-panel threads=512 warps_k=1 tile_rhs=2 rows=8 vec=2 min_blocks=1
bf16 col align=16.. rhs=5.. batch=1 m=50001.. n=129..512 : gemm-col-tile threads=128 tile_rhs=8 vec=2 stages=4 min_blocks=3
""".split("\n")


def times(layout):
    """{(dtype, alignment, right-hand sides): {(m, n): {params: log of its time over the least}}}"""
    cells = defaultdict(lambda: defaultdict(dict))
    with gzip.open(HERE / f"h200/several-{layout}.cells.csv.gz", "rt", newline="") as file:
        for row in csv.DictReader(file):
            params = row["params"]
            if params.startswith("gemm-thread"):
                # One shape of the block, which is near the best; `max_n` follows from the columns.
                if "threads=128 rows=1 " not in params:
                    continue
                params = re.sub(r" max_n=\d+", "", params)
            size = int(row["m"]), int(row["n"])
            if size[1] > 16 and not params.startswith("gemm-narrow"):
                key = row["dtype"], 2 ** int(row["align"]), int(row["rhs"])
                cells[key][size][params] = float(row["us"])
    # gemm-thread came last: problems that it is for and was not measured on say nothing.
    for key, problems in cells.items():
        for size in [s for s, c in problems.items() if 17 <= s[1] <= 64 and not any("gemm-thread" in p for p in c)]:
            del problems[size]
        for (m, n), cell in problems.items():
            least = min(cell.values())
            weight = WEIGHT if m * n * BYTES[key[0]] > LARGE else 1
            problems[m, n] = {params: weight * log(us / least) for params, us in cell.items()}
    return cells


def pool(cells, most):
    """The parameters with which, choosing the best for each cell, least is lost: one after another."""
    counts = Counter(params for _, cell in cells for params in cell)
    left, lost = [p for p, count in counts.items() if count >= 4], [2.0] * len(cells)
    chosen = []
    while left and len(chosen) < most:
        saved = Counter()
        for (_, cell), loss in zip(cells, lost):
            for params, value in cell.items():
                saved[params] += max(loss - value, 0)
        best = max(left, key=lambda p: (saved[p], p))
        if saved[best] < 0.15:
            break
        chosen.append(best)
        left.remove(best)
        lost = [min(loss, cell.get(best, loss)) for (_, cell), loss in zip(cells, lost)]
    return set(chosen)


def best(cells, chosen):
    """What is lost with the one that loses least, and which it is."""
    counts = Counter(params for _, cell in cells for params in cell if params in chosen)
    usual = [p for p, count in counts.items() if count >= len(cells) / 2]
    losses = [(sum(cell.get(params, MISSING) for _, cell in cells), params) for params in usual]
    return min(losses, default=(2 * MISSING * len(cells), None))


def cut(cells, chosen, depth=0):
    """What is lost, and [(bounds of log2 m and log2 n, params, cells)]."""
    loss, params = best(cells, chosen)
    whole = loss, [((0, 99, 0, 99), params, cells)]
    splits = []
    for axis in (0, 1):
        values = sorted({size[axis] for size, _ in cells})
        for low, high in zip(values, values[1:]):
            at = (log2(low) + log2(high)) / 2
            below = [cell for cell in cells if log2(cell[0][axis]) < at]
            above = [cell for cell in cells if log2(cell[0][axis]) >= at]
            splits.append((best(below, chosen)[0] + best(above, chosen)[0], axis, at, below, above))
    if len(cells) < 4 or not splits or depth > 7:
        return whole
    _, axis, at, below, above = min(splits, key=lambda split: split[:3])
    (loss_below, rows_below), (loss_above, rows_above) = cut(below, chosen, depth + 1), cut(above, chosen, depth + 1)
    if loss_below + loss_above + RATE * (len(rows_below) + len(rows_above) - 1) >= loss:
        return whole
    rows = []
    for side, part in ((1, rows_below), (0, rows_above)):
        for bounds, params, inside in part:
            bounds = list(bounds)
            place = 2 * axis + side
            bounds[place] = min(bounds[place], at) if side else max(bounds[place], at)
            rows.append((tuple(bounds), params, inside))
    return loss_below + loss_above, rows


def limited(params, bounds, cells):
    """The sizes for which a row of these parameters is legal: (least m, most m, least n, most n)."""
    kernel = params.split()[0]
    args = {name: int(value) for name, value in (word.split("=") for word in params.split()[1:])}
    low = lambda bound: 1 if bound <= 0 else floor(2**bound) + 1
    high = lambda bound: None if bound >= 90 else floor(2**bound)
    at_most = lambda a, b: b if a is None else min(a, b)
    m, n = [low(bounds[0]), high(bounds[1])], [max(low(bounds[2]), 17), high(bounds[3])]
    measured = [size for size, cell in cells if params in cell]
    if kernel == "gemm-col-tile":
        n[1] = at_most(n[1], 1 << 24)
    if kernel in ("gemm-row-panel", "gemm-row-ring") or kernel.endswith("-mma"):
        # 64 parts of as many segments of 256 columns.
        segments = args["segments"] if kernel.endswith("-mma") else args["warps_k"]
        n[1] = at_most(n[1], 1 << 24 if segments >= 4 else 16384 * segments)
    if kernel.endswith("-mma"):
        m[1] = at_most(m[1], 1 << 21)
    if kernel == "gemm-thread":
        n[1] = at_most(n[1], 64)
    if "cluster_k" in args:
        n = [max(n[0], 257), at_most(n[1], 65536)]
    if not kernel.startswith("gemm-") and kernel != "col-tile":
        # Kernels for one vector, with limits of their own.
        n[1] = at_most(n[1], max(size[1] for size in measured))
        if kernel in ("row-smem", "row-warp", "row-block", "col-thread"):
            n[0] = max(n[0], min(size[1] for size in measured))
        if kernel == "col-few-rows":
            m[1] = at_most(m[1], max(size[0] for size in measured))
    return m, n


def sizes(name, least, most):
    power = lambda v: f"2^{v.bit_length() - 1}" if v >= 1024 and v & (v - 1) == 0 else str(v)
    if (least, most) == (1, None):
        return ""
    if least == most:
        return f" {name}={power(least)}"
    return f" {name}={power(least)}..{'' if most is None else power(most)}"


def narrow(dtype, layout):
    for n in range(1, 17):
        if dtype == "f64":
            kinds = [("2", 1, 2), ("3..256", 2, 2)] if n <= 8 else [("2..256", 1, 2)]
        else:
            kinds = [("2", 2, 2), ("3..512", 2, 4) if n <= 8 else ("3..512", 1, 4)]
        for rhs, rows, tile in kinds:
            yield f"{dtype} {layout} rhs={rhs} batch=1 n={n} : gemm-narrow threads=128 rows={rows} cols={n} tile_rhs={tile} vec=1"


def wide(dtype, layout, cells, chosen):
    of = "bf16" if dtype == "f16" else dtype
    for align, least, most in ALIGN[of]:
        for rhs, name in RHS.items():
            # f64 has rows of another run from 17 right-hand sides on.
            name = "9..16" if (dtype, rhs) == ("f64", 16) else name
            here = [c for (d, a, r), cs in cells.items() if d == of and least <= a <= most and r == rhs for c in cs.items()]
            for bounds, params, inside in cut(here, chosen[of])[1]:
                if params is None:
                    continue
                (m0, m1), (n0, n1) = limited(params, bounds, inside)
                parts = [(n0, n1, params)]
                if params.startswith("gemm-thread"):
                    ends = [(17, 24), (25, 32), (33, 48), (49, 64)]
                    parts = [(max(n0, a), min(n1, b), f"{params} max_n={b}") for a, b in ends]
                for n0, n1, params in parts:
                    if n1 is None or n0 <= n1:
                        where = sizes("m", m0, m1) + sizes("n", n0, n1)
                        yield f"{dtype} {layout} align={align} rhs={name} batch=1{where} : {params}"


def main():
    for layout in ("row", "col"):
        cells = times(layout)
        chosen = {}
        for dtype, most in MOST.items():
            chosen[dtype] = pool([c for (d, _, _), cs in cells.items() if d == dtype for c in cs.items()], most)
        for dtype in ("f32", "f64", "f16", "bf16"):
            of = "bf16" if dtype == "f16" else dtype
            first = [row.replace(of, dtype, 1) for row in FIRST if row.startswith(f"{of} {layout} ")]
            for row in (*first, *narrow(dtype, layout), *wide(dtype, layout, cells, chosen)):
                print(row)


main()
