"""Golden files for the losses of masks: MONAI's own (monai 1.6)."""

import itertools
import warnings

import torch
import torch.nn.functional as F

from golden_common import write_json

DIGITS = 9
SWITCHES = ("include_background", "to_onehot_y", "squared_pred", "jaccard", "batch")


def _rounded(tensor):
    """All elements, with as many digits as the test compares."""
    return [float(f"{value:.{DIGITS}g}") for value in tensor.detach().flatten().tolist()]


def _spread(values):
    """A scalar to which each value contributes differently, so that its gradient shows them all."""
    return (values.flatten() * (1 + torch.arange(values.numel(), dtype=values.dtype))).sum()


def _combinations(loss_class, inputs, reduction, smooth):
    """The loss of every combination of switches and activations; repeated values and gradients are stored once."""
    cases, results = [], []
    for channels, activation, *flags in itertools.product(inputs, ("", "sigmoid", "softmax"), *[(False, True)] * 5):
        switches = [name for name, flag in zip(SWITCHES, flags) if flag]
        options = dict.fromkeys(SWITCHES, False) | dict.fromkeys(switches, True)
        if activation:
            options[activation] = True
        which = "numbers" if "to_onehot_y" in switches and channels != "1" else "target"
        x = torch.tensor(inputs[channels]["input"], dtype=torch.float64, requires_grad=True)
        target = torch.tensor(inputs[channels][which], dtype=torch.float64)
        loss = loss_class(**options, reduction=reduction, smooth_nr=smooth[0], smooth_dr=smooth[1])(x, target)
        _spread(loss).backward()
        result = dict(shape=list(loss.shape), values=_rounded(loss), gradient=_rounded(x.grad))
        if result not in results:
            results.append(result)
        cases.append([channels, which, activation, switches, results.index(result)])
    return dict(reduction=reduction, smooth=smooth, cases=cases, results=results)


def dice_loss(folder):
    """DiceLoss for every combination of its options, and the losses that add to it, in double precision."""
    from monai.losses import DiceLoss, FocalLoss  # here, because the other groups need no monai

    warnings.simplefilter("ignore")  # "single channel prediction, ... ignored"
    torch.manual_seed(7)
    inputs = {
        "1": dict(input=_rows(torch.randn(2, 1, 3)), target=_rows(torch.rand(2, 1, 3))),
        "3": dict(input=_rows(torch.randn(2, 3, 2)), target=_rows((torch.rand(2, 3, 2) > 0.5).double()),
                  numbers=[[[0, 2]], [[1, 2]]]),
    }
    for name, reduction, smooth in (("mean", "mean", (0.02, 0.3)), ("mean_default", "mean", (1e-5, 1e-5)),
                                    ("sum", "sum", (0.02, 0.3)), ("none", "none", (0.02, 0.3))):
        write_json(folder / f"{name}.json", dict(inputs=inputs, **_combinations(DiceLoss, inputs, reduction, smooth)))

    logits = torch.tensor(_rows(3 * torch.randn(3, 1, 4, 5)), dtype=torch.float64)
    target = (torch.rand(3, 1, 4, 5) > 0.6).double()
    target[2] = 0  # an example of which nothing is to be found
    dice = DiceLoss(sigmoid=True, squared_pred=True, reduction="none")
    each = lambda loss: loss.flatten(1).mean(1)
    losses = dict(
        dice=lambda x: each(dice(x, target)),
        dice_focal=lambda x: each(dice(x, target)) + 20 * each(_focal(FocalLoss, 2.0, 0.25)(x, target)),
        dice_bce=lambda x: each(dice(x, target))
        + each(F.binary_cross_entropy_with_logits(x, target, reduction="none")),
    )
    focal = {f"{gamma} {alpha}": _focal(FocalLoss, gamma, alpha)
             for gamma, alpha in ((2.0, None), (0.0, None), (1.5, 0.25), (2.0, 0.0), (3.0, 1.0))}
    result = dict(logits=logits.tolist(), target=target.tolist(), losses={}, focal={})
    for name, loss in losses.items():
        x = logits.clone().requires_grad_()
        values = loss(x)
        values.mean().backward()
        result["losses"][name] = dict(values=values.tolist(), gradient=_rounded(x.grad))
    for name, loss in focal.items():
        gamma, alpha = name.split()
        result["focal"][name] = dict(gamma=float(gamma), alpha=-1 if alpha == "None" else float(alpha),
                                     values=_rounded(loss(logits, target)))
    write_json(folder / "mask_losses.json", result)

    planes = {"planes": dict(input=_rows(torch.randn(2, 3, 2, 2)),
                             target=_rows((torch.rand(2, 3, 2, 2) > 0.5).double()),
                             numbers=[[[[0, 2], [1, 1]]], [[[1, 2], [0, 0]]]])}
    write_json(folder / "planes.json", dict(inputs=planes, **_combinations(DiceLoss, planes, "none", (0.02, 0.3))))


