#include "worker/sam/data/segmentation_dataset.h"

#include <ATen/core/PhiloxRNGEngine.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/data/random.h>
#include <ddprun/image/read_image.h>

namespace ddprun::sam {
namespace {

constexpr int kMaxPoints = 256;
constexpr std::uint64_t kBlocksOfAnEpoch = 1024;  // of 4 numbers each; a point takes 2

/// The numbers of the instances present, and how many pixels each number has.
struct Instances {
  std::vector<std::uint16_t> numbers;
  std::vector<std::size_t> pixels;
};

Instances instances_of(const image::LabelMap& map) {
  Instances instances{{}, std::vector<std::size_t>(65536)};
  for (const auto value : map.values) ++instances.pixels[value];
  for (std::size_t number = 1; number < instances.pixels.size(); ++number)
    if (instances.pixels[number] > 0) instances.numbers.push_back(static_cast<std::uint16_t>(number));
  return instances;
}

/// Pixel `rank` of those with this number, row by row.
PromptPoint pixel_of(const image::LabelMap& map, std::uint16_t number, std::size_t rank) {
  std::size_t at = 0;
  while (map.values[at] != number || rank-- > 0) ++at;
  const auto width = static_cast<std::size_t>(map.width);
  return {.x = static_cast<double>(at % width), .y = static_cast<double>(at / width)};
}

std::uint16_t number_at(const image::LabelMap& map, const PromptPoint& point) {
  const auto column = std::min(std::lround(point.x), static_cast<long>(map.width) - 1);
  const auto row = std::min(std::lround(point.y), static_cast<long>(map.height) - 1);
  return map.values[static_cast<std::size_t>(row * map.width + column)];
}

/// The union of the instances that foreground points hit; without points, of all instances.
at::Tensor region_of(const image::LabelMap& map, const std::vector<PromptPoint>& points) {
  std::vector<std::uint8_t> is_hit(65536, points.empty() ? 1 : 0);
  for (const auto& point : points)
    if (point.foreground) is_hit[number_at(map, point)] = 1;
  is_hit[0] = 0;
  auto region = torch::empty({map.height, map.width}, torch::kUInt8);
  std::transform(map.values.begin(), map.values.end(), region.mutable_data_ptr<std::uint8_t>(),
                 [&](std::uint16_t number) { return is_hit[number]; });
  return region;
}

}  // namespace

SegmentationDataset::SegmentationDataset(const std::filesystem::path& folder, SamProcessor processor,
                                         const Options& options)
    : store_(std::make_shared<SegmentationStore>(find_segmentation_pairs(folder), options.cache_bytes)),
      processor_(std::move(processor)),
      options_(options) {
  if (options.points_per_image < 1 || options.points_per_image > kMaxPoints)
    throw std::invalid_argument("SegmentationDataset: expected 1 <= points_per_image <= " +
                                std::to_string(kMaxPoints));
  if (!options.points.empty()) points_ = read_points(options.points, size());
  check_headers();
}

void SegmentationDataset::check_headers() const {
  for (std::int64_t index = 0; index < size(); ++index) {
    const auto& pair = pairs()[static_cast<std::size_t>(index)];
    auto size = image::peek_size(pair.image);
    const bool fits = size && size->width <= kMaxSegmentedPixels / size->height &&  // without overflow
                      std::all_of(pair.masks.begin(), pair.masks.end(),
                                  [&](const auto& mask) { return image::peek_size(mask) == size; });
    if (!fits) {  // reading it reports what is wrong, if anything
      const auto image = read_segmented_image(pair);
      size = {image.picture.width, image.picture.height};
    }
    check_inside(index, size->width, size->height);
  }
}

std::shared_ptr<const SegmentationDataset> SegmentationDataset::with_fixed_points() const {
  auto set = std::make_shared<SegmentationDataset>(*this);
  set->fixed_points_ = true;
  return set;
}

data::Batch SegmentationDataset::get_batch(const std::vector<std::int64_t>& indices) const {
  std::vector<PromptedPicture> pictures;
  for (const auto index : indices) pictures.push_back(prompted(index, std::nullopt));
  return make_prompted_batch(pictures, processor_);
}

data::Batch SegmentationDataset::get_epoch_batch(const std::vector<std::int64_t>& indices,
                                                 std::int64_t epoch) const {
  if (fixed_points_) return get_batch(indices);
  std::vector<PromptedPicture> pictures;
  for (const auto index : indices) pictures.push_back(prompted(index, epoch));
  return make_prompted_batch(pictures, processor_);
}

PromptedPicture SegmentationDataset::prompted(std::int64_t index, std::optional<std::int64_t> epoch) const {
  const auto image = store_->get(static_cast<std::size_t>(index));
  PromptedPicture result{{image, &image->picture}, {}};
  if (points_.empty()) {
    result.points = draw(image->instances, index, epoch);
  } else {
    result.points = points_[static_cast<std::size_t>(index)];
  }
  result.truth = region_of(image->instances, result.points);
  return result;
}

std::vector<PromptPoint> SegmentationDataset::draw(const image::LabelMap& map, std::int64_t index,
                                                   std::optional<std::int64_t> epoch) const {
  const auto turn = epoch ? static_cast<std::uint64_t>(*epoch) + 1 : 0;
  at::Philox4_32 random(options_.seed, static_cast<std::uint64_t>(index), turn * kBlocksOfAnEpoch);
  const auto instances = instances_of(map);
  std::vector<PromptPoint> points;
  for (int i = 0; i < options_.points_per_image; ++i) {
    const auto number = instances.numbers[data::uniform_below(instances.numbers.size(), random())];
    points.push_back(pixel_of(map, number, data::uniform_below(instances.pixels[number], random())));
  }
  return points;
}

void SegmentationDataset::check_inside(std::int64_t index, std::int64_t width, std::int64_t height) const {
  if (points_.empty()) return;
  for (const auto& point : points_[static_cast<std::size_t>(index)]) {
    if (point.x < static_cast<double>(width) && point.y < static_cast<double>(height)) continue;
    std::ostringstream message;
    message << point.origin << ": expected a point inside image " << index << ", "
            << pairs()[static_cast<std::size_t>(index)].image.string() << ", which has " << width << " x "
            << height << " pixels, got y " << point.y << ", x " << point.x;
    throw IoError(options_.points, message.str());
  }
}

}  // namespace ddprun::sam
