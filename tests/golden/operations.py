#!/usr/bin/env python3
"""Golden vectors of operations on images, sorting, products, losses and layers: writes operations.safetensors and their
entries of index.json.

  python operations.py                  next to this script

Needs: torch 2.9 or later (CPU), numpy, safetensors.  Deterministic: PCG64 streams keyed by the vector's name.

Inputs are drawn in f64 and rounded to the type of the vector.  PyTorch computes results and gradients in f64 from the
rounded inputs, and they are then rounded; in f32 the error of PyTorch in f32 sets the floor of the tolerance.  Results and
gradients that only move elements, or that are whole numbers, are exact.

PyTorch has no rotary positions: they are written here as products of complex numbers.
"""
import sys
import numpy as np
import torch
import torch.nn.functional as F

sys.dont_write_bytecode = True
from vectors import NUMPY, draw, size, tolerance_f32, write

torch.set_num_threads(1)
FILE = "operations.safetensors"
TORCH = {"f64": torch.float64, "f32": torch.float32}
INF, NAN = float("inf"), float("nan")
VECTORS = []


def vector(name, op, rule, inputs, attrs={}, diff=None, exact=False, note=None):
    """A vector.  The rule takes the inputs in order, and the attributes by name.  An input is a shape, for drawn numbers, or
    an array.  All floats are in `diff`, unless it is given."""
    VECTORS.append((name, op, rule, inputs, attrs, diff, exact, note))


def positive(key, *shape):
    return np.exp(0.5 * draw(f"operations:{key}", *shape))


def shares(key, *shape):
    """Probabilities along the last axis."""
    x = positive(key, *shape) ** 2
    return x / x.sum(-1, keepdims=True)


# Transposed convolutions.

for name, x, weight, bias, stride, padding, output_padding, dilation, groups in [
    ("plain", (2, 3, 4, 5), (3, 4, 3, 2), True, [1, 1], [0, 0], [0, 0], [1, 1], 1),
    ("stride", (2, 3, 4, 3), (3, 2, 3, 3), True, [2, 3], [0, 0], [0, 0], [1, 1], 1),
    ("padding", (1, 2, 5, 4), (2, 3, 3, 4), False, [1, 2], [1, 2], [0, 0], [1, 1], 1),
    ("output_padding", (2, 2, 3, 4), (2, 3, 3, 3), True, [2, 3], [1, 0], [1, 2], [1, 1], 1),
    ("dilation", (1, 2, 4, 4), (2, 2, 3, 2), False, [1, 2], [1, 1], [0, 1], [2, 3], 1),
    ("groups", (2, 4, 3, 4), (4, 3, 3, 3), True, [2, 2], [1, 1], [1, 1], [1, 1], 2),
    ("depthwise", (1, 3, 4, 4), (3, 1, 2, 2), False, [2, 2], [0, 0], [0, 0], [1, 1], 3),
]:
    inputs = {"x": x, "weight": weight} | ({"bias": (weight[1] * groups,)} if bias else {})
    attrs = dict(stride=stride, padding=padding, output_padding=output_padding, dilation=dilation, groups=groups)
    vector(f"conv_transpose2d_{name}", "conv_transpose2d", F.conv_transpose2d, inputs, attrs)
for name, x, weight, bias, stride, padding, output_padding, dilation, groups in [
    ("plain", (2, 3, 6), (3, 2, 3), True, 1, 0, 0, 1, 1),
    ("all", (2, 4, 5), (4, 3, 4), True, 3, 2, 2, 2, 2),
]:
    inputs = {"x": x, "weight": weight} | ({"bias": (weight[1] * groups,)} if bias else {})
    attrs = dict(stride=stride, padding=padding, output_padding=output_padding, dilation=dilation, groups=groups)
    vector(f"conv_transpose1d_{name}", "conv_transpose1d", F.conv_transpose1d, inputs, attrs)

# Interpolation.  The positions of PyTorch's nearest pixels are rounded to f32, which these extents bear.

