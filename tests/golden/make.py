#!/usr/bin/env python3
"""Makes the golden vectors: matrix-vector products whose bits were found without any floating-point
unit.

Every number is a whole number times a power of two, and Python's whole numbers have no limit: sums
and products are exact. Each rounding (to nearest, ties to even, with subnormals and overflow) is done
here by hand. The program follows the text of the order of additions
(gemv-core/src/order.rs) and shares no code with the library.

    python3 make.py            writes the files beside this one (a few seconds)
    python3 make.py f16 c32    only these
    python3 make.py --check    compares with them instead

A file is text. Lines that begin with # are comments. A case is

    case NAME m n conj              conj: 0 or 1
    seed S                          (long cases) A and x follow from a formula, see below
    a HEX...                        (short cases) A by rows, each element its bits
    x HEX...
    alpha HEX                       bits of the accumulator type
    beta HEX
    y HEX...                        y before; - where it must not be read
    want HEX...                     y after

A complex number is two words: real part, imaginary part. In a file of two types, such as f16-f32,
the elements of A have the first one, x and y the second, which is the accumulator's. The formula of
long cases, in 64-bit unsigned arithmetic, for element k (row-major for A, then x with S + 1):

    z = S * 0x9E3779B97F4A7C15 + k * 0xD1B54A32D192ED03      (twice k, and twice k + 1, if complex)
    z = (z ^ (z >> 29)) * 0xBF58476D1CE4E5B9
    z = z ^ (z >> 32)
    value = ((z & 0xFFFF) - 32768) * 2^(((z >> 16) & 7) - 15), rounded to the element type

partials.txt has sums of parts of the columns, as the bytes that gemv-shard sends. A case is

    case TYPE m n S                 A and x follow from the formula
    range FIRST END HEX             of columns FIRST to END - 1
    cyclic P OF HEX                 of process P of OF, with blocks of 256 columns
    reduced P OF HEX                the same, with one sum for each row and 65,536 columns
"""

import multiprocessing
import pathlib
import struct
import sys
from fractions import Fraction

MASK = (1 << 64) - 1


class Format:
    """An IEEE 754 binary format: p bits of precision, exponents emin to emax."""

    def __init__(self, name, bits, p):
        self.name, self.bits, self.p = name, bits, p
        self.ebits = bits - p
        self.bias = (1 << (self.ebits - 1)) - 1
        self.emax, self.emin = self.bias, 1 - self.bias
        # Every finite number is a whole number of these: 2^least.
        self.least = self.emin - (p - 1)

    def round(self, units, exp, sign_of_zero=0):
        """The number of the format nearest to units * 2^exp, which may be infinite."""
        if units == 0:
            return Number(sign_of_zero, 0, 0)
        sign = 1 if units < 0 else 0
        units = abs(units)
        # 2^e <= units * 2^exp < 2^(e+1), and 2^quantum is the last place of the result.
        e = units.bit_length() - 1 + exp
        quantum = max(e - (self.p - 1), self.least)
        cut = quantum - exp
        if cut > 0:
            floor = units >> cut
            rest, half = units - (floor << cut), 1 << (cut - 1)
            if rest > half or (rest == half and floor % 2 == 1):
                floor += 1
            units, exp = floor, quantum
        if units.bit_length() - 1 + exp > self.emax:
            return Number(sign, None, 0)
        return Number(sign, units, exp)

    def encode(self, n):
        sign = n.sign << (self.bits - 1)
        if n.units is None:
            return sign | (((1 << self.ebits) - 1) << (self.p - 1))
        if n.units == 0:
            return sign
        e = n.units.bit_length() - 1 + n.exp
        # The units as whole numbers of the last place.
        quantum = max(e, self.emin) - (self.p - 1)
        shift = n.exp - quantum
        units = n.units << shift if shift >= 0 else n.units >> -shift
        assert shift >= 0 or units << -shift == n.units
        if e < self.emin:
            return sign | units
        assert units >> (self.p - 1) == 1
        return sign | ((e + self.bias) << (self.p - 1)) | (units & ((1 << (self.p - 1)) - 1))


