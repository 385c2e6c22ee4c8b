"""Training steps of w1 or w2 by PyTorch's DistributedDataParallel over Gloo, to set beside those of wgrad over MPI.

Run one process for each rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set (GLOO_SOCKET_IFNAME names the
network): `ddp.py w1 --threads 1 --budget 12`. The global batch is that of the workload; each rank has its share. Rank 0
prints one line of JSON, like a row of `wgrad bench --json`.
"""

import argparse
import json
import os
import statistics
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("workload", choices=["w1", "w2"])
arguments.add_argument("--threads", type=int, default=1)
arguments.add_argument("--budget", type=float, default=12.0)
arguments = arguments.parse_args()
os.environ["OMP_NUM_THREADS"] = str(arguments.threads)

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(arguments.threads)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

VOCAB = 96
# layers, width, heads, width of the perceptron, context, global batch
LAYERS, WIDTH, HEADS, HIDDEN, CONTEXT, BATCH = {
    "w1": (4, 128, 4, 512, 128, 8),
    "w2": (6, 384, 6, 1536, 256, 4),
}[arguments.workload]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        split = lambda part: part.view(batch, length, HEADS, width // HEADS).transpose(1, 2)
        q, k, v = map(split, self.qkv(self.norms[0](x)).split(width, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, x, y):
        hidden = self.blocks(self.tokens(x) + self.positions.weight[: x.shape[1]])
        return F.cross_entropy(self.head(self.norm(hidden)).flatten(0, 1), y.flatten())


model = Transformer()
parameters = sum(p.numel() for p in model.parameters())
replica = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01, fused=True)
tokens = torch.randint(0, VOCAB, (4, BATCH, CONTEXT + 1))
rows = slice(BATCH * rank // ranks, BATCH * (rank + 1) // ranks)


def step(i):
    batch = tokens[i % 4, rows]
    optimizer.zero_grad(set_to_none=True)
    loss = replica(batch[:, :-1], batch[:, 1:])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    # The loss of the global batch, as wgrad has it.
    if ranks > 1:
        loss = loss.detach() / ranks
        dist.all_reduce(loss)
    return loss.item()


for i in range(3):
    step(i)
times, start = [], time.perf_counter()
while True:
    before = time.perf_counter()
    step(len(times))
    times.append(1e3 * (time.perf_counter() - before))
    # All ranks make the same number of steps.
    over = torch.tensor(float(time.perf_counter() - start > arguments.budget))
    if len(times) % 16 == 0:
        dist.broadcast(over, 0)
        if over.item() == 1.0:
            break
if rank == 0:
    row = {"framework": "torch", "version": torch.__version__, "workload": arguments.workload, "ranks": ranks}
    row |= {"threads": arguments.threads, "median_ms": round(statistics.median(times), 3), "iters": len(times)}
    print(json.dumps(row | {"parameters": parameters}))
dist.destroy_process_group()