for name, x, to in [
    ("double", (2, 3, 3, 4), [6, 8]),
    ("larger", (1, 2, 3, 5), [7, 8]),
    ("smaller", (2, 2, 7, 8), [3, 5]),
    ("mixed", (1, 2, 3, 6), [5, 4]),
]:
    attrs = {"mode": "nearest", "size": to}
    vector(f"interpolate_nearest_{name}", "interpolate", F.interpolate, {"x": x}, attrs)
    for align_corners in [False, True]:
        attrs = {"mode": "bilinear", "size": to, "align_corners": align_corners}
        suffix = "_corners" if align_corners else ""
        vector(f"interpolate_bilinear_{name}{suffix}", "interpolate", F.interpolate, {"x": x}, attrs)
attrs = {"mode": "bilinear", "size": [3, 1], "align_corners": False}
vector("interpolate_bilinear_one", "interpolate", F.interpolate, {"x": (1, 2, 1, 4)}, attrs)

# Pools.

for name, x, output_size in [
    ("even", (2, 2, 6, 4), [3, 2]),
    ("overlapping", (2, 3, 7, 5), [3, 4]),
    ("whole", (2, 3, 4, 5), [1, 1]),
    ("more", (1, 2, 2, 3), [4, 5]),
]:
    attrs = {"output_size": output_size}
    vector(f"adaptive_avg_pool2d_{name}", "adaptive_avg_pool2d", F.adaptive_avg_pool2d, {"x": x}, attrs)
    vector(f"adaptive_max_pool2d_{name}", "adaptive_max_pool2d", F.adaptive_max_pool2d, {"x": x}, attrs)


def max_pool1d(x, kernel, stride, padding):
    return F.max_pool1d(x, kernel, stride, padding)


def avg_pool1d(x, kernel, stride, padding, count_include_pad):
    return F.avg_pool1d(x, kernel, stride, padding, count_include_pad=count_include_pad)


for name, x, kernel, stride, padding in [("plain", (2, 3, 8), 2, 2, 0), ("overlapping", (2, 2, 9), 4, 2, 2)]:
    attrs = dict(kernel=kernel, stride=stride, padding=padding)
    vector(f"max_pool1d_{name}", "max_pool1d", max_pool1d, {"x": x}, attrs)
    vector(f"avg_pool1d_{name}", "avg_pool1d", avg_pool1d, {"x": x}, attrs | {"count_include_pad": True})
attrs = dict(kernel=4, stride=2, padding=2, count_include_pad=False)
vector("avg_pool1d_no_pad", "avg_pool1d", avg_pool1d, {"x": (2, 2, 9)}, attrs)

# Whole numbers.

WHOLE = [-0.0, 0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, -3.0, 0.49999997, -7.75, 8388607.5, -8388609.0, 1e20, INF, -INF]
for op in ["round", "floor", "ceil", "sign"]:
    rule = getattr(torch, op)
    vector(op, op, rule, {"x": 3 * draw(f"operations:{op}", 4, 9)}, exact=True)
    # PyTorch has a sign of 0 for NaN, and wgrad has NaN.
    special = np.array(WHOLE if op == "sign" else WHOLE + [NAN])
    vector(f"{op}_special", op, rule, {"x": special}, exact=True)

# Products, and the standard deviation.

def prod(x, dims, keepdim):
    for dim in sorted(dims, reverse=True):
        x = x.prod(dim, keepdim)
    return x


def zeros(key, shape, *places):
    """Drawn numbers with zeros at some places."""
    x = draw(f"operations:{key}", *shape)
    for place in places:
        x[place] = 0.0
    return x


