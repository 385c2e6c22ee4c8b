#!/usr/bin/env python3
"""Values and slopes of elementwise functions to 50 digits, at points of f64, f32 and f16.

Writes one text file for each function beside this script, in the form that `tests/src/precision/mod.rs` states: the
results are the value, then the slope in each argument. Needs mpmath 1.3; the same points and digits come out each time.
"""

import math
import pathlib
import random
import struct

from mpmath import cos, erf, erfc, exp, expm1, inf, log, log1p, mp, mpf, pi, power, sech, sin, sqrt, tanh

mp.dps = 50
# The format, the code of its bits, the digits of f64 that tell the truth, and exponents: of 1 unit of the least normal
# number, the least normal number, and the largest.
TYPES = {
    "f64": ("d", "Q", 16, -1074, -1022, 1023),
    "f32": ("f", "I", 12, -149, -126, 127),
    "f16": ("e", "H", 9, -24, -14, 15),
}
half = mpf(1) / 2


def rounded(dtype, x):
    """The number of a type next to x, or None beyond its largest."""
    code = TYPES[dtype][0]
    try:
        y = struct.unpack(code, struct.pack(code, float(x)))[0]
    except OverflowError:
        return None
    return None if math.isinf(y) else y


def bits(dtype, x):
    code, word, *_ = TYPES[dtype]
    number = struct.unpack(word, struct.pack(code, x))[0]
    return (f"{number:0{2 * struct.calcsize(word)}x}".rstrip("0")) or "0"


def neighbours(dtype, x, steps):
    code, word, *_ = TYPES[dtype]
    x = rounded(dtype, x)
    found = []
    for step in steps:
        number = struct.unpack(word, struct.pack(code, abs(x)))[0] + step
        if number >= 0:
            y = struct.unpack(code, struct.pack(word, number))[0]
            if math.isfinite(y):
                found.append(math.copysign(y, x) if x else y)
    return found


def truth(dtype, x):
    """The f64 next to x, and for f64 what is left, as digits."""
    high = float(x)
    text = f"{struct.unpack('Q', struct.pack('d', high))[0]:016x}"
    if dtype != "f64":
        keep = TYPES[dtype][2]
        number = int(text, 16) + (1 << (4 * (16 - keep) - 1))
        text = f"{number:016x}"[:keep] if math.isfinite(high) else text
        return text.rstrip("0") or "0"
    low = float(x - mpf(high)) if math.isfinite(high) else 0.0
    if low == 0.0:
        return text.rstrip("0") or "0"
    return (text.rstrip("0") or "0") + ":" + f"{struct.unpack('Q', struct.pack('d', low))[0]:016x}"[:8]


def e(x):
    """e^x, or what rounds as it does in every type."""
    return exp(max(min(x, mpf(10) ** 4), -mpf(10) ** 4))


def far(x, bound=10 ** 3):
    return max(min(x, mpf(bound)), -mpf(bound))


def sigmoid(x):
    return 1 / (1 + e(-x))


def cdf(x):
    return erfc(-far(x) / sqrt(2)) / 2


def pdf(x):
    return exp(-far(x) ** 2 / 2) / sqrt(2 * pi)


def cubic(x):
    return 2 * sqrt(2 / pi) * (x + mpf("0.044715") * x ** 3)


def cubic_slope(x):
    return 2 * sqrt(2 / pi) * (1 + 3 * mpf("0.044715") * x ** 2)


def cdf_tanh(x):
    return sigmoid(cubic(far(x)))


def cdf_tanh_slope(x):
    x = far(x)
    return sigmoid(cubic(x)) * sigmoid(-cubic(x)) * cubic_slope(x)


def whole(x):
    return True


def positive(x):
    return x > 0


