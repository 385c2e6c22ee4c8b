"""A WGAN with a gradient penalty (Gulrajani et al. 2017, arXiv 1704.00028). It learns images of one bright blob each."""

import torch
from torch import nn
from timed import timed

BATCH, SIDE, LATENT, WIDTH = 64, 16, 16, 16


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(LATENT, 2 * WIDTH * (SIDE // 4) ** 2)
        self.up0 = nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, stride=2, padding=1)
        self.up1 = nn.ConvTranspose2d(WIDTH, 1, 4, stride=2, padding=1)

    def forward(self, z):
        h = self.project(z).relu().reshape(len(z), 2 * WIDTH, SIDE // 4, SIDE // 4)
        return self.up1(self.up0(h).relu()).sigmoid()


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.down0 = nn.Conv2d(1, WIDTH, 4, stride=2, padding=1)
        self.down1 = nn.Conv2d(WIDTH, 2 * WIDTH, 4, stride=2, padding=1)
        self.head = nn.Linear(2 * WIDTH * (SIDE // 4) ** 2, 1)

    def forward(self, images):
        h = nn.functional.leaky_relu(self.down0(images), 0.2)
        return self.head(nn.functional.leaky_relu(self.down1(h), 0.2).flatten(1))


def blobs():
    centre = torch.rand(BATCH, 2, 1) * 8 + 4
    bell = torch.exp((torch.arange(SIDE) - centre) ** 2 / -8)
    return (bell[:, 0, :, None] * bell[:, 1, None, :])[:, None]


torch.manual_seed(0)
generator, critic = Generator(), Critic()
generator_adam = torch.optim.Adam(generator.parameters(), 3e-3, (0.5, 0.9))
critic_adam = torch.optim.Adam(critic.parameters(), 3e-3, (0.5, 0.9))


def critic_step():
    real = blobs()
    fake = generator(torch.randn(BATCH, LATENT)).detach()
    share = torch.rand(BATCH, 1, 1, 1)
    between = (real * share + fake * (1 - share)).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
    distance = critic(real).mean() - critic(fake).mean()
    critic_adam.zero_grad()
    (penalty * 10 - distance).backward()
    critic_adam.step()
    return distance


def generator_step():
    fake = generator(torch.randn(BATCH, LATENT))
    generator_adam.zero_grad()
    (-critic(fake).mean()).backward()
    generator_adam.step()


def step():
    for _ in range(3):
        distance = critic_step()
    generator_step()
    return distance.item()


if __name__ == "__main__":
    timed(step)