SOME_ZEROS = [(0, 2), (1, 0), (1, 4)]
for name, x, dims, keepdim in [
    ("row", (3, 7), [1], False),
    ("column", (5, 3), [0], True),
    ("outer", (3, 2, 5), [0, 2], False),
    ("all", (2, 3, 2), [0, 1, 2], False),
    ("zeros", zeros("prod_zeros", (4, 5), *SOME_ZEROS), [1], False),
    ("zero_all", zeros("prod_zero_all", (2, 3), (1, 1)), [0, 1], False),
    ("empty", (2, 0), [1], False),
]:
    vector(f"prod_{name}", "prod", prod, {"x": x}, {"dims": dims, "keepdim": keepdim})
for name, x, dim in [
    ("row", (3, 7), 1),
    ("column", (5, 2, 3), 0),
    ("zeros", zeros("cumprod_zeros", (4, 5), *SOME_ZEROS), 1),
    ("one", (3, 1), -1),
]:
    vector(f"cumprod_{name}", "cumprod", torch.cumprod, {"x": x}, {"dim": dim})


def std(x, dims, keepdim, correction):
    return torch.std(x, dim=dims, keepdim=keepdim, correction=correction)


FAR = 1000 + 0.1 * draw("operations:std_far", 3, 8)
EQUAL = np.stack([np.full(4, 1.5), draw("operations:std_equal", 4)])
for name, x, dims, keepdim, correction, note in [
    ("all", (2, 3, 4), [0, 1, 2], False, 1, None),
    ("biased", (3, 5), [1], True, 0, None),
    ("outer", (3, 2, 4), [0, 2], False, 1, None),
    ("correction", (2, 6), [-1], False, 2.5, None),
    ("far", FAR, [1], False, 1, "the mean is much larger than the spread"),
    ("equal", EQUAL, [1], False, 1, "the gradient of a deviation of 0 is 0"),
]:
    attrs = {"dims": dims, "keepdim": keepdim, "correction": correction}
    vector(f"std_{name}", "std", std, {"x": x}, attrs, note=note)

# Sorting.

def sort(x, dim, descending):
    values, indices = torch.sort(x, dim=dim, descending=descending, stable=True)
    return {"values": values, "indices": indices}


def argsort(x, dim, descending):
    return torch.argsort(x, dim=dim, descending=descending, stable=True)


def topk(x, dim, k):
    values, indices = torch.topk(x, k, dim=dim)
    return {"values": values, "indices": indices}


for name, x, dim, descending in [("row", (3, 7), 1, False), ("column", (9, 2, 2), 0, True), ("long", (2, 70), -1, False)]:
    attrs = {"dim": dim, "descending": descending}
    vector(f"sort_{name}", "sort", sort, {"x": x}, attrs, exact=True)
    vector(f"argsort_{name}", "argsort", argsort, {"x": x}, attrs, diff=[])
TIES = np.array([[2.0, NAN, -1.0, 2.0, -INF, 0.0, INF, -0.0, NAN, -1.0, 2.0, INF]])
for name, descending in [("ties", False), ("ties_descending", True)]:
    attrs = {"dim": 1, "descending": descending}
    note = "equal elements keep their order; NaN counts as larger than any number"
    vector(f"argsort_{name}", "argsort", argsort, {"x": TIES}, attrs, diff=[], note=note)
for name, x, dim, k in [("row", (3, 8), 1, 3), ("column", (6, 2, 3), 0, 2), ("all", (2, 5), -1, 5)]:
    vector(f"topk_{name}", "topk", topk, {"x": x}, {"dim": dim, "k": k}, exact=True)

# Triangles and turns.

for op in ["tril", "triu"]:
    for name, x, diagonal in [("main", (4, 5), 0), ("above", (2, 5, 4), 2), ("below", (2, 2, 4, 4), -1)]:
        vector(f"{op}_{name}", op, getattr(torch, op), {"x": x}, {"diagonal": diagonal}, exact=True)
for name, x, shift, dim in [("forth", (3, 5), 2, 1), ("back", (4, 2, 3), -1, 0), ("around", (2, 5), -13, -1)]:
    rule = lambda x, shift, dim: torch.roll(x, shift, dim)
    vector(f"roll_{name}", "roll", rule, {"x": x}, {"shift": shift, "dim": dim}, exact=True)

