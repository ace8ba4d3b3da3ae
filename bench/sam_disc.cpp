// The baseline without a model: Dice and IoU of a disc around the point, with the radius that fits the
// training images best, on the validation images and points of `worker sam` with its defaults.
//
// usage: sam_disc FOLDER_WITH_IMAGES_AND_MASKS
#include <cstdio>
#include <memory>
#include <vector>

#include <torch/types.h>

#include "worker/config/config.h"
#include "worker/sam/data/prompted_batch.h"
#include "worker/sam/data/segmentation_dataset.h"
#include "worker/sam/mask_loss.h"
#include "worker/tasks/registry.h"

namespace {

using namespace ddprun;
using namespace ddprun::worker;

/// uint8 [H, W]: 1 where the pixel is at most `radius` from the first point.
torch::Tensor disc(const data::Batch& batch, std::int64_t i, double radius) {
  const auto row = sam::prediction_row(batch, i, sam::truth_of(batch, i));
  const auto& truth = sam::truth_of(batch, i);
  const auto y = torch::arange(truth.size(0)).unsqueeze(1) - row.points.at(0).y;
  const auto x = torch::arange(truth.size(1)).unsqueeze(0) - row.points.at(0).x;
  return y * y + x * x <= radius * radius;
}

using Score = torch::Tensor (*)(const torch::Tensor& predicted, const torch::Tensor& truth);

double mean_of(Score score, const data::Dataset& set, double radius) {
  double sum = 0;
  for (std::int64_t index = 0; index < set.size(); ++index) {
    const auto batch = set.get_batch({index});
    sum += score(disc(batch, 0, radius), sam::truth_of(batch, 0)).item<double>();
  }
  return sum / static_cast<double>(set.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: sam_disc FOLDER_WITH_IMAGES_AND_MASKS\n");
    return 2;
  }
  Config config;
  config.task = "sam";
  set_defaults(config);
  const sam::SegmentationDataset::Options options{.cache_bytes = std::size_t{1} << 30};
  const auto all = std::make_shared<sam::SegmentationDataset>(
      argv[1], sam::SamProcessor({.image_size = 128, .mask_size = 64}), options);
  const auto split = split_for_validation(all, all->with_fixed_points(), config);
  double best = 0, dice = 0;
  for (double radius = 2; radius <= 40; radius += 1)
    if (const auto found = mean_of(sam::dice_score, *split.train, radius); found > dice)
      dice = found, best = radius;
  const auto& unseen = *split.validation;
  std::printf("radius %.0f: Dice %.4f on %lld training images, %.4f (IoU %.4f) on %lld validation images\n",
              best, dice, static_cast<long long>(split.train->size()), mean_of(sam::dice_score, unseen, best),
              mean_of(sam::iou_score, unseen, best), static_cast<long long>(unseen.size()));
}
