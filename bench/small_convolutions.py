#!/usr/bin/env python3
"""ResNet-18's convolutions of small images in bfloat16 on one core: oneDNN's as PyTorch calls them, and as im2col and one product
of matrices (worker/ddprun/train/model/small_convolutions.h).

usage: bench/small_convolutions.py [BATCH]      (default: 128)
"""
import sys
import time

import torch
import torch.nn.functional as F

SHAPES = [(512, 512, 2, 1), (512, 512, 3, 1), (512, 512, 4, 1), (256, 512, 8, 2), (256, 256, 4, 1), (256, 256, 8, 1), (128, 128, 14, 1)]


def milliseconds(compute, runs=9):
    compute()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        compute()
        times.append(time.perf_counter() - begin)
    return 1e3 * sorted(times)[runs // 2]


def im2col(images, stride):
    """[B, C, H, W], 3 x 3 windows -> [B * rows * columns, 9 C]"""
    padded = F.pad(images.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    batch, height, _, channels = padded.shape
    side = (height - 3) // stride + 1
    a, b, c, _ = padded.stride()
    return padded.as_strided((batch, side, side, 3, 3, channels), (a, b * stride, c * stride, b, c, 1)).reshape(-1, 9 * channels)


def main(batch):
    torch.set_num_threads(1)
    random = lambda *sizes: torch.randn(sizes).bfloat16().contiguous(memory_format=torch.channels_last)
    print("| convolution, 3 x 3 | forward | gradient of the input | gradient of the weights | GFLOP each |\n|---|---|---|---|---|")
    for before, after, side, stride in SHAPES:
        images, weights = random(batch, before, side, side), random(after, before, 3, 3)
        result = F.conv2d(images, weights, padding=1, stride=stride)
        gradient = torch.randn_like(result)
        backward = lambda *which: torch.ops.aten.convolution_backward(
            gradient, images, weights, None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1, [*which, False])
        rows = lambda image: image.permute(0, 2, 3, 1).reshape(-1, image.shape[1])
        turned = lambda: im2col(gradient, 1) @ weights.permute(2, 3, 0, 1).flip(0, 1).reshape(-1, before)
        cells = [
            (milliseconds(lambda: F.conv2d(images, weights, padding=1, stride=stride)),
             milliseconds(lambda: im2col(images, stride) @ weights.permute(0, 2, 3, 1).reshape(after, -1).t())),
            (milliseconds(lambda: backward(True, False)), milliseconds(turned) if stride == 1 else None),
            (milliseconds(lambda: backward(False, True)), milliseconds(lambda: rows(gradient).t() @ im2col(images, stride)))]
        text = [f"{one:.1f} -> {other:.1f}" if other else f"{one:.1f}" for one, other in cells]
        work = 2e-9 * batch * result.shape[2] ** 2 * before * after * 9
        print(f"| {before} -> {after}, {side} x {side}, stride {stride} | {' | '.join(text)} | {work:.1f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 128)
