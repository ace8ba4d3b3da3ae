#include "worker/sam/data/segmentation_dataset.h"

#include <ATen/core/PhiloxRNGEngine.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/data/dataset.h>
#include <ddprun/image/read_image.h>

namespace ddprun::sam {
namespace {

constexpr int kMaxPoints = 256;
constexpr double kBrightest = 2;  // of an augmented picture; the darkest has half its original brightness
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

/// One of the eight ways to turn and mirror a picture.
struct Turn {
  bool transpose = false, flip_x = false, flip_y = false;  ///< in this order

  /// Maps a point of a picture. width, height: of the result
  PromptPoint operator()(PromptPoint point, std::int64_t width, std::int64_t height) const {
    if (transpose) std::swap(point.x, point.y);
    if (flip_x) point.x = std::max(0.0, static_cast<double>(width - 1) - point.x);
    if (flip_y) point.y = std::max(0.0, static_cast<double>(height - 1) - point.y);
    return point;
  }
  /// values  of type `type`, [height, width, channels] with these sizes
  template <typename Values>
  Values operator()(const Values& values, at::ScalarType type, at::IntArrayRef sizes) const {
    auto* data = const_cast<typename Values::value_type*>(values.data());  // tensors cannot be read-only
    auto turned = torch::from_blob(data, sizes, type);
    if (transpose) turned = turned.transpose(0, 1);
    if (flip_x) turned = turned.flip(1);
    if (flip_y) turned = turned.flip(0);
    turned = turned.contiguous();
    const auto* begin = static_cast<const typename Values::value_type*>(turned.const_data_ptr());
    return Values(begin, begin + turned.numel());
  }
};

/// gain  brightness factor
std::shared_ptr<const SegmentedImage> augmented(const SegmentedImage& image, const Turn& turn, double gain) {
  auto result = std::make_shared<SegmentedImage>(image);
  auto& [picture, map] = *result;
  picture.bytes = turn(image.picture.bytes, torch::kUInt8, {picture.height, picture.width, picture.channels});
  map.values = turn(image.instances.values, torch::kInt16, {map.height, map.width, 1});
  std::array<std::uint8_t, 256> shade{};
  for (std::size_t value = 0; value < shade.size(); ++value)
    shade[value] = static_cast<std::uint8_t>(std::min(255.0, std::round(gain * static_cast<double>(value))));
  for (auto& byte : picture.bytes) byte = shade[byte];
  if (turn.transpose) {
    std::swap(picture.width, picture.height);
    std::swap(map.width, map.height);
  }
  return result;
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
  if (!options.points.empty())
    points_ = for_flag("--points", [&] { return read_points(options.points, size()); });
  check_headers();
}

void SegmentationDataset::check_headers() const {
  for (std::int64_t index = 0; index < size(); ++index) {
    const auto& pair = pairs()[static_cast<std::size_t>(index)];
    auto size = image::peek_size(pair.image);
    const bool fits =
        size && size->width <= kMaxSegmentedPixels / size->height &&  // without overflow
        std::ranges::all_of(pair.masks, [&](const auto& mask) { return image::peek_size(mask) == size; });
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
  return prepare(raw_batch(indices, std::nullopt));
}

data::Batch SegmentationDataset::get_epoch_batch(const std::vector<std::int64_t>& indices,
                                                 std::int64_t epoch) const {
  return prepare(get_raw_batch(indices, epoch));
}

data::Batch SegmentationDataset::get_raw_batch(const std::vector<std::int64_t>& indices,
                                               std::int64_t epoch) const {
  return raw_batch(indices, fixed_points_ ? std::nullopt : std::optional(epoch));
}

data::Batch SegmentationDataset::prepare(data::Batch raw) const {
  return prepare_prompted_batch(std::move(raw), processor_);
}

data::Batch SegmentationDataset::raw_batch(const std::vector<std::int64_t>& indices,
                                           std::optional<std::int64_t> epoch) const {
  std::vector<PromptedPicture> pictures;
  for (const auto index : indices) pictures.push_back(prompted(index, epoch));
  return make_raw_batch(pictures, processor_);
}

PromptedPicture SegmentationDataset::prompted(std::int64_t index, std::optional<std::int64_t> epoch) const {
  auto image = store_->get(static_cast<std::size_t>(index));
  Turn turn;
  if (options_.augment && epoch) {
    // Uses numbers after those for the points.
    at::Philox4_32 random(options_.seed, static_cast<std::uint64_t>(index),
                          (static_cast<std::uint64_t>(*epoch) + 2) * kBlocksOfAnEpoch - 1);
    const auto which = random();
    turn = {(which & 1) != 0, (which & 2) != 0, (which & 4) != 0};
    const double share = static_cast<double>(random()) / 4294967296.0;  // 0 .. 1
    image = augmented(*image, turn, std::pow(kBrightest, 2 * share - 1));
  }
  PromptedPicture result{{image, &image->picture}, {}};
  if (points_.empty()) {
    result.points = draw(image->instances, index, epoch);
  } else {
    for (const auto& point : points_[static_cast<std::size_t>(index)])
      result.points.push_back(turn(point, image->picture.width, image->picture.height));
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
