#include "worker/sam/mask_loss.h"

#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <torch/types.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/train/optim/losses.h>

namespace ddprun::sam {
namespace {

/// Sums over a mask need more than half precision.
at::Tensor at_least_float(const at::Tensor& values) {
  const auto type = values.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? values.to(at::kFloat) : values;
}

at::Tensor activated(const at::Tensor& input, const DiceOptions& options) {
  if (options.sigmoid) return at::sigmoid(input);
  return options.softmax && input.size(1) > 1 ? at::softmax(input, 1) : input;
}

/// [B, 1, ...] class numbers to [B, classes, ...].
at::Tensor one_hot(const at::Tensor& numbers, std::int64_t classes, at::ScalarType type) {
  TORCH_CHECK(numbers.size(1) == 1, "Dice loss: expected class numbers in one channel, got ",
              numbers.sizes());
  return at::one_hot(numbers.squeeze(1).to(at::kLong), classes).movedim(-1, 1).to(type);
}

/// 1 - overlap of each example and channel, or with `batch` of each channel.
at::Tensor dice_of_channels(const at::Tensor& p, const at::Tensor& t, const DiceOptions& options) {
  std::vector<std::int64_t> axes;
  if (options.batch) axes.push_back(0);
  for (std::int64_t axis = 2; axis < p.dim(); ++axis) axes.push_back(axis);
  const auto sum = [&](const at::Tensor& values) { return axes.empty() ? values : values.sum(axes); };
  const auto overlap = sum(p * t);
  auto both = options.squared_pred ? sum(p * p) + sum(t * t) : sum(p) + sum(t);
  if (options.jaccard) both = 2 * (both - overlap);
  return 1 - (2 * overlap + options.smooth_nr) / (both + options.smooth_dr);
}

void check_alike(const at::Tensor& predicted, const at::Tensor& truth) {
  TORCH_CHECK(predicted.sizes() == truth.sizes(), "mask metric: expected a true mask of shape ",
              predicted.sizes(), ", got ", truth.sizes());
}

/// In double: a sum of ones in float stops at 2^24.
at::Tensor total(const at::Tensor& values) { return values.sum(at::kDouble); }

}  // namespace

at::Tensor dice_loss(const at::Tensor& input, const at::Tensor& target, const DiceOptions& options) {
  if (options.sigmoid && options.softmax)
    throw std::invalid_argument("Dice loss: expected sigmoid or softmax, got both");
  TORCH_CHECK(input.dim() >= 2 && target.dim() >= 2, "Dice loss: expected [B, C, ...], got ", input.sizes(),
              " and ", target.sizes());
  const auto channels = input.size(1);
  auto p = activated(at_least_float(input), options);
  auto t = options.to_onehot_y && channels > 1 ? one_hot(target, channels, p.scalar_type())
                                               : target.to(p.scalar_type());
  TORCH_CHECK(t.sizes() == p.sizes(), "Dice loss: expected a target of shape ", p.sizes(), ", got ",
              t.sizes());
  if (!options.include_background && channels > 1) {
    p = p.slice(1, 1);
    t = t.slice(1, 1);
  }
  const auto losses = dice_of_channels(p, t, options);
  if (options.reduction == DiceReduction::kMean) return losses.mean();
  if (options.reduction == DiceReduction::kSum) return losses.sum();
  auto shape = losses.sizes().vec();
  shape.resize(shape.size() + static_cast<std::size_t>(p.dim() - 2), 1);
  return losses.view(shape);
}

at::Tensor sigmoid_focal_loss(const at::Tensor& logits, const at::Tensor& target, double gamma,
                              double alpha) {
  TORCH_CHECK(logits.sizes() == target.sizes(), "focal loss: expected a target of shape ", logits.sizes(),
              ", got ", target.sizes());
  const auto x = at_least_float(logits);
  const auto t = target.to(x.scalar_type());
  const auto cross_entropy = x - x * t - at::log_sigmoid(x);
  // (1 - p_t)^gamma through its logarithm, which stays precise for p_t near 1.
  const auto loss = (gamma * at::log_sigmoid(x * (1 - 2 * t))).exp() * cross_entropy;
  return alpha < 0 ? loss : (t * alpha + (1 - t) * (1 - alpha)) * loss;
}

MaskLoss parse_mask_loss(std::string_view name) {
  if (name == "dice") return MaskLoss::kDice;
  if (name == "dice_focal") return MaskLoss::kDiceFocal;
  if (name == "dice_bce") return MaskLoss::kDiceBce;
  throw UsageError("--loss: expected dice, dice_focal or dice_bce, got '" + std::string(name) + "'");
}

at::Tensor mask_loss(MaskLoss loss, const at::Tensor& logits, const at::Tensor& target) {
  constexpr double kFocalWeight = 20, kFocalGamma = 2, kFocalAlpha = 0.25;
  TORCH_CHECK(logits.sizes() == target.sizes(), "mask loss: expected a target of shape ", logits.sizes(),
              ", got ", target.sizes());
  const auto x = at_least_float(logits).flatten(1).unsqueeze(1);
  const auto t = target.to(x.scalar_type()).flatten(1).unsqueeze(1);
  const auto dice =
      dice_loss(x, t, {.sigmoid = true, .squared_pred = true, .reduction = DiceReduction::kNone}).flatten();
  switch (loss) {
    case MaskLoss::kDice:
      return dice;
    case MaskLoss::kDiceFocal:
      return dice + kFocalWeight * sigmoid_focal_loss(x, t, kFocalGamma, kFocalAlpha).mean({1, 2});
    case MaskLoss::kDiceBce:
      return dice + train::binary_cross_entropy_with_logits(x, t);
  }
  throw std::invalid_argument("mask loss: no such kind");
}

at::Tensor dice_score(const at::Tensor& predicted, const at::Tensor& truth) {
  constexpr double kEpsilon = 1e-6;
  check_alike(predicted, truth);
  const auto overlap = total(predicted * truth);
  return ((2 * overlap + kEpsilon) / (total(predicted) + total(truth) + kEpsilon)).to(at::kFloat);
}

at::Tensor iou_score(const at::Tensor& predicted, const at::Tensor& truth) {
  check_alike(predicted, truth);
  const auto either = total(predicted.logical_or(truth));
  return (total(predicted.logical_and(truth)) / either.clamp_min(1)).to(at::kFloat);
}

at::Tensor pixel_accuracy(const at::Tensor& predicted, const at::Tensor& truth) {
  check_alike(predicted, truth);
  const auto pixels = static_cast<double>(std::max<std::int64_t>(predicted.numel(), 1));
  return (total(predicted.to(at::kBool) == truth.to(at::kBool)) / pixels).to(at::kFloat);
}

MaskScores mask_scores(const std::vector<at::Tensor>& predicted, const std::vector<at::Tensor>& truth) {
  if (predicted.empty() || predicted.size() != truth.size())
    throw std::invalid_argument(c10::str("mask scores: expected as many true masks as predicted ones, got ",
                                         truth.size(), " for ", predicted.size()));
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> dice, iou, accuracy;
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    dice.push_back(dice_score(predicted[i], truth[i]));
    iou.push_back(iou_score(predicted[i], truth[i]));
    accuracy.push_back(pixel_accuracy(predicted[i], truth[i]));
  }
  return {torch::stack(dice), torch::stack(iou), torch::stack(accuracy)};
}

}  // namespace ddprun::sam
