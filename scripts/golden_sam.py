"""What transformers' SamModel and SamProcessor compute, for make_golden.py: models with weights by a formula."""

import json

import torch
from safetensors.torch import save_file
from transformers import SamConfig, SamImageProcessor, SamModel, SamProcessor
from transformers.models.sam.image_processing_pil_sam import SamImageProcessorPil

from golden_common import write_json
from parity_models import fill, formula

# Each shape has something that the others lack. window_padding: its only window is larger than the image.
# windows: whole windows, windows over the edges and the corner, and a layer without windows.
# plain: leaves out everything optional.
SHAPES = {
    "window_padding": dict(
        vision_config=dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, image_size=8, patch_size=2,
                           mlp_ratio=1.0, output_channels=16, num_pos_feats=8, window_size=5),
        prompt_encoder_config=dict(hidden_size=16, image_size=8, patch_size=2, mask_input_channels=16),
        mask_decoder_config=dict(hidden_size=16, mlp_dim=16, num_attention_heads=2, iou_head_hidden_dim=8)),
    "windows": dict(
        vision_config=dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=4, image_size=24, patch_size=3,
                           mlp_dim=12, output_channels=16, num_pos_feats=8, window_size=3, global_attn_indexes=[1]),
        prompt_encoder_config=dict(hidden_size=16, image_size=24, patch_size=3, mask_input_channels=16),
        mask_decoder_config=dict(hidden_size=16, mlp_dim=20, num_attention_heads=2, iou_head_hidden_dim=8,
                                 iou_head_depth=4, num_multimask_outputs=2)),
    "plain": dict(
        vision_config=dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, image_size=20, patch_size=4,
                           mlp_dim=8, output_channels=16, num_pos_feats=8, window_size=3, global_attn_indexes=[0],
                           qkv_bias=False, use_abs_pos=False, use_rel_pos=False, hidden_act="relu",
                           layer_norm_eps=1e-5),
        prompt_encoder_config=dict(hidden_size=16, image_size=20, patch_size=4, hidden_act="relu", layer_norm_eps=1e-5),
        mask_decoder_config=dict(hidden_size=16, mlp_dim=24, num_hidden_layers=1, num_attention_heads=4,
                                 attention_downsample_rate=1, hidden_act="gelu", iou_head_depth=2,
                                 iou_head_hidden_dim=12, num_multimask_outputs=2, layer_norm_eps=1e-5)),
}
IMAGES, PROMPTS = 2, 2
LABELS = [[[1, 0, -1], [0, 1, -10]], [[1, -10, -10], [-10, 1, 0]]]
# The prompts, and whether to return more than one mask.
CASES = [("points masks", True), ("boxes", False), ("points", True), ("points", False), ("points boxes", True),
         ("boxes masks", False), ("masks", True), ("", False)]
WHOLE = 2  # of so many cases every gradient is kept whole, of the others a digest


def digest(name, tensor):
    """Norm, and the product with a vector in which no two elements have the same weight."""
    flat = tensor.detach().double().flatten()
    return torch.stack([flat.norm(), flat.dot(formula("probe " + name, flat.shape))])


def make_model(shape):
    model = SamModel(SamConfig(**SHAPES[shape], attn_implementation="sdpa")).double()
    return fill(model)


def make_inputs(model, prompts, multimask):
    size = model.config.vision_config.image_size
    inputs = dict(pixel_values=4 * formula("image", (IMAGES, 3, size, size)), multimask_output=multimask)
    place = lambda name, shape: (formula(name, shape) + 0.5) * size
    if "points" in prompts:
        inputs["input_points"] = place("points", (IMAGES, PROMPTS, 3, 2))
        inputs["input_labels"] = torch.tensor(LABELS)
    if "boxes" in prompts:
        inputs["input_boxes"] = place("boxes", (IMAGES, PROMPTS, 4))
    if "masks" in prompts:
        side = 4 * model.config.prompt_encoder_config.image_embedding_size
        inputs["input_masks"] = 8 * formula("masks", (IMAGES, 1, side, side))
    return inputs


def stages(model):
    """The output of each part in one forward pass."""
    found = {}
    watched = {"vision_encoder.patch_embed", "vision_encoder.neck", "prompt_encoder", "mask_decoder.transformer"}
    watched |= {f"vision_encoder.layers.{i}" for i in range(model.config.vision_config.num_hidden_layers)}

    def note(name):
        def hook(module, args, output):
            for i, tensor in enumerate(output if isinstance(output, tuple) else (output,)):
                found[f"{name} {i}"] = tensor.detach().contiguous()
        return hook

    hooks = [module.register_forward_hook(note(name)) for name, module in model.named_modules() if name in watched]
    model(**make_inputs(model, "points masks", True))
    found["positions"] = model.get_image_wide_positional_embeddings().detach().contiguous()
    for hook in hooks:
        hook.remove()
    return found


