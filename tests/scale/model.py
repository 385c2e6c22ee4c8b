"""The table of docs/scale.md: the share of a step that is computation, by a model of bytes and latency.

    python3 tests/scale/model.py COMPUTE_MS BYTES

The model has no other traffic on the network, and a rank on each machine.
"""

import math
import sys

compute, volume = float(sys.argv[1]) / 1e3, float(sys.argv[2])
# Seconds from one machine to another, for a message without a length.
LATENCY = 10e-6
# Seconds of work for each message that a rank sends to another.
MESSAGE = 2e-6
# Gbit/s.
RATES = [10, 100, 400]

# The seconds of an all-reduce over n ranks, at so many bytes in a second.
WAYS = {
    "direct": lambda n, rate: 2 * LATENCY + 2 * (n - 1) * MESSAGE + 2 * (n - 1) / n * volume / rate,
    "ring": lambda n, rate: 2 * (n - 1) * LATENCY + 2 * (n - 1) / n * volume / rate,
    "tree": lambda n, rate: 2 * math.ceil(math.log2(n)) * (LATENCY + volume / rate),
}

print("| ranks |" + "".join(f" {way}, {rate} |" for rate in RATES for way in WAYS))
print("|---|" + "---|" * (len(RATES) * len(WAYS)))
for n in (2**k for k in range(1, 11)):
    shares = (compute / (compute + seconds(n, rate * 1e9 / 8)) for rate in RATES for seconds in WAYS.values())
    print(f"| {n} |" + "".join(f" {100 * share:.0f} % |" for share in shares))