# For each function: where it is defined, value, slope, and points that are looked at more closely.
UNARY = {
    "neg": (whole, lambda x: -x, lambda x: mpf(-1), []),
    "recip": (lambda x: x != 0, lambda x: 1 / x, lambda x: -1 / x ** 2, [2.0 ** 126, 2.0 ** 64]),
    "sqrt": (positive, sqrt, lambda x: half / sqrt(x), [4.0]),
    "rsqrt": (positive, lambda x: 1 / sqrt(x), lambda x: -half / (x * sqrt(x)), [4.0, 1e25]),
    "guarded_sqrt": (positive, sqrt, lambda x: half / sqrt(x), [4.0]),
    "exp": (whole, e, e, [88.7228, -87.3365, -103.97, 11.09, -9.7, -17.32, 709.78, -708.4, -745.1]),
    "expm1": (whole, lambda x: expm1(far(x, 10 ** 4)), e, [0.3466, -0.3466, 88.7228, -17.3, -20.0, 709.78, -37.0]),
    "log": (positive, log, lambda x: 1 / x, [math.sqrt(0.5), math.sqrt(2)]),
    "log1p": (lambda x: x > -1, log1p, lambda x: 1 / (1 + x), [-0.29, 0.41, -0.9999, -0.999, 2.9e-8, 2.0 ** -24]),
    "sin": (whole, sin, cos, [k * math.pi / 2 for k in (1, 2, 3, 4, 7, 100, 5215, 20000)] + [2.0 ** 20, 8192.0]),
    "cos": (whole, cos, lambda x: -sin(x), [k * math.pi / 2 for k in (1, 2, 3, 4, 7, 100, 5215, 20000)] + [2.0 ** 20]),
    "tanh": (whole, tanh, lambda x: sech(far(x, 10 ** 4)) ** 2, [9.0, 10.0, 17.3, 44.0, 0.17, 19.06, 350.0]),
    "erf": (whole, erf, lambda x: 2 / sqrt(pi) * exp(-far(x) ** 2), [4.0, 9.0, 9.3, 2.0, 26.5, 5.9, 0.84375]),
    "sigmoid": (whole, sigmoid, lambda x: sigmoid(x) * sigmoid(-x), [-87.3, -103.9, 17.0, -17.0, -37.0, 88.0, -745.0, 745.0]),
    "normal_cdf": (whole, cdf, pdf, [-5.0, -12.9, -14.1, 5.5, -37.5, -38.4, 8.2]),
    "normal_pdf": (whole, pdf, lambda x: -x * pdf(x), [5.0, 12.9, -13.1, 14.1, 38.5, -37.5]),
    "abs": (lambda x: x != 0, abs, lambda x: mpf(1 if x > 0 else -1), []),
    "square": (whole, lambda x: x ** 2, lambda x: 2 * x, [1e-20, 1e19]),
    "relu": (whole, lambda x: max(x, mpf(0)), lambda x: mpf(x > 0), []),
    "leaky_relu": (whole, lambda x: x if x > 0 else x / 10, lambda x: mpf(1) if x > 0 else mpf(1) / 10, []),
    "elu": (whole, lambda x: x if x > 0 else expm1(far(x)) * 7 / 10, lambda x: mpf(1) if x > 0 else e(x) * 7 / 10, [-17.0, -87.0, -37.0]),
    "clamp": (lambda x: abs(x) != 1, lambda x: far(x, 1), lambda x: mpf(abs(x) < 1), []),
    "gelu": (whole, lambda x: x * cdf(x), lambda x: cdf(x) + x * pdf(x), [-0.751791524693564, -1.2, -0.4, -5.0, -12.9, -14.1, 6.0, -38.4]),
    "gelu_tanh": (whole, lambda x: x * cdf_tanh(x), lambda x: cdf_tanh(x) + x * cdf_tanh_slope(x), [-0.752461, -1.2, -0.4, -5.0, -9.9, -10.6, 6.0, -20.7]),
    "silu": (whole, lambda x: x * sigmoid(x), lambda x: sigmoid(x) * (1 + x * sigmoid(-x)), [-1.2784645427610738, -2.0, -0.8, -17.0, -87.3, 17.0, -745.0]),
    "softplus": (whole, lambda x: log1p(e(x)) if x < 0 else x + log1p(e(-x)), sigmoid, [-17.0, -87.3, -103.9, 17.0, -37.0, 37.0]),
    "log_sigmoid": (whole, lambda x: -log1p(e(-x)) if x > 0 else x - log1p(e(x)), lambda x: sigmoid(-x), [17.0, 87.3, 103.9, -17.0]),
    "pow_3": (whole, lambda x: x ** 3, lambda x: 3 * x ** 2, [1e12, 1e-13]),
    "pow_minus_three_halves": (positive, lambda x: x ** (-3 * half), lambda x: -3 * half * x ** (-5 * half), [1e15, 1e-20]),
}


def power_slope(a, b):
    return b * power(a, b - 1)


BINARY = {
    "add": (lambda a, b: a + b, lambda a, b: mpf(1), lambda a, b: mpf(1)),
    "sub": (lambda a, b: a - b, lambda a, b: mpf(1), lambda a, b: mpf(-1)),
    "mul": (lambda a, b: a * b, lambda a, b: b, lambda a, b: a),
    "div": (lambda a, b: a / b, lambda a, b: 1 / b, lambda a, b: -a / b ** 2),
    "pow": (power, power_slope, lambda a, b: power(a, b) * log(a)),
    "maximum": (max, lambda a, b: mpf(a > b) + mpf(a == b) / 2, lambda a, b: mpf(b > a) + mpf(a == b) / 2),
    "minimum": (min, lambda a, b: mpf(a < b) + mpf(a == b) / 2, lambda a, b: mpf(b < a) + mpf(a == b) / 2),
}