# Einstein's summation.

for name, equation, *shapes in [
    ("matmul", "ij,jk->ik", (3, 4), (4, 5)),
    ("batched", "bij,bjk->bik", (2, 3, 4), (2, 4, 2)),
    ("heads", "bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("implicit", "kj,ji", (4, 3), (3, 2)),
    ("transpose", "ijk->kij", (2, 3, 4)),
    ("sum", "ijk->j", (2, 3, 4)),
    ("trace", "ii", (4, 4)),
    ("diagonal", "iji->ij", (3, 2, 3)),
    ("outer", "i,j->ij", (3,), (4,)),
    ("dot", "ij,ij->", (3, 4), (3, 4)),
    ("elementwise", "ij,j->ij", (3, 4), (4,)),
    ("bilinear", "bi,oij,bj->bo", (3, 4), (2, 4, 5), (3, 5)),
    ("chain", "ab,bc,cd,de->ae", (2, 3), (3, 4), (4, 2), (2, 3)),
    ("summed_out", "iij,jkl->lk", (3, 3, 2), (2, 4, 2)),
    ("scalar", ",ij->ji", (), (2, 3)),
]:
    rule = lambda *operands, equation: torch.einsum(equation, *operands)
    vector(f"einsum_{name}", "einsum", rule, dict(zip("abcd", shapes)), {"equation": equation})

# Losses.

TARGET = np.array([1, 0, 4, 2, 4, 3])
IGNORED = np.array([1, -100, 4, 2, -100, 3])
OF_PLACES = np.array([[1, 0, 2, 3], [3, 3, -100, 0]])
for name, x, target, weighted, reduction, smoothing in [
    ("mean", (6, 5), TARGET, False, "mean", 0.0),
    ("sum", (6, 5), TARGET, False, "sum", 0.0),
    ("none", (6, 5), IGNORED, False, "none", 0.0),
    ("ignore", (6, 5), IGNORED, False, "mean", 0.0),
    ("weight_mean", (6, 5), TARGET, True, "mean", 0.0),
    ("weight_sum", (6, 5), TARGET, True, "sum", 0.0),
    ("weight_none", (6, 5), IGNORED, True, "none", 0.0),
    ("weight_ignore", (6, 5), IGNORED, True, "mean", 0.0),
    ("weight_places", (2, 4, 4), OF_PLACES, True, "mean", 0.0),
    ("weight_smooth_mean", (6, 5), TARGET, True, "mean", 0.1),
    ("weight_smooth_sum", (6, 5), TARGET, True, "sum", 0.3),
    ("weight_smooth_none", (6, 5), IGNORED, True, "none", 0.1),
    ("weight_smooth_ignore", (6, 5), IGNORED, True, "mean", 0.2),
    ("weight_smooth_places", (2, 4, 4), OF_PLACES, True, "mean", 0.1),
    ("weight_smooth_only", (6, 5), IGNORED, True, "mean", 1.0),
    ("smooth_ignore", (6, 5), IGNORED, False, "mean", 0.1),
]:
    inputs = {"x": x, "target": target}
    if weighted:
        inputs["weight"] = positive(f"{name}/weight", x[1])
    attrs = {"reduction": reduction, "ignore_index": -100}
    if smoothing == 0.0:
        vector(f"nll_{name}", "nll_loss", F.nll_loss, inputs, attrs, diff=["x"])
    if weighted or smoothing > 0.0:
        attrs = attrs | {"label_smoothing": smoothing}
        vector(f"cross_entropy_{name}", "cross_entropy", F.cross_entropy, inputs, attrs, diff=["x"])


def bce(x, target, pos_weight, reduction):
    return F.binary_cross_entropy_with_logits(x, target, pos_weight=pos_weight, reduction=reduction)


def kl_div(x, target, reduction):
    losses = F.kl_div(x, target, reduction="none")
    return {"mean": losses.mean(), "sum": losses.sum(), "none": losses}[reduction]


EXACT = np.array([0.5, -1.0, 2.0, 0.25])
for reduction in ["mean", "sum", "none"]:
    attrs = {"reduction": reduction}
    inputs = {"x": (3, 4), "target": (3, 4)}
    vector(f"l1_{reduction}", "l1_loss", F.l1_loss, inputs, attrs)
    vector(f"kl_div_{reduction}", "kl_div", kl_div, {"x": (3, 4), "target": shares(f"kl/{reduction}", 3, 4)}, attrs)
    for delta in [1.0, 0.3]:
        name = f"huber_{reduction}_{delta}"
        vector(name, "huber_loss", F.huber_loss, inputs, attrs | {"delta": delta})
    weight = positive(f"bce/{reduction}/weight", 4)
    inputs = {"x": (3, 4), "target": shares(f"bce/{reduction}", 3, 4), "pos_weight": weight}
    vector(f"bce_pos_weight_{reduction}", "bce_with_logits", bce, inputs, attrs, diff=["x", "target"])
inputs = {"x": EXACT, "target": np.array([0.5, 1.0, 2.0, 0.5])}
vector("l1_no_error", "l1_loss", F.l1_loss, inputs, {"reduction": "none"}, note="the gradient of no error is 0")
inputs = {"x": EXACT, "target": np.array([0.5, -1.5, 1.5, 0.0])}
vector("huber_at_delta", "huber_loss", F.huber_loss, inputs, {"reduction": "none", "delta": 0.5})
inputs = {"x": np.array([1e30, -1e30, 0.1]), "target": np.array([-1e30, 0.0, 0.0])}
vector("huber_large", "huber_loss", F.huber_loss, inputs, {"reduction": "none", "delta": 1.0}, note="squares overflow")
inputs = {"x": (2, 3), "target": np.array([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]])}
vector("kl_div_zeros", "kl_div", kl_div, inputs, {"reduction": "sum"}, diff=["x"], note="0 log 0 is 0")
inputs = {
    "x": np.array([[90.0, -90.0, 0.0], [-1000.0, 1000.0, 3.0]]),
    "target": np.array([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]]),
    "pos_weight": np.array([3.0, 0.5, 2.0]),
}
vector("bce_pos_weight_large", "bce_with_logits", bce, inputs, {"reduction": "none"}, diff=["x"])
inputs = {"x": (2, 3, 4), "target": shares("bce/all", 2, 3, 4), "pos_weight": np.array(2.5)}
vector("bce_pos_weight_scalar", "bce_with_logits", bce, inputs, {"reduction": "mean"}, diff=["x"])

