#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace ddprun::train {

// How well a predicted mask fits the true one. Masks of one shape, 0 or 1, of any dtype. Each returns a float
// scalar on the masks' device.

/// (2 sum(p t) + 1e-6) / (sum(p) + sum(t) + 1e-6): 1 for two empty masks.
at::Tensor dice_score(const at::Tensor& predicted, const at::Tensor& truth);

/// What both have over what either has: 0 for two empty masks, where Dice is 1.
at::Tensor iou_score(const at::Tensor& predicted, const at::Tensor& truth);

/// The part of the pixels that are alike; 0 for masks without a pixel.
at::Tensor pixel_accuracy(const at::Tensor& predicted, const at::Tensor& truth);

/// The three of each of B images, float [B].
struct MaskScores {
  at::Tensor dice, iou, pixel_accuracy;
};

/// predicted, truth  B masks, the two of an image of one shape; images may differ in size
/// throws            c10::Error if shapes differ, std::invalid_argument unless there are as many, at least
/// one
MaskScores mask_scores(const std::vector<at::Tensor>& predicted, const std::vector<at::Tensor>& truth);

}  // namespace ddprun::train