def run_case(model, prompts, multimask, whole):
    """Masks, scores and gradients; all gradients in one tensor, or their digests: [parameters, 2]."""
    model.zero_grad()
    output = model(**make_inputs(model, prompts, multimask))
    loss = sum((part * formula("weight of " + name, part.shape)).sum()
               for name, part in (("masks", output.pred_masks), ("scores", output.iou_scores)))
    loss.backward()
    gradients = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()}
    return dict(masks=output.pred_masks.detach().contiguous(), scores=output.iou_scores.detach().contiguous(),
                gradients=torch.cat([g.flatten() for g in gradients.values()]) if whole
                else torch.stack([digest(*item) for item in gradients.items()]))


def check_sensitive(model):
    """Checks that both the image and the point matter, or the files would prove little."""
    inputs = make_inputs(model, "points", True)
    before = model(**inputs).pred_masks
    for name in ("pixel_values", "input_points"):
        changed = model(**{**inputs, name: inputs[name].flip(0)}).pred_masks
        assert (changed - before).norm() > 0.01 * before.norm(), name


def sam_model(folder):
    """All stages of each shape, and masks, scores and gradients of each case, in double precision."""
    for shape in SHAPES:
        model = make_model(shape)
        check_sensitive(model)
        tensors = stages(model)
        for i, case in enumerate(CASES):
            tensors |= {f"{name} {i}": tensor for name, tensor in run_case(model, *case, whole=i < WHOLE).items()}
        note = dict(config=SHAPES[shape], parameters=[name for name, _ in model.named_parameters()],
                    cases=[dict(prompts=prompts, multimask=multimask) for prompts, multimask in CASES])
        save_file(tensors, folder / f"{shape}.safetensors", metadata={"golden": json.dumps(note)})


SIDE = 48
SIZES = [(37, 53), (100, 31), (48, 48), (1, 7), (201, 333), (24, 48), (47, 49), (200, 13)]


def pictures():
    """height, width, 3 bytes: a pattern of blocks with noise."""
    for height, width in SIZES:
        noise = formula(f"picture {height} {width}", (height, width, 3)) * 120
        rows, columns = torch.arange(height)[:, None, None], torch.arange(width)[None, :, None]
        pattern = ((rows // 5 + columns // 7) % 3) * 80 + torch.arange(3) * 15 + 20
        yield (height, width), (pattern + noise).clamp(0, 255).to(torch.uint8)


def sam_processor(folder):
    """For pictures of odd sizes: inputs (by torchvision and by Pillow), points, boxes, and masks scaled back."""
    options = dict(size={"longest_edge": SIDE}, pad_size={"height": SIDE, "width": SIDE})
    processor = SamProcessor(SamImageProcessor(**options))
    by_pillow = SamImageProcessorPil(**options)
    tensors, cases = {}, []
    for (height, width), picture in pictures():
        points = [[x * width / 5, y * height / 3] for x, y in ((0, 0), (1.5, 2), (4.9, 2.9))]
        box = [width / 7, 0, width - 1, height / 2]
        name = f"{height}x{width}"
        mask = (picture[:, :, 0] > 100).numpy().astype("uint8")
        found = processor(images=picture.numpy(), segmentation_maps=mask, input_points=[[points]], input_boxes=[[box]],
                          mask_size={"longest_edge": SIDE // 4},
                          mask_pad_size={"height": SIDE // 4, "width": SIDE // 4}, input_data_format="channels_last",
                          return_tensors="pt")
        resized = found["reshaped_input_sizes"][0].tolist()
        logits = formula("logits " + name, (1, 3, SIDE // 4, SIDE // 4)).float()
        back = processor.post_process_masks([logits], [(height, width)], [resized], binarize=False)[0]
        tensors[f"{name} torchvision"] = found["pixel_values"][0]
        tensors[f"{name} pillow"] = by_pillow(picture.numpy(), input_data_format="channels_last",
                                             return_tensors="pt")["pixel_values"][0]
        tensors[f"{name} mask"] = found["labels"][0].to(torch.uint8)
        cases.append(dict(size=[height, width], resized=resized, points=points, box=box,
                          new_points=found["input_points"][0, 0].tolist(), new_box=found["input_boxes"][0, 0].tolist(),
                          mask_logits=[float(f"{x:.13g}") for x in digest("mask logits", back).tolist()]))
    for name in list(tensors):  # a sixteenth of the room: what the bytes were, to be normalised by the test
        if not name.endswith("mask"):
            mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
            values = tensors[name]
            bytes_ = (values * std[:, None, None] + mean[:, None, None]) * 255
            tensors[name] = bytes_.round().clamp(0, 255).to(torch.uint8)
            tensors[name + " sum"] = values.double().sum().reshape(1)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "pictures.safetensors")
    write_json(folder / "cases.json", dict(side=SIDE, cases=cases))
