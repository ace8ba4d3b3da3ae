"""The golden groups of make_golden.py about worker/train: optimizers, schedules, scaling, averages, metrics."""

import copy
import random
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import lr_scheduler

from golden_common import number, write_json


def fused_optimizers(folder):
    """Parameters after 20 steps of each optimizer, fused where Python offers it, and the final state dict."""
    optim = torch.optim
    fused = dict(fused=True)
    makers = dict(
        sgd=lambda g: optim.SGD(g, lr=0.1, **fused),
        sgd_momentum=lambda g: optim.SGD(g, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01, **fused),
        sgd_nesterov=lambda g: optim.SGD(g, lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True, **fused),
        adam=lambda g: optim.Adam(g, lr=0.01, **fused),
        adam_amsgrad=lambda g: optim.Adam(g, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1, amsgrad=True, **fused),
        adamw=lambda g: optim.AdamW(g, lr=0.01, **fused),
        adamw_amsgrad=lambda g: optim.AdamW(g, lr=0.01, eps=1e-6, weight_decay=0.1, amsgrad=True, **fused),
        adadelta=lambda g: optim.Adadelta(g),
        adadelta_decay=lambda g: optim.Adadelta(g, lr=0.5, rho=0.8, eps=1e-5, weight_decay=0.1),
    )
    shapes = ((3, 2), (5,), (4, 1, 2, 2))
    torch.manual_seed(4)
    before = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    gradients = [[torch.randn(shape, dtype=torch.float64) for shape in shapes] for _ in range(20)]
    gradients[0][2] = gradients[3][1] = None  # not every step uses every parameter
    if_there = lambda g, dtype: None if g is None else g.to(dtype)
    for dtype in (torch.float64, torch.float32):
        results = {}
        for name, make in makers.items():
            parameters = [nn.Parameter(p.to(dtype, copy=True)) for p in before]
            optimizer = make([dict(params=parameters[:2]), dict(params=parameters[2:], lr=0.05)])
            for of_step in gradients:
                for parameter, gradient in zip(parameters, of_step):
                    parameter.grad = if_there(gradient, dtype)
                optimizer.step()
            results[name] = dict(after=[p.detach().clone() for p in parameters],
                                 optimizer=copy.deepcopy(optimizer.state_dict()))
        file = dict(before=[p.to(dtype) for p in before],
                    gradients=[[if_there(g, dtype) for g in of_step] for of_step in gradients], results=results)
        torch.save(file, folder / f"{str(dtype).split('.')[1]}.pt")


def lr_schedule(folder):
    """The learning rates (and momenta) of two groups under each scheduler, and its state dicts."""
    warnings.simplefilter("ignore")
    draw = random.Random(3)
    cases = []

    def add(kind, arguments, unit="step", count=11, optimizer="sgd", warmup=None, touch=()):
        cases.append(schedule_case(draw, kind, arguments, unit, count, optimizer, warmup, touch))

    warm = dict(steps=6, start_factor=0.01)
    for arguments in (dict(step_size=1, gamma=0.7), dict(step_size=4)):
        add("step", arguments)
        add("step", arguments, touch=(3, 8))
        add("step", arguments, warmup=warm)
        add("step", arguments, unit="epoch", warmup=warm)
    for arguments in (dict(T_max=200), dict(T_max=7, eta_min=0.01), dict(T_max=3)):
        add("cosine", arguments)
        add("cosine", arguments, touch=(3, 8))
        add("cosine", arguments, warmup=warm)
        add("cosine", arguments, unit="epoch", warmup=dict(steps=8, start_factor=0.25))
    for optimizer in ("adam", "adamw"):
        add("one-cycle", dict(total_steps=11, max_lr=1.0), optimizer=optimizer)
    for arguments in (dict(max_lr=1.0), dict(max_lr=0.5, pct_start=0.5, anneal_strategy="linear", div_factor=10.0),
                      dict(max_lr=0.2, three_phase=True, final_div_factor=100.0),
                      dict(max_lr=1.0, cycle_momentum=False)):
        add("one-cycle", dict(total_steps=11, **arguments))
        add("one-cycle", dict(total_steps=5, **arguments), warmup=warm)
    for arguments in (dict(patience=1), dict(mode="max", patience=0, threshold=0.05, cooldown=2), dict(),
                      dict(patience=1, threshold_mode="abs", threshold=0.1, factor=0.5), dict(patience=2, min_lr=0.02),
                      dict(mode="max", threshold_mode="abs", patience=1, factor=0.9, eps=0.005)):
        add("plateau", arguments, unit="epoch", count=20)
    write_json(folder / "schedules.json", cases)


