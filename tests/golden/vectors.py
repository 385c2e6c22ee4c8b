"""The common part of the scripts that write golden vectors: drawn numbers, tolerances, and the files."""
import hashlib, json, os
import numpy as np
from safetensors.numpy import save_file

NUMPY = {"f64": np.float64, "f32": np.float32}


def draw(key, *shape):
    """Normal numbers of a PCG64 stream of this key."""
    seed = hashlib.sha256(key.encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(seed[:8], "little"))).standard_normal(shape)


def size(expected):
    """The largest finite magnitude; at least 0.05."""
    return max([0.05, *np.abs(expected[np.isfinite(expected)])])


def tolerance_f32(expected, f32):
    """The tolerance of an f32 tensor that the same rule computes as `f32` in f32."""
    finite = np.isfinite(expected) & np.isfinite(f32)
    error = max([0.0, *np.abs(expected - f32)[finite]])
    return {"rtol": 1e-5, "atol": float(f"{max(2e-6 * size(expected), 16 * error):.2g}")}


def write(name, tensors, cases):
    """Writes a file of tensors, and its entries of the index, in the place of those that it had."""
    folder = os.path.dirname(os.path.abspath(__file__))
    save_file(tensors, os.path.join(folder, name))
    os.chmod(os.path.join(folder, name), 0o644)
    path = os.path.join(folder, "index.json")
    with open(path) as file:
        index = json.load(file)
    files = [case["file"] for case in index["cases"]]
    others = [case for case in index["cases"] if case["file"] != name]
    at = files.index(name) if name in files else len(others)
    taken = {case["id"] for case in others} & {case["id"] for case in cases}
    assert not taken and len({case["id"] for case in cases}) == len(cases), f"two vectors of one name: {taken}"
    index["cases"] = others[:at] + cases + others[at:]
    with open(path, "w") as file:
        json.dump(index, file, separators=(",", ":"), allow_nan=False)
        file.write("\n")
