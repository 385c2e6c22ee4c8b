"""A denoising diffusion model (Ho, Jain & Abbeel 2020, arXiv 2006.11239) of points in two clusters."""

import torch
from torch import nn
from timed import timed

ROWS, TIMES, FREQUENCIES = 256, 100, 16

torch.manual_seed(0)
beta = torch.linspace(1e-3, 1e-3 + 0.1, TIMES)
left = torch.cumprod(1 - beta, 0)
frequency = torch.exp(torch.arange(FREQUENCIES) * -0.5)
net = nn.Sequential(
    nn.Linear(2 + 2 * FREQUENCIES, 128),
    nn.SiLU(),
    nn.Linear(128, 128),
    nn.SiLU(),
    nn.Linear(128, 128),
    nn.SiLU(),
    nn.Linear(128, 2),
)
adamw = torch.optim.AdamW(net.parameters(), 2e-3)


def noise_in(points, time):
    angle = time[:, None] * frequency
    return net(torch.cat([points, angle.sin(), angle.cos()], 1))


def clusters():
    side = torch.randint(2, (ROWS, 1)) * 2 - 1
    return side * torch.tensor([1.5, 0.5]) + torch.randn(ROWS, 2) * 0.2


def step():
    time = torch.randint(TIMES, (ROWS,))
    noise = torch.randn(ROWS, 2)
    share = left[time][:, None]
    noisy = clusters() * share.sqrt() + noise * (1 - share).sqrt()
    loss = nn.functional.mse_loss(noise_in(noisy, time), noise)
    adamw.zero_grad()
    loss.backward()
    adamw.step()
    return loss.item()


@torch.no_grad()
def sample():
    points = torch.randn(ROWS, 2)
    for time in reversed(range(TIMES)):
        noise = noise_in(points, torch.full((ROWS,), time))
        points = (points - noise * beta[time] / (1 - left[time]).sqrt()) / (1 - beta[time]).sqrt()
        if time > 0:
            points = points + torch.randn(ROWS, 2) * beta[time].sqrt()
    return points


if __name__ == "__main__":
    timed(step)
