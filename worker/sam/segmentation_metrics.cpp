#include "worker/sam/segmentation_metrics.h"

#include <torch/types.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ddprun::sam {
namespace {

void check_alike(const at::Tensor& predicted, const at::Tensor& truth) {
  TORCH_CHECK(predicted.sizes() == truth.sizes(), "mask metric: expected a true mask of shape ",
              predicted.sizes(), ", got ", truth.sizes());
}

/// In double: a sum of ones in float stops at 2^24.
at::Tensor total(const at::Tensor& values) { return values.sum(at::kDouble); }

}  // namespace

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
    throw std::invalid_argument("mask scores: expected as many true masks as predicted ones, got " +
                                std::to_string(truth.size()) + " for " + std::to_string(predicted.size()));
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