# Layers.

def rotary(x, positions=None, *, base, pairs):
    """The pair i at position p, as a complex number, times the unit of angle p base^(-2 i / width)."""
    time, width = x.shape[-2:]
    positions = torch.arange(time) if positions is None else positions
    frequencies = base ** (torch.arange(0, -width, -2, dtype=x.dtype) / width)
    angles = positions.to(x.dtype)[:, None] * frequencies
    paired = x.unflatten(-1, (-1, 2)) if pairs == "neighbours" else x.unflatten(-1, (2, -1)).transpose(-1, -2)
    turned = torch.view_as_complex(paired.contiguous()) * torch.polar(torch.ones_like(angles), angles)
    turned = torch.view_as_real(turned)
    return (turned if pairs == "neighbours" else turned.transpose(-1, -2)).flatten(-2)


for name, x, base, pairs, positions in [
    ("neighbours", (2, 3, 5, 8), 10000.0, "neighbours", None),
    ("halves", (2, 3, 5, 8), 10000.0, "halves", None),
    ("base", (6, 4), 100.0, "halves", None),
    ("positions", (2, 4, 6), 10000.0, "neighbours", np.array([7, 3, 100, 7])),
]:
    inputs = {"x": x} | ({} if positions is None else {"positions": positions})
    vector(f"rotary_{name}", "rotary", rotary, inputs, {"base": base, "pairs": pairs})
