"""Training steps of w1 and w2 on ranks in network namespaces of one machine, beside a model and beside PyTorch's DDP.

As root, on Linux with Open MPI, after `cargo build --release --features mpi`:

    python3 tests/scale/measure.py --ranks 2,4 --rates 10,1 --torch PYTHON > rows.jsonl

Each rank has a namespace of its own, and reaches the others through a bridge. `tc` limits what it sends and what it
gets to the rate (Gbit/s; 0 is no limit). With `--delay`, the switch of `relay.py` is in place of the bridge, and holds
each frame back for so long. Each line of the output is one measurement:

    compute   the step of a rank's rows, on as many processes at once, without any exchange
    mpi       the same with the exchange by MPI, through the network
    overlap   the same with --overlap: gradients travel in pieces while the backward pass goes on
    gloo      PyTorch's DistributedDataParallel over Gloo, through the same network (with --torch)

The model of a step on n ranks is `compute + V / host + V / rate`, where `V = 2 (n - 1) / n` times the bytes of the
gradients is what a rank sends. `host` is the speed at which this machine moves and adds bytes; it is taken from the
measurement without a limit, so the other rates are predictions.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# The bytes of the gradients.
BYTES = {"w1": 4 * 834_304, "w2": 4 * 10_819_584}
# The rows of the batch that ranks share.
BATCH = {"w1": 8, "w2": 4}
HUB = "wgrad-hub"
# Sends each packet back to the rank that it is from, until one is empty.
ECHO = """
import socket
with socket.socket(type=socket.SOCK_DGRAM) as end:
    end.bind(("", 9999))
    while (got := end.recvfrom(64))[0]:
        end.sendto(*got)
"""
ASK = """
import socket, statistics, sys, time
with socket.socket(type=socket.SOCK_DGRAM) as end:
    end.settimeout(1)
    end.connect((sys.argv[1], 9999))
    times = []
    while len(times) < 50:
        start = time.monotonic()
        try:
            end.send(b"?")
            end.recv(64)
        except OSError:
            continue
        times.append((time.monotonic() - start) * 1e3)
    end.send(b"")
    print(statistics.median(times))
