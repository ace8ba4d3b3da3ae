#include "worker/tasks/class_samples.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

#include <ddprun/image/image.h>

namespace ddprun::worker {
namespace {

constexpr std::int64_t kSamples = 30;

image::Image picture_of(const torch::Tensor& input_CHW, const PixelScale& scale) {
  const auto of_channel = [](const std::vector<float>& values) {
    return torch::tensor(values).view({-1, 1, 1});
  };
  const auto pixels_HWC = (input_CHW * of_channel(scale.std) + of_channel(scale.mean))
                              .mul(255)
                              .round()
                              .clamp(0, 255)
                              .to(torch::kUInt8)
                              .permute({1, 2, 0})
                              .contiguous();
  auto picture = image::make_image(static_cast<int>(pixels_HWC.size(1)), static_cast<int>(pixels_HWC.size(0)),
                                   static_cast<int>(pixels_HWC.size(2)));
  std::copy_n(pixels_HWC.const_data_ptr<std::uint8_t>(), pixels_HWC.numel(), picture.bytes.begin());
  return picture;
}

image::Image draw(const std::vector<train::Evaluated>& evaluated, const PixelScale& scale,
                  const std::vector<std::string>& names, const std::string& set) {
  // Names longer than digits get a line each.
  const bool digits = std::ranges::all_of(names, [](const auto& name) { return name.size() < 3; });
  const std::string between = digits ? " / " : "\n";
  std::vector<image::Tile> tiles;
  for (const auto& [batch, result] : evaluated) {
    const auto predicted = result.scores.argmax(1);
    for (std::int64_t i = 0; i < batch.size() && tiles.size() < kSamples; ++i) {
      const auto prediction = predicted[i].item<std::int64_t>(), truth = batch.target[i].item<std::int64_t>();
      tiles.push_back({picture_of(batch.input[i], scale),
                       "pred " + names.at(static_cast<std::size_t>(prediction)) + between + "true " +
                           names.at(static_cast<std::size_t>(truth)),
                       prediction != truth});
    }
  }
  return image::draw_image_grid(tiles, "predictions on samples of the " + set);
}

}  // namespace

void add_class_samples(train::Task& task, PixelScale scale, std::vector<std::string> class_names) {
  task.class_names = std::move(class_names);
  task.shown_samples = kSamples;
  task.draw_samples = [scale = std::move(scale), names = task.class_names](const auto& evaluated,
                                                                           const auto& set) {
    return draw(evaluated, scale, names, set);
  };
}

}  // namespace ddprun::worker