def anywhere(rng, dtype):
    """A number of any exponent of a type, subnormal numbers among them."""
    _, _, _, least, _, most = TYPES[dtype]
    while True:
        x = rounded(dtype, math.ldexp(1 + rng.random(), rng.randint(least, most)))
        if x is not None:
            return x * rng.choice((1, -1))


def arguments(rng, dtype, closer):
    _, _, _, least, normal, most = TYPES[dtype]
    points = [0.0, -0.0]
    steps = 24 if dtype == "f16" else 32
    for i in range(steps):
        exponent = least + (most - least) * i // (steps - 1)
        points += [s * rounded(dtype, math.ldexp(1 + 0.9 * rng.random(), exponent)) for s in (1, -1)]
    for x in (math.ldexp(1, least), math.ldexp(1, normal), 1.0, math.ldexp(2 - 2.0 ** -10, most)):
        points += [s * y for y in neighbours(dtype, x, (-1, 0, 1)) for s in (1, -1)]
    points += [rng.uniform(-20, 20) for _ in range(24)] + [rng.uniform(-2, 2) for _ in range(16)]
    points += [rng.choice((1, -1)) * 10 ** rng.uniform(-3, 3) for _ in range(12)]
    for x in closer:
        if rounded(dtype, x) is not None:
            points += neighbours(dtype, x, (-1, 0, 1)) + [x * (1 + rng.uniform(-1, 1) * 2.0 ** -k) for k in (3, 7, 12)]
    points = [rounded(dtype, x) for x in points]
    return list(dict.fromkeys(bits(dtype, x) for x in points if x is not None and math.isfinite(x)))


def value(dtype, text):
    code, word, *_ = TYPES[dtype]
    width = 2 * struct.calcsize(word)
    return struct.unpack(code, struct.pack(word, int(text.ljust(width, "0"), 16)))[0]


def pairs(rng, dtype, name):
    _, _, _, least, normal, most = TYPES[dtype]
    found = []
    for i in range(150):
        a, b = anywhere(rng, dtype), anywhere(rng, dtype)
        if i % 3 == 0:
            a, b = rng.uniform(-20, 20), rng.uniform(-20, 20)
        if name in ("add", "sub", "maximum", "minimum") and i % 3 == 1:
            b = a * (1 + rng.uniform(-1, 1) * 2.0 ** -rng.randint(0, 12))
        if name in ("maximum", "minimum") and i % 10 == 1:
            b = a
        if name == "pow":
            a = abs(a) if i % 4 else 1 + rng.uniform(-1, 1) * 2.0 ** -rng.randint(1, 10)
            # Powers over the whole range of the type, and small and special exponents.
            to = rng.uniform(math.log(2) * normal, math.log(2) * most)
            b = to / math.log(a) if a != 1 else 1.0
            b = (b, rng.uniform(-3, 3), rng.choice((2.0, 3.0, 0.5, -1.0, -1.5, 1.0, 0.3, 1e-3)))[i % 3 if i % 2 else 0]
        a, b = rounded(dtype, a), rounded(dtype, b)
        if a is None or b is None or (name == "div" and b == 0) or (name == "pow" and a <= 0):
            continue
        found.append((a, b))
    return found


def written(name, lines):
    path = pathlib.Path(__file__).with_name(name + ".txt")
    path.write_text(f"# {name}, by elementwise.py\n" + "\n".join(lines) + "\n")


def main():
    for name, (defined, f, slope, closer) in UNARY.items():
        rng, lines = random.Random(name), []
        for dtype in TYPES:
            for text in arguments(rng, dtype, closer):
                number = value(dtype, text)
                x = mpf(number)
                if defined(x):
                    lines.append(f"{dtype} {text} | {truth(dtype, f(x))} {truth(dtype, slope(x))}")
        written(name, lines)
    for name, functions in BINARY.items():
        rng, lines = random.Random(name), []
        for dtype in TYPES:
            for a, b in pairs(rng, dtype, name):
                results = " ".join(truth(dtype, f(mpf(a), mpf(b))) for f in functions)
                lines.append(f"{dtype} {bits(dtype, a)} {bits(dtype, b)} | {results}")
        written(name, lines)


if __name__ == "__main__":
    main()