"""
TRIES = 5

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--wgrad", default=str(ROOT / "target/release/wgrad"))
parser.add_argument("--workloads", default="w1,w2")
parser.add_argument("--ranks", default="2,4")
parser.add_argument("--rates", default="10,1", help="in Gbit/s")
parser.add_argument("--delay", type=float, default=0.0, help="of each frame, in ms")
parser.add_argument("--budget", type=float, default=8.0, help="the seconds of each measurement")
parser.add_argument("--torch", metavar="PYTHON", help="a Python with PyTorch")
options = parser.parse_args()


def sh(*words, check=True):
    subprocess.run([str(word) for word in words], check=check, stderr=None if check else subprocess.DEVNULL)


def inside(rank, *words):
    # Not by `ip netns exec`, which hides /sys, that PyTorch reads.
    return ["nsenter", f"--net=/var/run/netns/wgrad{rank + 1}", *map(str, words)]


def address(rank):
    return f"10.77.0.{rank + 1}"


def limit(prefix, device, rate):
    """Limits what a device sends."""
    if rate:
        sh(*prefix, "tc", "qdisc", "add", "dev", device, "root", "handle", "1:", "tbf", "rate", f"{rate}gbit",
           "burst", "256k", "latency", "20ms")


def delayed(ranks, rate):
    """Joins the ranks by a switch that holds frames back. Its frames are long, as it is a process that copies each."""
    taps = [f"wgrad-tap{rank}" for rank in range(ranks)]
    command = [sys.executable, str(HERE / "relay.py"), str(options.delay), *taps]
    switch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    switch.stdout.readline()
    for rank, tap in enumerate(taps):
        sh("ip", "netns", "add", f"wgrad{rank + 1}")
        sh("ip", "link", "set", tap, "netns", f"wgrad{rank + 1}", "name", "rank", "mtu", 60000)
        sh(*inside(rank, "ip", "address", "add", f"{address(rank)}/24", "dev", "rank"))
        for device in ["lo", "rank"]:
            sh(*inside(rank, "ip", "link", "set", device, "up"))
        limit(inside(rank), "rank", rate)
    return switch


def round_trip():
    """The measured time from the first rank to the second and back, in ms: the median of 50."""
    echo = subprocess.Popen(inside(1, sys.executable, "-c", ECHO))
    text = subprocess.run(inside(0, sys.executable, "-c", ASK, address(1)), capture_output=True, text=True, check=True)
    echo.wait()
    return float(text.stdout)


def network(ranks, rate):
    remove()
    if options.delay:
        return delayed(ranks, rate)
    sh("ip", "netns", "add", HUB)
    hub = ["ip", "netns", "exec", HUB]
    sh(*hub, "ip", "link", "add", "bridge", "type", "bridge")
    sh(*hub, "ip", "link", "set", "bridge", "up")
    for rank in range(ranks):
        sh("ip", "netns", "add", f"wgrad{rank + 1}")
        sh(*hub, "ip", "link", "add", f"port{rank}", "type", "veth", "peer", "name", "rank", "netns", f"wgrad{rank + 1}")
        sh(*hub, "ip", "link", "set", f"port{rank}", "master", "bridge", "up")
        sh(*inside(rank, "ip", "address", "add", f"{address(rank)}/24", "dev", "rank"))
        for device in ["lo", "rank"]:
            sh(*inside(rank, "ip", "link", "set", device, "up"))
        limit(inside(rank), "rank", rate)
        limit(hub, f"port{rank}", rate)
    return None


def remove():
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split("\n")
    for name in (name.split()[0] for name in names if name.startswith("wgrad")):
        sh("ip", "netns", "delete", name)


def row(text):
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if len(lines) != 1:
        sys.exit(f"expected one row, got {text!r}")
    return json.loads(lines[0])


def bench(workload, *more):
    return [options.wgrad, "bench", workload, "--json", "--device", "cpu", "--threads", "1", "--budget",
            str(options.budget), *map(str, more)]


def together(commands, environments=None, fails=False):
    """Runs processes at the same time, and returns what each has printed; with `fails`, nothing if one fails."""
    environments = environments or [{}] * len(commands)
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | more)
               for command, more in zip(commands, environments)]
    while fails and (ended := [process.poll() for process in started]) and None in ended:
        if any(ended):
            [process.kill() for process in started]
        time.sleep(0.05)
    texts = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        if fails:
            return None
        sys.exit(f"{commands[0]} failed")
    return texts


def compute(workload, ranks):
    texts = together([bench(workload, "--batch", BATCH[workload] // ranks)] * ranks)
    return statistics.mean(row(text)["median_ms"] for text in texts)


def mpi(workload, ranks, *more):
    with tempfile.TemporaryDirectory() as folder:
        agent, hosts = Path(folder, "agent"), Path(folder, "hosts")
        # In place of ssh: the last number of the address is that of the namespace.
        agent.write_text("#!/bin/sh\nhost=$1; shift\n"
                         'exec nsenter --net="/var/run/netns/wgrad${host##*.}" unshare -u sh -c "hostname rank${host##*.}; $*"\n')
        agent.chmod(0o755)
        hosts.write_text("".join(f"{address(rank)} slots=1\n" for rank in range(ranks)))
        settings = {"plm_rsh_agent": agent, "btl": "tcp,self", "btl_tcp_if_include": "rank",
                    "oob_tcp_if_include": "rank"}
        words = [word for name, value in settings.items() for word in ["--mca", name, value]]
        # To Open MPI each namespace is a machine, and on each it would bind a rank to the first core.
        command = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--hostfile", hosts, "-n", ranks, *words]
        command = inside(0, "unshare", "-u", "sh", "-c", 'hostname rank1; exec "$@"', "sh", *command)
        return row(together([command + bench(workload, "--ranks", "mpi", *more)])[0])["median_ms"]


def gloo(workload, ranks):
    command = [options.torch, HERE / "ddp.py", workload, "--threads", 1, "--budget", options.budget]
    environments = [{"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": address(0), "MASTER_PORT": "29500",
                     "GLOO_SOCKET_IFNAME": "rank"} for rank in range(ranks)]
    # PyTorch sometimes ends in a crash before the first step.
    for _ in range(TRIES):
        texts = together([inside(rank, *command) for rank in range(ranks)], environments, fails=True)
        if texts:
            return row(texts[0])["median_ms"]
    sys.exit("DDP crashes each time")


switch = None
try:
    for workload in options.workloads.split(","):
        for ranks in map(int, options.ranks.split(",")):
            alone = compute(workload, ranks)
            volume = 2 * (ranks - 1) / ranks * BYTES[workload]
            moved = None
            for rate in [0.0, *map(float, options.rates.split(","))]:
                switch = network(ranks, rate)
                measured = mpi(workload, ranks)
                moved = measured - alone if moved is None else moved
                model = alone + moved + (volume / (rate * 1e9 / 8) * 1e3 if rate else 0.0)
                result = {"workload": workload, "ranks": ranks, "gbit": rate, "compute_ms": round(alone, 2),
                          "mpi_ms": round(measured, 2), "overlap_ms": round(mpi(workload, ranks, "--overlap"), 2), "model_ms": round(model, 2), "volume_mb": round(volume / 1e6, 2)}
                if options.delay:
                    result["round_trip_ms"] = round(round_trip(), 3)
                if options.torch:
                    result["gloo_ms"] = round(gloo(workload, ranks), 2)
                print(json.dumps(result), flush=True)
                if switch:
                    switch.kill()
                    switch.wait()
finally:
    if switch:
        switch.kill()
    remove()