class Number:
    """A sign, and a magnitude units * 2^exp with whole units (None: infinite). No NaN occurs here."""

    __slots__ = ("sign", "units", "exp")

    def __init__(self, sign, units, exp):
        self.sign, self.units, self.exp = sign, units, exp

    def signed(self):
        assert self.units is not None
        return -self.units if self.sign else self.units

    def negated(self):
        return Number(1 - self.sign, self.units, self.exp)


def plus(a, ae, b, be):
    """The exact sum of a * 2^ae and b * 2^be."""
    if ae > be:
        return (a << (ae - be)) + b, be
    return a + (b << (be - ae)), ae


def fma(fmt, a, b, c):
    """a * b + c, rounded once."""
    product, psign = a.signed() * b.signed(), a.sign ^ b.sign
    units, exp = plus(product, a.exp + b.exp, c.signed(), c.exp)
    # An exact zero: +0, unless both addends are -0.
    zero = 1 if product == 0 and c.units == 0 and psign == 1 and c.sign == 1 else 0
    return fmt.round(units, exp, zero)


def add(fmt, a, b):
    units, exp = plus(a.signed(), a.exp, b.signed(), b.exp)
    zero = 1 if a.units == 0 and b.units == 0 and a.sign == 1 and b.sign == 1 else 0
    return fmt.round(units, exp, zero)


def mul(fmt, a, b):
    return fmt.round(a.signed() * b.signed(), a.exp + b.exp, a.sign ^ b.sign)


F16, BF16 = Format("f16", 16, 11), Format("bf16", 16, 8)
F32, F64 = Format("f32", 32, 24), Format("f64", 64, 53)


class Type:
    """An element type: its format, its accumulator's, whether elements are pairs, and the format of the
    matrix, where it is another one."""

    def __init__(self, name, fmt, acc, pair, matrix=None):
        self.name, self.fmt, self.acc, self.parts = name, fmt, acc, 2 if pair else 1
        self.matrix = matrix or fmt

    def zero(self):
        return (Number(0, 0, 0),) * self.parts

    def fma(self, lane, a, x):
        """Rule 2, and rule 7 for pairs; a and x in the accumulator's format."""
        f = self.acc
        if self.parts == 1:
            return (fma(f, a[0], x[0], lane[0]),)
        re = fma(f, a[1].negated(), x[1], fma(f, a[0], x[0], lane[0]))
        im = fma(f, a[1], x[0], fma(f, a[0], x[1], lane[1]))
        return (re, im)

    def add(self, a, b):
        return tuple(add(self.acc, p, q) for p, q in zip(a, b))

    def mul(self, a, b):
        f = self.acc
        if self.parts == 1:
            return (mul(f, a[0], b[0]),)
        re = fma(f, a[1].negated(), b[1], mul(f, a[0], b[0]))
        im = fma(f, a[1], b[0], mul(f, a[0], b[1]))
        return (re, im)

    def narrow(self, v):
        return tuple(p if p.units is None else self.fmt.round(p.signed(), p.exp, p.sign) for p in v)

    def is_(self, v, value):
        """Whether it is this whole number."""
        return plus(v[0].signed(), v[0].exp, -value, 0)[0] == 0 and all(p.signed() == 0 for p in v[1:])


TYPES = [
    Type("f32", F32, F32, False),
    Type("f64", F64, F64, False),
    Type("f16", F16, F32, False),
    Type("bf16", BF16, F32, False),
    Type("c32", F32, F32, True),
    Type("c64", F64, F64, True),
    Type("f16-f32", F32, F32, False, F16),
    Type("bf16-f32", F32, F32, False, BF16),
    Type("f32-f64", F64, F64, False, F32),
]


def reduce(t, count, visit):
    """Rules 1 to 5: visit(k, lane) adds term k to a lane."""
    if count == 0:
        return t.zero()
    sums = []
    for start in range(0, count, 256):
        lanes = [t.zero() for _ in range(64)]
        for k in range(start, min(count, start + 256)):
            lanes[k % 64] = visit(k, lanes[k % 64])
        h = 32
        while h:
            for l in range(h):
                lanes[l] = t.add(lanes[l], lanes[l + h])
            h //= 2
        sums.append(lanes[0])
    if len(sums) == 1:
        return sums[0]
    return reduce(t, len(sums), lambda k, lane: t.add(lane, sums[k]))


