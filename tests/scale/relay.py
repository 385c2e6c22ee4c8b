"""A switch between ranks that holds each frame back for a while: latency on a machine whose kernel has no `netem`.

    python3 tests/scale/relay.py DELAY_MS TAP..

Makes the tap devices, prints a line, and passes frames on between them until it is killed. As root, on Linux.
"""

import collections
import ctypes
import fcntl
import os
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
PR_SET_TIMERSLACK = 29
LONGEST = 1 << 16

delay = float(sys.argv[1]) / 1e3
taps = []
for name in sys.argv[2:]:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    taps.append(tap)
# By default the kernel may wake a process 50 us late.
ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
print("ready", flush=True)

# The tap behind which an address is, as its frames have shown.
behind = {}
# Frames in their order: all are held back equally long.
held = collections.deque()
while True:
    wait = max(0.0, held[0][0] - time.monotonic()) if held else None
    for tap in select.select(taps, [], [], wait)[0]:
        try:
            frame = os.read(tap, LONGEST)
        except OSError:
            continue
        behind[frame[6:12]] = tap
        held.append((time.monotonic() + delay, tap, frame))
    while held and held[0][0] <= time.monotonic():
        _, source, frame = held.popleft()
        known = behind.get(frame[:6])
        for tap in [known] if known is not None else [tap for tap in taps if tap != source]:
            try:
                os.write(tap, frame)
            except OSError:
                # As on a wire, what has no room is lost, and sent again.
                pass