for name, x, eps in [("signals", (2, 3, 7), 1e-5), ("images", (2, 3, 4, 5), 1e-3)]:
    rule = lambda x, eps: F.instance_norm(x, eps=eps)
    vector(f"instance_norm_{name}", "instance_norm", rule, {"x": x}, {"eps": eps})


def grouped(q, k, v, causal, scale, mask):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True)


for name, heads, kv_heads, queries, keys, causal in [("pairs", 4, 2, 3, 6, False), ("one", 3, 1, 5, 5, True)]:
    inputs = {"q": (2, heads, queries, 4), "k": (2, kv_heads, keys, 4), "v": (2, kv_heads, keys, 3)}
    attrs = {"causal": causal, "scale": None, "mask": None}
    note = "consecutive heads of queries share a head of keys and values"
    vector(f"sdpa_grouped_{name}", "sdpa", grouped, inputs, attrs, note=note)


def is_float(array):
    return np.asarray(array).dtype.kind == "f"


def computed(rule, attrs, arrays, diff, cotangent, dtype):
    """The results, and the gradients of the inputs in `diff`, by PyTorch in this type."""
    inputs = {k: torch.tensor(v).to(dtype) if is_float(v) else torch.tensor(v) for k, v in arrays.items()}
    wrt = [inputs[k].requires_grad_() for k in diff]
    results = rule(*inputs.values(), **attrs)
    results = results if isinstance(results, dict) else {"y": results}
    tensors = {f"out/{k}": v.detach().numpy() for k, v in results.items()}
    if diff:
        floats = [(k, v) for k, v in results.items() if v.is_floating_point()]
        loss = sum((torch.tensor(cotangent(k, v.shape)).to(dtype) * v).sum() for k, v in floats)
        gradients = torch.autograd.grad(loss, wrt)
        tensors |= {f"grad/{k}": v.numpy() for k, v in zip(diff, gradients)}
    return tensors


def tolerance(dtype, expected, f32, exact):
    if exact or not is_float(expected):
        return {"rtol": 0.0, "atol": 0.0}
    if dtype == "f64":
        return {"rtol": 1e-9, "atol": float(f"{1e-11 * size(expected):.2g}")}
    return tolerance_f32(expected, f32)


def main():
    tensors, cases = {}, []
    for name, op, rule, inputs, attrs, diff, exact, note in VECTORS:
        shape = lambda x: isinstance(x, tuple)
        drawn = {k: draw(f"operations:{name}/{k}", *x) if shape(x) else x for k, x in inputs.items()}
        diff = [k for k, v in drawn.items() if is_float(v)] if diff is None else diff
        for dtype in ["f64", "f32"]:
            arrays = {k: np.asarray(v).astype(NUMPY[dtype]) if is_float(v) else v for k, v in drawn.items()}
            cotangents = {}

            def cotangent(k, of):
                cotangents[f"cot/{k}"] = draw(f"operations:{name}/cot/{k}", *of).astype(NUMPY[dtype])
                return cotangents[f"cot/{k}"]

            expected = computed(rule, attrs, arrays, diff, cotangent, torch.float64)
            f32 = computed(rule, attrs, arrays, diff, cotangent, torch.float32)
            own = {f"in/{k}": v for k, v in arrays.items()} | cotangents
            rounded = {k: v.astype(NUMPY[dtype]) if is_float(v) else v for k, v in expected.items()}
            tensors |= {f"{name}.{dtype}/{k}": np.array(v, order="C") for k, v in (own | rounded).items()}
            case = {"id": f"{name}.{dtype}", "kind": "op", "op": op, "dtype": dtype, "attrs": attrs, "diff": diff}
            case |= {"note": note} if note else {}
            case |= {"file": FILE, "inputs": sorted(own)}
            case["expect"] = {k: tolerance(dtype, v, f32[k], exact) for k, v in expected.items()}
            cases.append(case)
    write(FILE, tensors, cases)


if __name__ == "__main__":
    main()