def gemv(t, alpha, a, x, beta, y, conj):
    """Rule 6 around rules 1 to 5. a: rows of elements; y: elements, or None where beta = 0."""
    out = []
    for i, row in enumerate(a):
        if t.is_(alpha, 0):
            if t.is_(beta, 0):
                out.append(t.narrow(t.zero()))
            elif t.is_(beta, 1):
                out.append(y[i])
            else:
                out.append(t.narrow(t.mul(beta, y[i])))
            continue

        def element(j):
            v = row[j]
            return (v[0], v[1].negated()) if conj and t.parts == 2 else v

        s = reduce(t, len(row), lambda j, lane: t.fma(lane, element(j), x[j]))
        if t.is_(beta, 0):
            v = s if t.is_(alpha, 1) else t.mul(alpha, s)
        else:
            scaled = y[i]
            if not t.is_(beta, 1):
                scaled = t.mul(beta, scaled)
            v = t.add(s, scaled) if t.is_(alpha, 1) else t.fma(scaled, alpha, s)
        out.append(t.narrow(v))
    return out


def mix(seed, k):
    z = (seed * 0x9E3779B97F4A7C15 + k * 0xD1B54A32D192ED03) & MASK
    z = ((z ^ (z >> 29)) * 0xBF58476D1CE4E5B9) & MASK
    return z ^ (z >> 32)


def generated(t, fmt, seed, k):
    """Element k of the formula."""
    out = []
    for part in range(t.parts):
        z = mix(seed, t.parts * k + part)
        out.append(fmt.round((z & 0xFFFF) - 32768, ((z >> 16) & 7) - 15))
    return tuple(out)


def full(t, fmt, seed, k, spread):
    """An element with a full mantissa, for short cases that are written out."""
    out = []
    for part in range(t.parts):
        z, w = mix(seed, 4 * k + 2 * part), mix(seed + 7919, 4 * k + 2 * part + 1)
        exponent = (w >> 8) % (2 * spread) - spread
        v = (1 << 52) + (z & ((1 << 52) - 1))
        out.append(fmt.round(-v if w & 1 else v, exponent - 52))
    return tuple(out)


def words(fmt, v):
    return " ".join(f"{fmt.encode(p):0{fmt.bits // 4}x}" for p in v)


def nearest(fmt, v):
    """The number nearest to a fraction, from twice as many bits as decide it."""
    v = Fraction(v)
    shift = 2 * fmt.bits
    units, rest = divmod(v.numerator << shift, v.denominator)
    # A bit for what is cut off, so that no fraction becomes a tie.
    return fmt.round(2 * units + (1 if rest else 0), -shift - 1)


def constant(t, re, im):
    return (nearest(t.acc, re),) + ((nearest(t.acc, im),) if t.parts == 2 else ())


def case(t, name, m, n, seed, alpha=(1, 0), beta=(0, 0), long=False, conj=False, spread=4, least=False,
         residual=False):
    lines = [f"case {name} {m} {n} {int(conj)}"]
    if long:
        a = [[generated(t, t.matrix, seed, i * n + j) for j in range(n)] for i in range(m)]
        x = [generated(t, t.fmt, seed + 1, j) for j in range(n)]
        lines.append(f"seed {seed}")
    else:
        a = [[full(t, t.matrix, seed, i * n + j, spread) for j in range(n)] for i in range(m)]
        x = [full(t, t.fmt, seed + 1, j, spread) for j in range(n)]
        if least:
            # Elements near the least subnormal: products and sums of them are subnormal too.
            scale = t.matrix.emin - t.matrix.p + 5
            a = [[tuple(t.matrix.round(p.signed(), p.exp + scale) for p in v) for v in row] for row in a]
        lines.append("a " + " ".join(words(t.matrix, v) for row in a for v in row))
        lines.append("x " + " ".join(words(t.fmt, v) for v in x))
    alpha, beta = constant(t, *alpha), constant(t, *beta)
    reads_y = not t.is_(beta, 0)
    y = [full(t, t.fmt, seed + 2, i, spread) for i in range(m)] if reads_y else None
    if residual:
        # What is left of the sum after its own rounded value: the bits that rounding would hide.
        minus = tuple(p.negated() for p in alpha)
        y = gemv(t, minus, a, x, t.zero(), None, conj)
    want = gemv(t, alpha, a, x, beta, y, conj)
    lines.append("alpha " + words(t.acc, alpha))
    lines.append("beta " + words(t.acc, beta))
    lines.append("y " + (" ".join(words(t.fmt, v) for v in y) if reads_y else "-"))
    lines.append("want " + " ".join(words(t.fmt, v) for v in want))
    return "\n".join(lines)


