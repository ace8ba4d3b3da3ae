#!/usr/bin/env python3
"""The trainings of check.py in Python, as fast as it runs them without loading data: the batches are in memory.

usage: python.py steps TASK eager|loader|graph [--device cuda] [--steps 300] [--sam config.json]
       torchrun ... python.py first FOLDER [--device cuda]

steps: prints the steps per second of mnist, cifar10 (bf16-mixed, channels-last) or sam; loader: with a DataLoader; graph: as a CUDA
graph. first: trains MNIST in FOLDER with DistributedDataParallel, and prints a line after the first step.
"""
import argparse
import gzip
import json
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

BATCHES = 16  # in memory
WARM = 20  # steps before the clock starts


class MnistNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = torch.flatten(self.dropout1(x), 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), 1)


class Block(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.down = None
        if before != width or stride != 1:
            self.down = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.down is None else self.down(x)))


def resnet18():
    parts, before = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        parts += [Block(before, width, stride), Block(width, width, 1)]
        before = width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Training:
    """model, data (a tuple of tensors, all samples), batch size, loss of a batch, and how the weights are updated"""

    def __init__(self, task, device, sam):
        self.device, self.batch, self.clip = device, 128, None
        self.capturable = dict(fused=True, capturable=True) if device == "cuda" else dict(fused=True)
        getattr(self, task)(sam)

    def mnist(self, _):
        self.model = MnistNet().to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3, **self.capturable)
        self.data = torch.rand(BATCHES * self.batch, 1, 28, 28), torch.randint(10, (BATCHES * self.batch,))
        self.loss = lambda x, y: F.nll_loss(self.model(x), y)

    def cifar10(self, _):
        torch.backends.cudnn.benchmark = True
        self.model = resnet18().to(self.device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9, weight_decay=5e-4, fused=True)
        self.data = torch.rand(BATCHES * self.batch, 3, 32, 32), torch.randint(10, (BATCHES * self.batch,))
        self.clip = 1.0

        def loss(x, y):
            with torch.autocast(self.device, torch.bfloat16, cache_enabled=False):
                return F.cross_entropy(self.model(x.contiguous(memory_format=torch.channels_last)), y)
        self.loss = loss

    def sam(self, config):
        from transformers import SamConfig, SamModel
        with open(config) as file:
            config = json.load(file)
        self.batch, side = 2, config["vision_config"]["image_size"]
        masks = 4 * side // config["vision_config"]["patch_size"]
        self.model = SamModel(SamConfig(**config, attn_implementation="sdpa")).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 5e-4, weight_decay=0.3, **self.capturable)
        count = BATCHES * self.batch
        self.data = (torch.rand(count, 3, side, side), side * torch.rand(count, 1, 1, 2),
                     torch.randint(2, (count, masks, masks)).float())
        self.clip = 1.0

        def dice_loss(x, points, y):
            p = self.model(pixel_values=x, input_points=points, multimask_output=False).pred_masks[:, 0, 0].sigmoid()
            over = (p * y).sum((1, 2)), (p * p + y * y).sum((1, 2))
            return (1 - (2 * over[0] + 1e-5) / (over[1] + 1e-5)).mean()
        self.loss = dice_loss

    def step(self, *batch):
        self.optimizer.zero_grad()
        self.loss(*batch).backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()

    def batches(self, with_loader):
        """Endless, on the device."""
        pin = self.device == "cuda"
        if with_loader:
            loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*self.data), self.batch, shuffle=True, pin_memory=pin)
        else:
            parts = zip(*(tensor.split(self.batch) for tensor in self.data))
            loader = [[tensor.pin_memory() if pin else tensor for tensor in batch] for batch in parts]
        while True:
            for batch in loader:
                yield [tensor.to(self.device, non_blocking=True) for tensor in batch]

    def captured(self, batches):
        """The step as a CUDA graph."""
        held = next(batches)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(11):
                self.step(*held)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(*held)

        def step(*batch):
            for to, tensor in zip(held, batch):
                to.copy_(tensor, non_blocking=True)
            graph.replay()
        return step


def steps(arguments):
    training = Training(arguments.task, arguments.device, arguments.sam)
    batches = training.batches(arguments.mode == "loader")
    step = training.captured(batches) if arguments.mode == "graph" else training.step
    wait = torch.cuda.synchronize if arguments.device == "cuda" else lambda: None
    for i in range(WARM + arguments.steps):
        if i == WARM:
            wait()
            begin = time.perf_counter()
        step(*next(batches))
    wait()
    print(arguments.steps / (time.perf_counter() - begin))


def first(arguments):
    import torch.distributed as dist

    def read(name, header):
        with gzip.open(os.path.join(arguments.folder, name)) as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8, offset=header)
    cuda = arguments.device == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    images = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
    labels = read("train-labels-idx1-ubyte.gz", 8)
    model = nn.parallel.DistributedDataParallel(MnistNet().to(arguments.device))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    picks = torch.randperm(len(labels))[:128]
    loss = F.nll_loss(model((images[picks].to(arguments.device).float() / 255 - 0.1307) / 0.3081), labels[picks].long().to(arguments.device))
    loss.backward()
    optimizer.step()
    print(f"first step: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    for name, run in (("steps", steps), ("first", first)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
        if name == "first":
            command.add_argument("folder")
            continue
        command.add_argument("task", choices=["mnist", "cifar10", "sam"])
        command.add_argument("mode", choices=["eager", "loader", "graph"])
        command.add_argument("--steps", type=int, default=300)
        command.add_argument("--sam")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