def schedule_case(draw, kind, arguments, unit, count, optimizer, warmup, touch):
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [dict(params=parameters[:1]), dict(params=parameters[1:], lr=0.05)]
    make = dict(sgd=lambda: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
                adam=lambda: torch.optim.Adam(groups, lr=0.1), adamw=lambda: torch.optim.AdamW(groups, lr=0.1))
    opt = make[optimizer]()
    classes = {"step": lr_scheduler.StepLR, "cosine": lr_scheduler.CosineAnnealingLR,
               "one-cycle": lr_scheduler.OneCycleLR, "plateau": lr_scheduler.ReduceLROnPlateau}
    warm = warmup and lr_scheduler.LinearLR(opt, warmup["start_factor"], total_iters=warmup["steps"])
    schedule = classes[kind](opt, **arguments)
    if warm:
        schedule = lr_scheduler.SequentialLR(opt, [warm, schedule], [warmup["steps"]])
    momentum = lambda g: g["momentum"] if optimizer == "sgd" else g["betas"][0]
    seen = lambda: [g["lr"] for g in opt.param_groups] + [momentum(opt.param_groups[1])][:kind == "one-cycle"]
    ticks = [seen()]
    metrics, states = [], [plain(schedule.state_dict())]
    for tick in range(1, count + 1):
        # A warm-up advances with every optimizer step, an epoch's schedule from the end of the first epoch after it.
        if kind == "plateau":
            metrics.append(draw.choice([draw.random(), round(draw.random(), 1), draw.choice([0.5, float("nan")])]))
            schedule.step(metrics[-1])
        else:
            schedule.step()
        if tick in touch:
            for group in opt.param_groups:
                group["lr"] *= 0.5
        ticks.append(seen())
        if tick == 9:
            states.append(plain(schedule.state_dict()))
    return dict(kind=kind, arguments=arguments, unit=unit, optimizer=optimizer, warmup=warmup, touch=list(touch),
                metrics=[number(m) for m in metrics], ticks=ticks, states=states)


def plain(value):
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return number(value) if isinstance(value, float) else value


def grad_scaler(folder):
    """Scale, growth tracker and whether the optimizer stepped, for random gradients, some of them not finite."""
    draw = random.Random(5)
    cases = []
    for _ in range(12):
        options = dict(init_scale=draw.choice([1.0, 65536.0, 2.0**120]), growth_factor=draw.choice([2.0, 1.5, 2.0**10]),
                       backoff_factor=draw.choice([0.5, 0.1]), growth_interval=draw.choice([1, 2, 3, 5]))
        scaler = torch.amp.GradScaler("cpu", **options)
        parameter = nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        steps = []
        for _ in range(25):
            gradient = [draw.choice([0.5, -1.0]), draw.choice([0.25] * 6 + [float("inf"), float("nan")])]
            scaler.scale(torch.zeros(()))  # makes the scale
            parameter.grad = torch.tensor(gradient) * scaler.get_scale()
            unscales = draw.random() < 0.5
            if unscales:
                scaler.unscale_(optimizer)
            before = parameter.detach().clone()
            scaler.step(optimizer)
            scaler.update()
            state = scaler.state_dict()
            steps.append(dict(gradient=[number(g) for g in gradient], unscales=unscales, scale=number(state["scale"]),
                              tracker=state["_growth_tracker"], stepped=not torch.equal(before, parameter),
                              parameter=parameter.tolist()))
        cases.append(dict(options=options, steps=steps, keys=list(state)))
    write_json(folder / "steps.json", cases)


