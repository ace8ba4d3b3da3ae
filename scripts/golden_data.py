"""The golden groups of make_golden.py about worker/data: augmentation, made-up data, splits."""

import zlib

import numpy as np
import torch
import torchvision.transforms.functional as TF
from PIL import Image

from golden_common import write_json


def crc32(tensor):
    """A checksum of the values' bytes, for comparing to the last bit."""
    return zlib.crc32(np.ascontiguousarray(tensor.numpy()).tobytes())


def image_transform(folder):
    """torchvision's flip, padded crop, ToTensor and Normalize with given flips and windows, on made-up images."""
    cases = []
    for channels, height, width, padding in ((3, 32, 32, 4), (1, 28, 28, 2), (3, 5, 7, 9)):
        mean, std = (.4914, .4822, .4465)[:channels], (.2023, .1994, .2010)[:channels]
        at = np.ogrid[:height, :width, :channels]
        image = ((at[0] * 31 + at[1] * 7 + at[2] * 101 + at[0] * at[1]) % 256).astype(np.uint8)
        picture = Image.fromarray(image if channels == 3 else image[:, :, 0])
        for flip in (False, True):
            for top, left in ((padding, padding), (0, 0), (2 * padding, 2 * padding), (0, 2 * padding), (padding - 1, 1)):
                changed = TF.hflip(picture) if flip else picture
                changed = TF.crop(TF.pad(changed, padding), top, left, height, width)
                out = TF.normalize(TF.to_tensor(changed), mean, std)
                cases.append(dict(channels=channels, height=height, width=width, padding=padding, mean=mean, std=std, flip=flip,
                                  top=top, left=left, crc=crc32(out), first=out.flatten()[:4].tolist()))
    write_json(folder / "cases.json", cases)


def toy_datasets(folder):
    """The data of the tutorial's toy and linear trainings after torch.manual_seed, and the next random number."""
    cases = []
    for seed in (0, 7):
        torch.manual_seed(seed)
        x, y = map(torch.stack, zip(*[(torch.rand(20), torch.rand(1)) for _ in range(2048)]))  # as the tutorial does
        cases.append(dict(name="toy", seed=seed, first=x[0].tolist(), last=x[-1].tolist(), target=y[:, 0].tolist()[:10],
                          input_crc=crc32(x), target_crc=crc32(y), after=torch.rand(1).item()))
        torch.manual_seed(seed)
        x, y = torch.randn(1000, 10), torch.randint(0, 2, (1000, 1)).float()
        cases.append(dict(name="linear", seed=seed, first=x[0].tolist(), last=x[-1].tolist(), target=y[:, 0].tolist()[:10],
                          target_crc=crc32(y), after=torch.rand(1).item()))
    write_json(folder / "cases.json", cases)


def random_split(folder):
    """torch.utils.data.random_split by fractions: sizes and CRC-32 of both parts' int64 numbers."""
    cases = []
    for size in (2, 10, 101, 50000):
        for fraction in (0.1, 0.3, 1 / 3, 0.5, 0.9):
            for seed in (0, 1234567):
                parts = torch.utils.data.random_split(range(size), [1 - fraction, fraction],
                                                      torch.Generator().manual_seed(seed))
                if all(parts):
                    cases.append(dict(size=size, fraction=fraction, seed=seed, sizes=[len(p) for p in parts],
                                      crcs=[crc32(torch.tensor(p.indices)) for p in parts], first=parts[0].indices[:5]))
    write_json(folder / "cases.json", cases)