def overflow(t):
    """f16: a sum beyond 65,504 on the way is none at the end; one at the end is infinite."""
    rows = [(60000, 60000, -60000), (65504, 15, 0), (65504, 16, 0), (-65504, -8, -8)]
    one = t.fmt.round(1, 0)
    a = [[(t.fmt.round(v, 0),) for v in row] for row in rows]
    x = [(one,)] * 3
    alpha, beta = constant(t, 1, 0), constant(t, 0, 0)
    want = gemv(t, alpha, a, x, beta, None, False)
    return "\n".join([
        "case overflow 4 3 0",
        "a " + " ".join(words(t.fmt, v) for row in a for v in row),
        "x " + " ".join(words(t.fmt, v) for v in x),
        "alpha " + words(t.acc, alpha), "beta " + words(t.acc, beta), "y -",
        "want " + " ".join(words(t.fmt, v) for v in want),
    ])


def file(t):
    one, zero = (1, 0), (0, 0)
    odd, other = (Fraction(-7, 10), Fraction(3, 10)), (Fraction(11, 9), Fraction(-1, 3))
    # A narrow type hides most bits of a sum, and f16 cannot hold a long one.
    narrow = t.fmt is not t.acc
    plain = {"alpha": (Fraction(1, 256), 0), "beta": one, "residual": True} if narrow else \
        {"alpha": one, "beta": zero}
    cases = [
        case(t, "one", 1, 1, 1, one, zero),
        case(t, "empty", 3, 0, 2, one, other),
        case(t, "few", 3, 5, 3, odd, other),
        case(t, "sixteen", 2, 16, 4, one, one),
        case(t, "lanes-1", 2, 63, 5, one, zero),
        case(t, "lanes", 2, 64, 6, odd, zero),
        case(t, "lanes+1", 2, 65, 7, one, other),
        case(t, "segment", 1, 256, 8, one, zero),
        case(t, "segment+1", 1, 257, 9, odd, one),
        case(t, "no-product", 3, 4, 10, zero, odd),
        case(t, "subnormal", 3, 20, 11, odd, zero, spread=2, least=True),
        case(t, "long-255", 3, 255, 101, long=True, **plain),
        case(t, "long-257", 5, 257, 102, long=True, **plain),
        case(t, "long-1025", 4, 1025, 103, odd, other, long=True),
        case(t, "long-16640", 2, 64 * 260, 104, long=True, **plain),
        # 257 segments: the sums of segments are a segment and one more.
        case(t, "long-65792", 1, 257 * 256, 105, long=True, **plain),
        case(t, "long-66049", 1, 257 * 257, 106, long=True, **plain),
    ]
    if t.parts == 2:
        cases.append(case(t, "conjugate", 3, 70, 12, odd, other, conj=True))
    if t.name == "f16":
        cases.append(overflow(t))
    what = t.name if t.matrix is t.fmt else f"{t.matrix.name} matrices with {t.fmt.name} vectors"
    head = f"# Golden vectors for {what}. Made by make.py, which says what they are.\n"
    return head + "\n".join(cases) + "\n"


def segment(t, m, n, seed, s):
    """The sums of segment s, of each row."""
    columns = range(256 * s, min(256 * s + 256, n))
    x = [generated(t, t.fmt, seed + 1, j) for j in columns]
    out = []
    for i in range(m):
        a = [generated(t, t.matrix, seed, i * n + j) for j in columns]
        out.append(reduce(t, len(x), lambda k, lane: t.fma(lane, a[k], x[k])))
    return out


