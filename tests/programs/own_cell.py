"""A recurrent cell of one's own, the minimal gated unit (Zhou et al. 2016, arXiv 1603.09420), on the adding problem."""

import torch
from torch import nn
from timed import timed

TIME, BATCH, UNITS = 50, 64, 64


class MinimalGatedUnit(nn.Module):
    def __init__(self, inputs, units):
        super().__init__()
        self.gate = nn.Linear(inputs + units, units)
        self.candidate = nn.Linear(inputs + units, units)
        self.units = units

    def next(self, x, h):
        f = self.gate(torch.cat([x, h], 1)).sigmoid()
        candidate = self.candidate(torch.cat([x, f * h], 1)).tanh()
        return h + f * (candidate - h)

    def forward(self, x):
        h = x.new_zeros(x.shape[1], self.units)
        for now in x:
            h = self.next(now, h)
        return h


def adding():
    x = torch.zeros(TIME, BATCH, 2)
    x[:, :, 0] = torch.rand(TIME, BATCH)
    for low, high in [(0, TIME // 2), (TIME // 2, TIME)]:
        x[torch.randint(low, high, (BATCH,)), torch.arange(BATCH), 1] = 1
    return x, (x[:, :, 0] * x[:, :, 1]).sum(0)[:, None]


torch.manual_seed(0)
cell, readout = MinimalGatedUnit(2, UNITS), nn.Linear(UNITS, 1)
params = [*cell.parameters(), *readout.parameters()]
for p in params:
    nn.init.xavier_uniform_(p) if p.dim() == 2 else nn.init.zeros_(p)
adam = torch.optim.Adam(params, 5e-3)


def step():
    x, y = adding()
    loss = nn.functional.mse_loss(readout(cell(x)), y)
    adam.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(params, 1.0)
    adam.step()
    return loss.item()


if __name__ == "__main__":
    timed(step)
