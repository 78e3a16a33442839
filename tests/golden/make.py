#!/usr/bin/env python3
"""Makes the golden vectors: matrix-vector products whose bits were found without any floating-point
unit.

Every number is a fractions.Fraction; each rounding (to nearest, ties to even, with subnormals and
overflow) is done here by hand. The program follows the text of the order of additions
(gemv-core/src/order.rs) and shares no code with the library.

    python3 make.py            writes the files beside this one (two minutes)
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

A complex number is two words: real part, imaginary part. The formula of long cases, in 64-bit
unsigned arithmetic, for element k (row-major for A, then x with S + 1):

    z = S * 0x9E3779B97F4A7C15 + k * 0xD1B54A32D192ED03      (twice k, and twice k + 1, if complex)
    z = (z ^ (z >> 29)) * 0xBF58476D1CE4E5B9
    z = z ^ (z >> 32)
    value = ((z & 0xFFFF) - 32768) * 2^(((z >> 16) & 7) - 15), rounded to the element type
"""

import multiprocessing
import pathlib
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

    def round(self, v, sign_of_zero=0):
        """A Fraction to the nearest number of the format: (sign, Fraction magnitude) or inf."""
        sign = 1 if v < 0 else 0
        v = abs(v)
        if v == 0:
            return Number(self, sign_of_zero, Fraction(0))
        # The exponent e with 2^e <= v < 2^(e+1).
        e = v.numerator.bit_length() - v.denominator.bit_length()
        if v < Fraction(2) ** e:
            e -= 1
        assert Fraction(2) ** e <= v < Fraction(2) ** (e + 1)
        quantum = Fraction(2) ** (max(e, self.emin) - (self.p - 1))
        units = v / quantum
        floor = units.numerator // units.denominator
        rest = units - floor
        if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and floor % 2 == 1):
            floor += 1
        v = floor * quantum
        if v >= Fraction(2) ** (self.emax + 1):
            return Number(self, sign, None)
        return Number(self, sign, v)

    def encode(self, n):
        sign = n.sign << (self.bits - 1)
        if n.mag is None:
            return sign | (((1 << self.ebits) - 1) << (self.p - 1))
        if n.mag == 0:
            return sign
        least = Fraction(2) ** (self.emin - (self.p - 1))
        if n.mag < Fraction(2) ** self.emin:
            units = n.mag / least
            assert units.denominator == 1
            return sign | units.numerator
        e = n.mag.numerator.bit_length() - n.mag.denominator.bit_length()
        if n.mag < Fraction(2) ** e:
            e -= 1
        units = n.mag / Fraction(2) ** (e - (self.p - 1))
        assert units.denominator == 1 and units.numerator >> (self.p - 1) == 1
        return sign | ((e + self.bias) << (self.p - 1)) | (units.numerator & ((1 << (self.p - 1)) - 1))


class Number:
    """A number of a format: sign and magnitude (None: infinite). No NaN occurs here."""

    __slots__ = ("fmt", "sign", "mag")

    def __init__(self, fmt, sign, mag):
        self.fmt, self.sign, self.mag = fmt, sign, mag

    def value(self):
        assert self.mag is not None
        return -self.mag if self.sign else self.mag

    def negated(self):
        return Number(self.fmt, 1 - self.sign, self.mag)


def fma(fmt, a, b, c):
    """a * b + c, rounded once."""
    product, psign = a.value() * b.value(), a.sign ^ b.sign
    exact = product + c.value()
    # An exact zero: +0, unless both addends are -0.
    zero = 1 if product == 0 and c.mag == 0 and psign == 1 and c.sign == 1 else 0
    return fmt.round(exact, zero)


def add(fmt, a, b):
    exact = a.value() + b.value()
    zero = 1 if a.mag == 0 and b.mag == 0 and a.sign == 1 and b.sign == 1 else 0
    return fmt.round(exact, zero)


def mul(fmt, a, b):
    return fmt.round(a.value() * b.value(), a.sign ^ b.sign)


F16, BF16 = Format("f16", 16, 11), Format("bf16", 16, 8)
F32, F64 = Format("f32", 32, 24), Format("f64", 64, 53)


class Type:
    """An element type: its format, its accumulator's, and whether elements are pairs."""

    def __init__(self, name, fmt, acc, pair):
        self.name, self.fmt, self.acc, self.parts = name, fmt, acc, 2 if pair else 1

    def zero(self):
        return (Number(self.acc, 0, Fraction(0)),) * self.parts

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
        return tuple(self.fmt.round(p.value(), p.sign) if p.mag is not None
                     else Number(self.fmt, p.sign, None) for p in v)

    def widen(self, v):
        return tuple(Number(self.acc, p.sign, p.mag) for p in v)

    def is_(self, v, value):
        return v[0].value() == value and all(p.value() == 0 for p in v[1:])


