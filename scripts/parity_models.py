"""Models, weights and samples of make_parity.py; tests/worker/ddprun/ddp/parity_models.cpp has the same."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision


def hashes(name, begin, count):
    """Hashes begin to begin + count - 1 (64 bits) of a named stream: splitmix64 seeded by FNV-1a."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    z = np.arange(begin, begin + count, dtype=np.uint64) + np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def formula(name, shape, begin=0):
    """Values in [-0.5, 0.5), exact in single precision."""
    unit = (hashes(name, begin, math.prod(shape)) >> np.uint64(40)).astype(np.float64) / 2**24 - 0.5
    return torch.from_numpy(unit).reshape(shape)


def fill(module):
    """Matrices and kernels with He's standard deviation, to a power of two; norm weights near 1, biases near 0."""
    for name, parameter in module.named_parameters():
        values = formula(name, parameter.shape)
        if parameter.dim() > 1:
            fan_in = parameter.numel() // parameter.shape[0]
            values *= 2.0 ** round(math.log2(2 * math.sqrt(6 / fan_in)))
        else:
            values = values / 8 + (1 if name.endswith("weight") else 0)
        parameter.data.copy_(values)
    return module


class Cnn(nn.Module):
    """The MNIST CNN of PyTorch's examples without dropout."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x, branches):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.log_softmax(self.fc2(F.relu(self.fc1(torch.flatten(x, 1)))), dim=1)


class ResNet18(torchvision.models.ResNet):
    def __init__(self):
        super().__init__(torchvision.models.resnet.BasicBlock, [2, 2, 2, 2], num_classes=10)

    def forward(self, x, branches=None):
        return super().forward(x)


class Branched(nn.Module):
    """A layer used twice, and two branches, either of which may be unused."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.trunk, self.shared = nn.Linear(128, 32), nn.Linear(32, 32)
        self.a, self.b = nn.Linear(32, 10), nn.Linear(32, 10)

    def forward(self, x, branches):
        x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 2)
        x = F.relu(self.trunk(torch.flatten(x, 1)))
        x = F.relu(self.shared(F.relu(self.shared(x))))
        return sum(branch(x) for name, branch in (("a", self.a), ("b", self.b)) if name in branches)


# name -> module, shape of a sample, samples per rank and step, learning rates
MODELS = {
    "branched": (Branched, (3, 8, 8), 4, dict(sgd=1e-3, adam=3e-4)),
    "cnn": (Cnn, (1, 28, 28), 2, dict(sgd=3e-5, adam=3e-6)),
    "resnet18": (ResNet18, (3, 32, 32), 8, dict(sgd=5e-7, adam=5e-8)),
}
