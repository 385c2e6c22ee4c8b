"""Sharpness-aware minimisation (Foret et al. 2021, arXiv 2010.01412) of a network that tells two spirals apart."""

import torch
from torch import nn
from timed import timed

ROWS, RHO = 256, 0.05


class Sam:
    """Climbs to the worst of the parameters nearby, and steps from where it began by the gradient there."""

    def __init__(self, params, base, rho):
        self.params, self.base, self.rho = list(params), base, rho

    def step(self, closure):
        loss = closure()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in self.params]).norm()
            climbs = [p.grad * (self.rho / (norm + 1e-12)) for p in self.params]
            for p, climb in zip(self.params, climbs):
                p.add_(climb)
        closure()
        with torch.no_grad():
            for p, climb in zip(self.params, climbs):
                p.sub_(climb)
        self.base.step()
        return loss


def spirals():
    arm = torch.randint(2, (ROWS,))
    radius = torch.rand(ROWS).sqrt()
    angle = 3 * torch.pi * radius + arm * torch.pi
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1) + 0.01 * torch.randn(ROWS, 2), arm


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 2))
sam = Sam(net.parameters(), torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), RHO)
x, y = spirals()


def closure():
    sam.base.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    return loss


def step():
    return sam.step(closure).item()


def sharpness():
    params = list(net.parameters())
    v = [torch.randn_like(p) for p in params]
    for _ in range(100):
        norm = torch.stack([part.norm() for part in v]).norm()
        v = [part / norm for part in v]
        grads = torch.autograd.grad(nn.functional.cross_entropy(net(x), y), params, create_graph=True)
        product = torch.autograd.grad(grads, params, v)
        value = sum((a * b).sum() for a, b in zip(v, product))
        v = product
    return value.item()


if __name__ == "__main__":
    timed(step)
