#!/usr/bin/env python3
"""Golden vectors of AMSGrad, Adagrad, Lion, Muon and SAM: writes optimizers.safetensors and their entries of index.json.

  python optimizers.py                  next to this script

Needs: torch 2.9 or later (CPU), numpy, safetensors.  Deterministic: PCG64 streams keyed by the vector's name.

Inputs are drawn in f64 and rounded to the type of the vector.  The expected value is computed in f64 from the rounded
inputs, and then rounded; in f32 the error of the same rule in f32 sets the floor of the tolerance.

PyTorch computes AMSGrad, Adagrad and Muon, with one change to Muon: its Newton-Schulz steps run in the type of the
gradient, not in bf16.  Lion and SAM are not in PyTorch: they are written here from their papers, with PyTorch's SGD and
AdamW as SAM's base.
"""
import inspect, math, sys
import numpy as np
import torch
import torch.optim._muon as muon_source

sys.dont_write_bytecode = True
from vectors import NUMPY, draw, tolerance_f32, write

torch.set_num_threads(1)
FILE, STEPS = "optimizers.safetensors", 10
SHAPES = {"w": (3, 4), "b": (4,), "s": (), "e": (0,)}
# Wide, tall, one batch of a matrix and the shape of its transpose, a convolution.
MATRICES = {"w": (3, 4), "v": (4, 3), "t": (5, 2), "k": (2, 3, 2, 2), "h": (2, 3), "b": (4,), "s": (), "e": (0,), "n": (2, 0)}


# PyTorch's own steps, without the rounding to bf16.
source = inspect.getsource(muon_source._zeropower_via_newtonschulz)
assert source.count("torch.bfloat16") == 1
scope = dict(vars(muon_source))
exec(source.replace("torch.bfloat16", "grad.dtype"), scope)
muon_source._zeropower_via_newtonschulz = scope["_zeropower_via_newtonschulz"]


class Lion:
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        self.params, self.lr, self.betas, self.decay = params, lr, betas, weight_decay
        self.m = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self):
        (b1, b2), lr = self.betas, self.lr
        for i, p in enumerate(self.params):
            if p.grad is None:
                continue
            update = torch.sign(b1 * self.m[i] + (1 - b1) * p.grad)
            p -= lr * (update + self.decay * p)
            self.m[i] = b2 * self.m[i] + (1 - b2) * p.grad


class Muon:
    """PyTorch's Muon for matrices, with PyTorch's AdamW for everything else."""

    def __init__(self, params, others, exclude, **attrs):
        excluded = [params[i] for i, name in enumerate(MATRICES) if name in exclude]
        of = lambda p: p.dim() >= 2 and p.numel() > 0 and all(p is not q for q in excluded)
        self.matrices = [(p, torch.nn.Parameter(p.detach().reshape(p.shape[0], -1).clone())) for p in params if of(p)]
        self.muon = torch.optim.Muon([flat for _, flat in self.matrices], **attrs)
        self.adamw = torch.optim.AdamW([p for p in params if not of(p)], **others)

    @torch.no_grad()
    def step(self):
        for p, flat in self.matrices:
            flat.grad = None if p.grad is None else p.grad.reshape(flat.shape).clone()
        self.muon.step(), self.adamw.step()
        for p, flat in self.matrices:
            p.copy_(flat.reshape(p.shape))


class Sam:
    """Foret et al. 2021, algorithm 1, of the loss sum <sin p, c> for the row c of the gradients that is at hand."""

    def __init__(self, params, rho, base, base_attrs):
        self.params, self.rho, self.base = params, rho, getattr(torch.optim, base)(params, **base_attrs)

    @torch.no_grad()
    def step(self):
        present = [p for p in self.params if p.grad is not None]
        first = [torch.cos(p) * p.grad for p in present]
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in first))
        for p, g in zip(present, first):
            p.grad = torch.cos(p + self.rho * g / norm) * p.grad
        self.base.step()


def torch_optim(name):
    return lambda params, **attrs: getattr(torch.optim, name)(params, **attrs)


