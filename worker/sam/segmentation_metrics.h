#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace ddprun::sam {

// How well a predicted mask fits the true one. Both have the same shape, values 0 or 1, any dtype. Each
// returns a float scalar on the masks' device.

/// (2 sum(p t) + 1e-6) / (sum(p) + sum(t) + 1e-6): 1 for two empty masks.
at::Tensor dice_score(const at::Tensor& predicted, const at::Tensor& truth);

/// Intersection over union: 0 for two empty masks, where Dice is 1.
at::Tensor iou_score(const at::Tensor& predicted, const at::Tensor& truth);

/// The share of equal pixels; 0 for masks without pixels.
at::Tensor pixel_accuracy(const at::Tensor& predicted, const at::Tensor& truth);

/// The three for each of B images, float [B].
struct MaskScores {
  at::Tensor dice, iou, pixel_accuracy;
};

/// predicted, truth  B masks each; an image's two masks have the same shape, images may differ in size
/// throws            c10::Error if shapes differ; std::invalid_argument unless there are equally many, at
///                   least one
MaskScores mask_scores(const std::vector<at::Tensor>& predicted, const std::vector<at::Tensor>& truth);

}  // namespace ddprun::sam