TYPES = [
    Type("f32", F32, F32, False),
    Type("f64", F64, F64, False),
    Type("f16", F16, F32, False),
    Type("bf16", BF16, F32, False),
    Type("c32", F32, F32, True),
    Type("c64", F64, F64, True),
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
    wide_x = [t.widen(v) for v in x]
    for i, row in enumerate(a):
        if t.is_(alpha, 0):
            if t.is_(beta, 0):
                out.append(t.narrow(t.zero()))
            elif t.is_(beta, 1):
                out.append(y[i])
            else:
                out.append(t.narrow(t.mul(beta, t.widen(y[i]))))
            continue

        def element(j):
            v = t.widen(row[j])
            return (v[0], v[1].negated()) if conj and t.parts == 2 else v

        s = reduce(t, len(row), lambda j, lane: t.fma(lane, element(j), wide_x[j]))
        if t.is_(beta, 0):
            v = s if t.is_(alpha, 1) else t.mul(alpha, s)
        else:
            scaled = t.widen(y[i])
            if not t.is_(beta, 1):
                scaled = t.mul(beta, scaled)
            v = t.add(s, scaled) if t.is_(alpha, 1) else t.fma(scaled, alpha, s)
        out.append(t.narrow(v))
    return out


def mix(seed, k):
    z = (seed * 0x9E3779B97F4A7C15 + k * 0xD1B54A32D192ED03) & MASK
    z = ((z ^ (z >> 29)) * 0xBF58476D1CE4E5B9) & MASK
    return z ^ (z >> 32)


def generated(t, seed, k):
    """Element k of the formula."""
    out = []
    for part in range(t.parts):
        z = mix(seed, t.parts * k + part)
        v = ((z & 0xFFFF) - 32768) * Fraction(2) ** (((z >> 16) & 7) - 15)
        out.append(t.fmt.round(v))
    return tuple(out)


def full(t, seed, k, spread):
    """An element with a full mantissa, for short cases that are written out."""
    out = []
    for part in range(t.parts):
        z, w = mix(seed, 4 * k + 2 * part), mix(seed + 7919, 4 * k + 2 * part + 1)
        exponent = (w >> 8) % (2 * spread) - spread
        v = (1 + Fraction(z & ((1 << 52) - 1), 1 << 52)) * Fraction(2) ** exponent
        out.append(t.fmt.round(-v if w & 1 else v))
    return tuple(out)


def words(fmt, v):
    return " ".join(f"{fmt.encode(p):0{fmt.bits // 4}x}" for p in v)


def constant(t, re, im):
    v = (t.acc.round(Fraction(re)),) + ((t.acc.round(Fraction(im)),) if t.parts == 2 else ())
    return v


def case(t, name, m, n, seed, alpha=(1, 0), beta=(0, 0), long=False, conj=False, spread=4, least=False,
         residual=False):
    lines = [f"case {name} {m} {n} {int(conj)}"]
    if long:
        a = [[generated(t, seed, i * n + j) for j in range(n)] for i in range(m)]
        x = [generated(t, seed + 1, j) for j in range(n)]
        lines.append(f"seed {seed}")
    else:
        a = [[full(t, seed, i * n + j, spread) for j in range(n)] for i in range(m)]
        x = [full(t, seed + 1, j, spread) for j in range(n)]
        if least:
            # Elements near the least subnormal: products and sums of them are subnormal too.
            scale = Fraction(2) ** (t.fmt.emin - t.fmt.p + 5)
            a = [[tuple(t.fmt.round(p.value() * scale) for p in v) for v in row] for row in a]
        lines.append("a " + " ".join(words(t.fmt, v) for row in a for v in row))
        lines.append("x " + " ".join(words(t.fmt, v) for v in x))
    alpha, beta = constant(t, *alpha), constant(t, *beta)
    reads_y = not t.is_(beta, 0)
    y = [full(t, seed + 2, i, spread) for i in range(m)] if reads_y else None
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
    one = t.fmt.round(Fraction(1))
    a = [[(t.fmt.round(Fraction(v)),) for v in row] for row in rows]
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
    head = f"# Golden vectors for {t.name}. Made by make.py, which says what they are.\n"
    return head + "\n".join(cases) + "\n"


def made(name):
    """The file of the type of this name."""
    return file(next(t for t in TYPES if t.name == name))


def main():
    here = pathlib.Path(__file__).resolve().parent
    wrong = 0
    names = [a for a in sys.argv[1:] if not a.startswith("-")]
    types = [t for t in TYPES if not names or t.name in names]
    # A process each: they share nothing.
    with multiprocessing.Pool() as pool:
        texts = pool.map(made, [t.name for t in types], chunksize=1)
    for t, text in zip(types, texts):
        path = here / f"{t.name}.txt"
        if "--check" in sys.argv:
            if path.read_text() != text:
                print(f"{path.name} differs")
                wrong = 1
        else:
            path.write_text(text)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