ADAMW = dict(lr=0.02, betas=[0.8, 0.9], eps=1e-6, weight_decay=0.2)
ABSENT = {"b": [2, 3, 7], "s": [0], "w": [5]}
# Name, op, rule, attributes, steps without a gradient.
VECTORS = [
    ("adam_amsgrad", "Adam", torch_optim("Adam"), dict(lr=0.02, betas=[0.8, 0.9], amsgrad=True), {}),
    ("adam_amsgrad_all", "Adam", torch_optim("Adam"), dict(lr=0.02, betas=[0.9, 0.7], eps=1e-3, weight_decay=0.1, amsgrad=True), ABSENT),
    ("adamw_amsgrad", "AdamW", torch_optim("AdamW"), dict(lr=0.02, betas=[0.9, 0.8], weight_decay=0.1, amsgrad=True), ABSENT),
    ("adagrad", "Adagrad", torch_optim("Adagrad"), dict(lr=0.05), {}),
    ("adagrad_all", "Adagrad", torch_optim("Adagrad"), dict(lr=0.1, lr_decay=0.2, initial_accumulator_value=0.3, eps=1e-4, weight_decay=0.05), ABSENT),
    ("lion", "Lion", Lion, dict(lr=0.01), {}),
    ("lion_all", "Lion", Lion, dict(lr=0.02, betas=[0.7, 0.95], weight_decay=0.3), ABSENT),
    ("muon", "Muon", Muon, dict(lr=0.02, others=ADAMW, exclude=[]), {}),
    ("muon_all", "Muon", Muon, dict(lr=0.05, momentum=0.8, nesterov=False, ns_steps=3, weight_decay=0.3, adjust_lr_fn="match_rms_adamw", others=ADAMW, exclude=["h"]), ABSENT),
    ("muon_spectral", "Muon", Muon, dict(lr=0.05, adjust_lr_fn="spectral_unclamped", others=ADAMW, exclude=[]), {}),
    ("sam", "SAM", Sam, dict(rho=0.3, base="SGD", base_attrs=dict(lr=0.1, momentum=0.9)), {}),
    ("sam_adamw", "SAM", Sam, dict(rho=0.5, base="AdamW", base_attrs=dict(lr=0.05, eps=0.1)), ABSENT),
]
NOTE = ("grad/<p>[t] feeds step t; expected param/<p>[t] is the value AFTER step t; absent: no gradient at those steps "
        "(state and step count of that parameter do not advance)")
SAM_NOTE = "; the loss of step t is the sum over parameters of <sin p, grad/<p>[t]>"


def trajectory(rule, attrs, start, rows, absent, dtype):
    params = {name: torch.nn.Parameter(torch.tensor(value).to(dtype)) for name, value in start.items()}
    attrs = {k: tuple(v) if k == "betas" else v for k, v in attrs.items()}
    optimizer, values = rule(list(params.values()), **attrs), {name: [] for name in params}
    for t in range(STEPS):
        for name, p in params.items():
            p.grad = None if t in absent.get(name, []) else torch.tensor(rows[name][t]).to(dtype)
        optimizer.step()
        for name, p in params.items():
            values[name].append(p.detach().numpy().copy())
    return {name: np.stack(v) for name, v in values.items()}


def tolerance(dtype, expected, f32):
    return {"rtol": 1e-10, "atol": 1e-12} if dtype == "f64" else tolerance_f32(expected, f32)


def main():
    tensors, cases = {}, []
    for name, op, rule, attrs, absent in VECTORS:
        shapes = MATRICES if op == "Muon" else SHAPES
        for dtype in ("f64", "f32"):
            start = {k: draw(f"optimizers:{name}/p/{k}", *s).astype(NUMPY[dtype]) for k, s in shapes.items()}
            rows = {k: draw(f"optimizers:{name}/g/{k}", STEPS, *s).astype(NUMPY[dtype]) for k, s in shapes.items()}
            expected = trajectory(rule, attrs, start, rows, absent, torch.float64)
            f32 = trajectory(rule, attrs, start, rows, absent, torch.float32)
            own = {f"in/p0_{k}": v for k, v in start.items()} | {f"in/grad_{k}": v for k, v in rows.items()}
            out = {f"out/param_{k}": v.astype(NUMPY[dtype]) for k, v in expected.items()}
            tensors |= {f"{name}.{dtype}/{k}": np.asarray(v) for k, v in (own | out).items()}
            cases.append({
                "id": f"{name}.{dtype}", "kind": "optim", "op": op, "dtype": dtype,
                "attrs": {**attrs, "steps": STEPS, "absent": absent},
                "note": NOTE + (SAM_NOTE if op == "SAM" else ""), "file": FILE, "inputs": sorted(own),
                "expect": {f"out/param_{k}": tolerance(dtype, expected[k], f32[k]) for k in shapes},
            })
    write(FILE, tensors, cases)


if __name__ == "__main__":
    main()
