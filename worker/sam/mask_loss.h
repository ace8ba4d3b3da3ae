#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

namespace ddprun::sam {

/// How the losses of examples and channels are combined.
enum class DiceReduction { kMean, kSum, kNone };

/// The options of MONAI's DiceLoss, with its names and defaults.
struct DiceOptions {
  bool include_background = true;  ///< false: ignore channel 0, unless it is the only one
  bool to_onehot_y = false;        ///< the target holds class numbers [B, 1, ...]; needs several channels
  bool sigmoid = false;            ///< apply it to the input, which holds logits
  bool softmax = false;            ///< apply it to the input over the channels; needs several channels
  bool squared_pred = false;       ///< use squares in the denominator
  bool jaccard = false;            ///< soft Jaccard index (IoU) instead of Dice
  bool batch = false;              ///< also sum over the examples
  DiceReduction reduction = DiceReduction::kMean;
  double smooth_nr = 1e-5;  ///< added to the numerator
  double smooth_dr = 1e-5;  ///< added to the denominator
};

/// 1 - Dice of probabilities p and a target t, for each example and channel.
///
///   f = 1 - (2 sum(p t) + smooth_nr) / (sum(p) + sum(t) + smooth_dr)        Milletari et al. 2016, section 3
///   squared_pred: sum(p^2) + sum(t^2);  jaccard: f = 1 - (2 I + smooth_nr) / (2 (D - I) + smooth_dr)
///
/// input    float [B, C, ...]; half precision is converted to float32
/// target   the same shape, or [B, 1, ...] with to_onehot_y
/// returns  mean or sum: a scalar. none: [B, C, 1, ...], a 1 for each spatial axis; with batch [C, 1, ...]
/// throws   std::invalid_argument for both sigmoid and softmax; c10::Error if the shapes differ or a class
///          number is out of range
at::Tensor dice_loss(const at::Tensor& input, const at::Tensor& target, const DiceOptions& options);

/// The focal loss of each element: cross-entropy that discounts confident, correct predictions.
///
///   alpha_t (1 - p_t)^gamma * -log(p_t),   p_t = p where t is 1, 1 - p where it is 0     Lin et al. 2017
///
/// logits, target  float, of the same shape
/// alpha           weight of elements that are 1; the others get 1 - alpha; below 0: no weights
/// returns         the same shape
at::Tensor sigmoid_focal_loss(const at::Tensor& logits, const at::Tensor& target, double gamma = 2,
                              double alpha = -1);

/// The values of `--loss`.
///   dice        DiceLoss(sigmoid, squared_pred)
///   dice_focal  the same + 20 x focal loss (gamma 2, alpha 0.25): Kirillov et al. 2023, section 3
///   dice_bce    the same + binary cross-entropy
enum class MaskLoss { kDice, kDiceFocal, kDiceBce };

/// throws  UsageError for other names
MaskLoss parse_mask_loss(std::string_view name);

/// The loss of each example; training minimises the mean.
///
/// logits, target  float [B, ...], target 0 or 1; an example is one mask
/// returns         float [B]
/// throws          c10::Error if the shapes differ
at::Tensor mask_loss(MaskLoss loss, const at::Tensor& logits, const at::Tensor& target);

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
