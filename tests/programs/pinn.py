"""A network that solves Burgers' equation u_t + u u_x = NU u_xx (a physics-informed network: Raissi et al. 2019)."""

import torch
from torch import nn
from timed import timed

POINTS, NU = 1000, 0.1


def wave(x, time):
    return torch.sigmoid((time / 2 - x) / (2 * NU))


def slope(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)


torch.manual_seed(0)
net = nn.Sequential(
    nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1)
)
for layer in net[::2]:
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
adam = torch.optim.Adam(net.parameters(), 3e-3)
mse = nn.functional.mse_loss


def u(x, time):
    return net(torch.cat([x, time], 1))


def step():
    x = (torch.rand(POINTS, 1) * 2 - 1).requires_grad_()
    time = torch.rand(POINTS, 1, requires_grad=True)
    inside = u(x, time)
    u_x, u_t = slope(inside, (x, time))
    residual = u_t + inside * u_x - slope(u_x, x)[0] * NU
    x, time = x.detach(), time.detach()
    start, end = torch.zeros_like(time), x.sign()
    loss = residual.square().mean() + mse(u(x, start), wave(x, start)) + mse(u(end, time), wave(end, time))
    adam.zero_grad()
    loss.backward()
    adam.step()
    return loss.item()


def error():
    x, time = torch.meshgrid(torch.linspace(-1, 1, 41), torch.linspace(0, 1, 41), indexing="ij")
    x, time = x.reshape(-1, 1), time.reshape(-1, 1)
    with torch.no_grad():
        return (u(x, time) - wave(x, time)).abs().max().item()


if __name__ == "__main__":
    timed(step)