def lanes(t, m, sums, process, of):
    """What process has left of 256 segments' lanes: sums by the segment's place among them."""
    out = []
    for i in range(m):
        acc = [t.zero() for _ in range(64)]
        for k in sorted(sums):
            acc[k % 64] = t.add(acc[k % 64], sums[k][i])
        for h in (32, 16, 8, 4, 2, 1):
            if h >= of:
                acc[:h] = [t.add(acc[l], acc[l + h]) for l in range(h)]
        out.append(acc[process])
    return out


def sent(t, m, n, form, runs, sums):
    """The bytes of partial sums: a list of sums for each unit, of each row."""
    code = {(1, 32): 1, (1, 64): 2, (2, 32): 3, (2, 64): 4}[t.parts, t.acc.bits]
    head = struct.pack("<8sHHBBHQQQ", b"gemvsums", 1, 1, code, form, 0, m, n, len(runs))
    head += b"".join(struct.pack("<QQ", first, end) for first, end in runs)
    words = (t.acc.encode(part) for unit in sums for sum in unit for part in sum)
    return (head + b"".join(word.to_bytes(t.acc.bits // 8, "little") for word in words)).hex()


def partial(t, m, n, seed, ranges, cyclics):
    lines = [f"case {t.name} {m} {n} {seed}"]
    segments = -(-n // 256)
    for first, end in ranges:
        held = range(first // 256, -(-end // 256)) if end > first else []
        runs = [(held[0], held[-1] + 1)] if held else []
        sums = [segment(t, m, n, seed, s) for s in held]
        lines.append(f"range {first} {end} {sent(t, m, n, 0, runs, sums)}")
    for process, of in cyclics:
        held = range(process, segments, of)
        sums = {s: segment(t, m, n, seed, s) for s in held}
        runs = [(s, s + 1) for s in held] if of > 1 else [(0, segments)]
        lines.append(f"cyclic {process} {of} {sent(t, m, n, 0, runs, sums.values())}")
        groups = [{s % 256: sums[s] for s in held if s // 256 == g} for g in range(-(-segments // 256))]
        left = [lanes(t, m, group, process, of) for group in groups] if held else []
        runs = [(process, process + 1)] if held else []
        if segments > 1:
            lines.append(f"reduced {process} {of} {sent(t, m, n, of, runs, left)}")
    return "\n".join(lines)


def partials():
    cases = []
    for t in TYPES:
        cases += [
            partial(t, 2, 0, 201, [(0, 0)], [(0, 2)]),
            partial(t, 3, 5, 202, [(0, 5)], [(0, 1), (1, 2)]),
            partial(t, 1, 256, 203, [(0, 256)], []),
            partial(t, 2, 700, 204, [(0, 256), (256, 700), (512, 700), (700, 700)],
                    [(0, 1), (0, 2), (1, 2), (2, 4), (3, 4)]),
            partial(t, 1, 64 * 65, 205, [(64 * 64, 64 * 65)], [(0, 16), (15, 16), (0, 64), (40, 64)]),
            # 262 segments: two sums for each row, of which the second has one term or none.
            partial(t, 1, 261 * 256 + 3, 206, [], [(0, 64), (5, 64), (6, 64), (1, 32)]),
        ]
    return "# Golden partial sums. Made by make.py, which says what they are.\n" + "\n".join(cases) + "\n"


def made(name):
    """The file of this name: that of a type, or the partial sums of all."""
    if name == "partials":
        return partials()
    return file(next(t for t in TYPES if t.name == name))


def main():
    here = pathlib.Path(__file__).resolve().parent
    wrong = 0
    names = [a for a in sys.argv[1:] if not a.startswith("-")]
    files = [t.name for t in TYPES] + ["partials"]
    files = [name for name in files if not names or name in names]
    # A process each: they share nothing.
    with multiprocessing.Pool() as pool:
        texts = pool.map(made, files, chunksize=1)
    for name, text in zip(files, texts):
        path = here / f"{name}.txt"
        if "--check" in sys.argv:
            if path.read_text() != text:
                print(f"{path.name} differs")
                wrong = 1
        else:
            path.write_text(text)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
