"""Times a program: 3 steps that do not count, then at least 10 and at most 200 within the budget. Prints the median."""

import argparse
import statistics
import time
from pathlib import Path

import torch


def timed(step):
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=5.0, help="seconds")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for _ in range(3):
        step()
    times = []
    while len(times) < 10 or (sum(times) < args.budget and len(times) < 200):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    print(f"{Path(parser.prog).stem:<10} {statistics.median(times) * 1e3:9.3f} ms a step, of {len(times)} steps")
