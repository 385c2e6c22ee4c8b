"""ZClip (Kumar et al. 2025, arXiv 2504.02507), a clip that adapts to the norms so far."""

import torch
from torch import nn
from timed import timed

ROWS, WARMUP, DECAY, THRESHOLD = 256, 4, 0.9, 2.5


class ZClip:
    """Mean and variance of the norms live on the host, which reads each norm before the step."""

    def __init__(self):
        self.steps, self.mean, self.variance = 0, 0.0, 0.0

    def apply(self, params):
        """Clips in place. Returns the norms before and after, and true if the step may be taken."""
        grads = [p.grad for p in params]
        norm = torch.stack([g.norm() for g in grads]).norm().item()
        if not torch.isfinite(torch.tensor(norm)):
            return norm, norm, False
        deviation = self.variance**0.5 + 1e-6
        z = (norm - self.mean) / deviation
        clipped = norm
        if z > THRESHOLD and self.steps >= WARMUP:
            clipped = self.mean + THRESHOLD**2 / z * deviation
            for g in grads:
                g.mul_(clipped / norm)
        weight = max(1 / (self.steps + 1), 1 - DECAY)
        mean = self.mean + (clipped - self.mean) * weight
        self.variance = self.variance * (1 - weight) + (clipped - self.mean) * (clipped - mean) * weight
        self.steps, self.mean = self.steps + 1, mean
        return norm, clipped, True


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
zclip = ZClip()
sgd = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)


def step(factor=1.0):
    x = torch.randn(ROWS, 16)
    y = x.sum(1).sin()[:, None] * factor
    loss = nn.functional.mse_loss(net(x), y)
    sgd.zero_grad()
    loss.backward()
    norm, clipped, taken = zclip.apply(net.parameters())
    if taken:
        sgd.step()
    return loss.item(), norm, clipped


if __name__ == "__main__":
    timed(step)