def _rows(tensor):
    """Rounds to few digits, so that the file holds the exact input."""
    return tensor.double().mul(1000).round().div(1000).tolist()


def _focal(focal_class, gamma, alpha):
    """MONAI's class converts its input to float32; its function works in double."""
    from monai.losses.focal_loss import sigmoid_focal_loss

    assert focal_class(gamma=gamma, alpha=alpha).gamma == gamma
    return lambda x, t: sigmoid_focal_loss(x, t, gamma, alpha)


def png_labels(folder):
    """Instance masks as Pillow writes them, and their numbers."""
    import numpy as np
    from PIL import Image

    rows, columns = np.mgrid[0:5, 0:7]
    deep = (rows * 9001 + columns * 977).astype(np.uint16)
    small = ((rows + columns) % 4).astype(np.uint8)
    palette = Image.fromarray(small, "P")
    palette.putpalette([0, 0, 0, 250, 10, 20, 30, 240, 50, 60, 70, 230])
    clear = palette.copy()
    clear.info["transparency"] = 0
    pictures = dict(grey_16=(Image.fromarray(deep), deep), grey_8=(Image.fromarray(small * 85), small * 85),
                    grey_1=(Image.fromarray(small > 1), small > 1), palette=(palette, small),
                    palette_clear=(clear, small),
                    grey_alpha=(Image.fromarray(np.stack([small * 50, small * 20 + 3], -1), "LA"), small * 50),
                    rgb=(Image.fromarray(np.stack([small * 60] * 3, -1)), small * 60))
    expected = {}
    for name, (picture, numbers) in pictures.items():
        picture.save(folder / f"{name}.png")
        expected[name] = numbers.astype(int).tolist()
    write_json(folder / "expected.json", expected)
    Image.fromarray(np.stack([small * 60, small * 60, small * 61], -1)).save(folder / "colours.png")
    picture = Image.fromarray((np.arange(20 * 30 * 3) % 251).astype(np.uint8).reshape(20, 30, 3))
    picture.save(folder / "picture.jpg")


def npy(folder):
    """Points as numpy.save() writes them in every dtype, order and version that is read, and some that are not."""
    import numpy as np

    rows = np.array([[1, 20, 30], [0, 5, 127], [1, 0, 0], [2, 100, 7]])
    labelled = np.concatenate([rows, [[1], [0], [1], [0]]], 1)
    arrays = {f"{kind}{size}": rows.astype(f"<{kind}{size}")
              for kind, sizes in (("i", "1248"), ("u", "1248"), ("f", "48")) for size in sizes}
    arrays |= {f"big_{dtype}": rows.astype(f">{dtype}") for dtype in ("i2", "u4", "f8")}
    arrays |= dict(fortran=np.asfortranarray(rows.astype(np.float32)), labelled=labelled,
                   labelled_fortran=np.asfortranarray(labelled))
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    for version in (2, 3):
        with open(folder / f"version_{version}.npy", "wb") as file:
            np.lib.format.write_array(file, rows, version=(version, 0))
        arrays[f"version_{version}"] = rows
    write_json(folder / "expected.json", {name: array.tolist() for name, array in arrays.items()})
    refused = dict(half=rows.astype(np.float16), flat=rows[0], cube=rows[None], text=np.array([["a"]]),
                   record=np.array([(1, 2.0)], dtype=[("y", "i4"), ("x", "f4")]), complex=rows.astype(complex))
    for name, array in refused.items():
        np.save(folder / f"refused_{name}.npy", array)
