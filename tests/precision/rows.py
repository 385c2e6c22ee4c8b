"""Writes `rows/*.txt`: rows of numbers, and what functions of rows and their gradients truly are there.

Needs mpmath. Everything is computed with 400 digits, since a gradient may be what is left of two numbers that agree in 300;
what is written is the nearest number of f64, and of f64's results also the nearest to the rest. See `src/precision/mod.rs`
for the form of the files.
"""

import math
import random
import struct
from pathlib import Path

from mpmath import mp, mpf

mp.dps = 400
DIGITS = {"f64": 53, "f32": 24, "f16": 11}
LEAST = {"f64": -1074, "f32": -149, "f16": -24}
CODE = {"f64": ("d", "Q"), "f32": ("f", "I"), "f16": ("e", "H")}
EPS = mpf(1e-5)


def rounded(dtype, x):
    """A float, as the type holds it."""
    try:
        return struct.unpack("<" + CODE[dtype][0], struct.pack("<" + CODE[dtype][0], x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def bits(dtype, x):
    float_code, int_code = CODE[dtype]
    size = {"Q": 16, "I": 8, "H": 4}[int_code]
    return format(struct.unpack("<" + int_code, struct.pack("<" + float_code, x))[0], f"0{size}x")


def nearest(x):
    """The f64 next to a number of many digits."""
    if not mp.isfinite(x) or x == 0:
        return float(x)
    exponent = max(int(mp.floor(mp.log(abs(x), 2))), -1022)
    unit = mpf(2) ** (exponent - 52)
    whole = int(mp.nint(x / unit))
    try:
        return math.ldexp(whole, exponent - 52)
    except OverflowError:
        return math.copysign(math.inf, whole)


def written(dtype, x):
    high = nearest(x)
    low = nearest(x - mpf(high)) if dtype == "f64" and math.isfinite(high) else 0.0
    return bits("f64", high) + (":" + bits("f64", low) if low else "")


# Functions. Each takes lists of numbers of many digits and gives lists of the same.


def exps(x):
    top = max(x)
    return [mp.exp(v - top) if mp.isfinite(v) else mpf(0) for v in x]


def shares(x):
    e = exps(x)
    total = sum(e)
    return [v / total for v in e]


def logs(x):
    top, total = max(x), sum(exps(x))
    return [v - top - mp.log(total) for v in x]


def softmax(x, g):
    p = shares(x)
    mean = sum(a * b for a, b in zip(p, g))
    return [p, [a * (b - mean) for a, b in zip(p, g)]]


def log_softmax(x, g):
    p, total = shares(x), sum(g)
    return [logs(x), [b - a * total for a, b in zip(p, g)]]


def logsumexp(x):
    return [[max(x) + mp.log(sum(exps(x)))], shares(x)]


def cross_entropy(x, target):
    t, p = int(target[0]), shares(x)
    return [[-logs(x)[t]], [a - (i == t) for i, a in enumerate(p)]]


def cross_entropy_smoothed(x, target):
    t, p, a, n = int(target[0]), shares(x), mpf(0.1), len(x)
    log = logs(x)
    want = [(1 - a) * (i == t) + a / n for i in range(n)]
    return [[-sum(w * v for w, v in zip(want, log))], [q - w for q, w in zip(p, want)]]


def softmax_entropy(x):
    p, log = shares(x), logs(x)
    h = -sum((a * b for a, b in zip(p, log) if a != 0), mpf(0))
    return [[h], [-a * (b + h) if a != 0 else mpf(0) for a, b in zip(p, log)]]


def bce_with_logits(x, y):
    soft = lambda v: mp.log1p(mp.exp(v))
    value = [b * soft(-a) + (1 - b) * soft(a) for a, b in zip(x, y)]
    return [value, [1 / (1 + mp.exp(-a)) - b for a, b in zip(x, y)]]


def mse(x, y):
    return [[(a - b) ** 2 for a, b in zip(x, y)], [2 * (a - b) for a, b in zip(x, y)]]


def mean(x):
    return [[sum(x) / len(x)]]


def norm(x):
    size = mp.sqrt(sum(v * v for v in x))
    return [[size], [v / size if size else mpf(0) for v in x]]


def variance(x):
    n = len(x)
    middle = sum(x) / n
    return [[sum((v - middle) ** 2 for v in x) / n], [2 * (v - middle) / n for v in x]]


def standardized(x, g):
    n = len(x)
    middle = sum(x) / n
    r = 1 / mp.sqrt(sum((v - middle) ** 2 for v in x) / n + EPS)
    y = [(v - middle) * r for v in x]
    mean_g, mean_gy = sum(g) / n, sum(a * b for a, b in zip(g, y)) / n
    return [y, [r * (a - mean_g - b * mean_gy) for a, b in zip(g, y)]]


def rms(x, g):
    n = len(x)
    r = 1 / mp.sqrt(sum(v * v for v in x) / n + EPS)
    y = [v * r for v in x]
    mean_gy = sum(a * b for a, b in zip(g, y)) / n
    return [y, [r * (a - b * mean_gy) for a, b in zip(g, y)]]


# Rows.


def normal(rng, n, scale=1.0, offset=0.0):
    return [offset + scale * rng.gauss(0, 1) for _ in range(n)]


def logits(dtype, rng):
    """Of all sizes, confident or not, large, equal, masked."""
    far = {"f64": 700.0, "f32": 80.0, "f16": 14.0}[dtype]
    large = {"f64": [1e5, 1e17, 1e300], "f32": [1e4, 1e6, 1e8, 3e38], "f16": [1000.0, 30000.0]}[dtype]
    yield from ([v, v] for v in large)
    yield from ([-v, -v] for v in large)
    yield from ([v, v - 1] for v in large[:1])
    yield from ([v, 0.0] for v in [20.0, 17.0, 5.0, 0.01, 1e-30, 9.0])
    yield from ([0.0, -v] for v in [20.0, 12.0])
    yield [3.5]
    yield [math.nextafter(0.0, 1.0), -1e-3]
    for scale in [1e-6, 0.1, 1.0, 5.0]:
        yield normal(rng, 8, scale)
    yield normal(rng, 8, 3.0, large[0])
    yield [far * 0.9] + [-0.1 * far * rng.random() for _ in range(7)]
    yield [0.0, -math.inf, 1.0, -math.inf, 12.0, 12.0, -3.0, 0.25]
    yield [2.0] * 8
    yield normal(rng, 33, 4.0)


def distances(dtype, rng):
    """Rows to be normalised: of all scales, with large offsets, nearly constant."""
    scales = {"f64": [1e-150, 1e-3, 1.0, 1e150], "f32": [1e-30, 1e-3, 1.0, 1e18, 1e30], "f16": [1e-3, 1.0, 1e4]}[dtype]
    for n in [2, 8, 33]:
        for scale in scales:
            yield normal(rng, n, scale)
    offset = {"f64": 1e12, "f32": 1e4, "f16": 500.0}[dtype]
    step = {"f64": 1e-3, "f32": 1e-3, "f16": 0.5}[dtype]
    yield [offset + step * i for i in range(8)]
    yield [offset + step * rng.randrange(20) for _ in range(33)]
    yield [offset] * 7 + [offset * 1.01]
    yield [scales[-1], -scales[-1]]
    yield [1.0, 2.0]


def moderate(dtype, rng):
    """As `distances`, where squares are in range."""
    limit = {"f64": 1e140, "f32": 1e17, "f16": 100.0}[dtype]
    least = {"f64": 1e-140, "f32": 1e-17, "f16": 0.05}[dtype]
    for row in distances(dtype, rng):
        spread = max(row) - min(row)
        if least < spread < limit:
            yield row


def anything(dtype, rng):
    """Rows whose elements have any exponent."""
    high = {"f64": 990, "f32": 119, "f16": 10}[dtype]
    for n in [1, 2, 8, 33]:
        for _ in range(3):
            yield [math.ldexp(rng.choice([-1, 1]) * (1 + rng.random()), rng.randint(LEAST[dtype] + 2, high)) for _ in range(n)]
    yield [math.ldexp(1.0 + i / 8, LEAST[dtype] + 3) for i in range(8)]


def with_g(rows):
    def draw(dtype, rng):
        for row in rows(dtype, rng):
            yield row, normal(rng, len(row))

    return draw


def with_target(rows):
    def draw(dtype, rng):
        for row in rows(dtype, rng):
            finite = [i for i, v in enumerate(row) if math.isfinite(v)]
            for t in {max(finite, key=lambda i: row[i]), rng.choice(finite)}:
                yield row, [float(t)]

    return draw


def decisions(dtype, rng):
    ends = {"f64": [700.0, 36.0], "f32": [80.0, 17.0], "f16": [15.0, 8.0]}[dtype]
    sizes = ends + [20.0, 10.0, 5.0, 1.0, 0.3, 1e-3, 6e-8, 0.0]
    for y in [1.0, 0.0]:
        for sign in [1.0, -1.0]:
            yield [sign * v for v in sizes[:8]], [y] * 8
            yield [sign * v for v in sizes[8:]], [y] * 2
    yield normal(rng, 8, 3.0), [rng.random() for _ in range(8)]


def pairs(dtype, rng):
    top = {"f64": 1e150, "f32": 1e18, "f16": 200.0}[dtype]
    for scale in [1e-3, 1.0, top]:
        yield normal(rng, 8, scale), normal(rng, 8, scale)
    yield [1000.0 + i for i in range(8)], [1000.25] * 8


def alone(rows):
    def draw(dtype, rng):
        for row in rows(dtype, rng):
            yield (row,)

    return draw


FUNCTIONS = {
    "softmax": (softmax, with_g(logits)),
    "log_softmax": (log_softmax, with_g(logits)),
    "logsumexp": (logsumexp, alone(logits)),
    "cross_entropy": (cross_entropy, with_target(logits)),
    "cross_entropy_smoothed": (cross_entropy_smoothed, with_target(lambda d, r: (x for x in logits(d, r) if all(map(math.isfinite, x))))),
    "softmax_entropy": (softmax_entropy, alone(logits)),
    "bce_with_logits": (bce_with_logits, decisions),
    "mse": (mse, pairs),
    "mean": (mean, alone(anything)),
    "norm": (norm, alone(anything)),
    "variance": (variance, alone(moderate)),
    "standardized": (standardized, with_g(distances)),
    "standardized_moderate": (standardized, with_g(moderate)),
    "rms": (rms, with_g(distances)),
}


def main():
    folder = Path(__file__).parent / "rows"
    folder.mkdir(exist_ok=True)
    for name, (function, draw) in FUNCTIONS.items():
        lines = ["# Written by tests/precision/rows.py."]
        for dtype in DIGITS:
            for arguments in draw(dtype, random.Random(f"{name} {dtype}")):
                arguments = [[rounded(dtype, v) for v in argument] for argument in arguments]
                results = function(*[[mpf(v) for v in argument] for argument in arguments])
                left = " ".join(",".join(bits(dtype, v) for v in argument) for argument in arguments)
                right = " ".join(",".join(written(dtype, v) for v in result) for result in results)
                lines.append(f"{dtype} {left} | {right}")
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


main()