def clip_gradients(folder):
    """Norms and clipped gradients from torch.nn.utils' two functions."""
    torch.manual_seed(6)
    cases = []
    for norm_type in (2.0, 1.0, 3.0, float("inf")):
        for max_norm in (0.5, 3.0, 1000.0):
            gradients = [torch.randn(shape) for shape in ((3, 2), (4,), ())]
            parameters = [nn.Parameter(torch.zeros_like(g)) for g in gradients] + [nn.Parameter(torch.zeros(2))]
            for parameter, gradient in zip(parameters, gradients):
                parameter.grad = gradient.clone()
            norm = nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
            by_norm = [p.grad.tolist() for p in parameters[:3]]
            for parameter, gradient in zip(parameters, gradients):
                parameter.grad = gradient.clone()
            nn.utils.clip_grad_value_(parameters, max_norm)
            cases.append(dict(norm_type=number(norm_type), max_norm=max_norm, gradients=[g.tolist() for g in gradients],
                              norm=norm.item(), by_norm=by_norm, by_value=[p.grad.tolist() for p in parameters[:3]]))
    write_json(folder / "clipped.json", cases)


def ema(folder):
    """AveragedModel with get_ema_multi_avg_fn after five updates, with and without averaged buffers."""
    torch.manual_seed(7)
    weights = [{name: torch.randn_like(t) if t.is_floating_point() else t + 3 * i
                for name, t in ema_module().state_dict().items()} for i in range(5)]
    result = dict(weights=weights)
    for use_buffers in (False, True):
        module = ema_module()
        average = torch.optim.swa_utils.AveragedModel(
            module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
        for state in weights:
            module.load_state_dict(state)
            average.update_parameters(module)
        result["averaged_buffers" if use_buffers else "copied_buffers"] = dict(average.state_dict())
    torch.save(result, folder / "averages.pt")


def ema_module():
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def losses_and_metrics(folder):
    """Each sample's loss and the gradient of their mean; torchmetrics' values over several batches."""
    import torchmetrics

    torch.manual_seed(8)
    scores, classes = torch.randn(6, 4), torch.tensor([0, 3, 1, 1, 2, 0])
    soft, binary = torch.softmax(torch.randn(6, 4), 1), torch.randint(2, (6, 4)).float()
    one_score, one_target = torch.randn(6, 1), torch.rand(6, 1)
    losses = []
    for name, function, output, target in (
            ("cross_entropy", lambda o, t: F.cross_entropy(o, t, reduction="none"), scores, classes),
            ("smoothed", lambda o, t: F.cross_entropy(o, t, reduction="none", label_smoothing=0.1), scores, classes),
            ("soft", lambda o, t: F.cross_entropy(o, t, reduction="none"), scores, soft),
            ("soft_one_class", lambda o, t: F.cross_entropy(o, t, reduction="none"), one_score, one_target),
            ("binary", lambda o, t: F.binary_cross_entropy_with_logits(o, t, reduction="none").mean(1), scores, binary),
            ("squared", lambda o, t: F.mse_loss(o, t, reduction="none").mean(1), scores, soft)):
        output = output.clone().requires_grad_()
        values = function(output, target)
        values.mean().backward()
        losses.append(dict(name=name, output=output.tolist(), target=target.tolist(), values=values.tolist(),
                           gradient=output.grad.tolist()))
    accuracy = torchmetrics.classification.MulticlassAccuracy(5, average="micro")
    confusion = torchmetrics.classification.MulticlassConfusionMatrix(5)
    mean = torchmetrics.MeanMetric()
    batches = []
    for size in (7, 1, 4, 9):
        batch_scores, target, values = torch.randn(size, 5).round(), torch.randint(5, (size,)), torch.randn(size)
        accuracy.update(batch_scores, target)
        confusion.update(batch_scores, target)
        mean.update(values)
        batches.append(dict(scores=batch_scores.tolist(), target=target.tolist(), values=values.tolist()))
    write_json(folder / "values.json", dict(losses=losses, batches=batches, accuracy=accuracy.compute().item(),
                                            confusion=confusion.compute().tolist(), mean=mean.compute().item()))
