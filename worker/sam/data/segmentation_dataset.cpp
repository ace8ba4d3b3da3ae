#include "worker/sam/data/segmentation_dataset.h"

#include <ATen/core/PhiloxRNGEngine.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include <ddprun/data/dataset.h>
#include <ddprun/image/image_files.h>

namespace ddprun::sam {
namespace {

namespace fs = std::filesystem;

/// A folder's entries except hidden ones, in byte order of their names.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (!it->path().filename().string().starts_with(".")) entries.push_back(it->path());
  if (error) throw IoError(folder, "cannot list the folder", error.value());
  std::ranges::sort(entries, [](const fs::path& a, const fs::path& b) {
    return a.filename().native() < b.filename().native();
  });
  return entries;
}

std::vector<fs::path> with_extension(const fs::path& folder, const std::set<std::string>& extensions) {
  auto files = entries_of(folder);
  std::erase_if(files,
                [&](const fs::path& file) { return !extensions.contains(lower_case(file.extension())); });
  return files;
}

std::vector<fs::path> images_in(const fs::path& folder) {
  return with_extension(folder, {".png", ".jpg", ".jpeg"});
}
std::vector<fs::path> masks_in(const fs::path& folder) { return with_extension(folder, {".png"}); }

std::vector<SegmentationPair> pairs_by_name(const fs::path& images, const fs::path& masks) {
  std::map<std::string, fs::path> mask_of;
  for (const auto& mask : masks_in(masks))
    if (const auto [other, is_new] = mask_of.emplace(mask.stem().string(), mask); !is_new)
      throw IoError(mask, "has the same name as another mask, " + other->second.filename().string() +
                              "; expected one mask for each image");
  std::map<std::string, fs::path> image_of;
  std::vector<SegmentationPair> pairs;
  for (const auto& image : images_in(images)) {
    const auto name = image.stem().string();
    const auto mask = mask_of.find(name);
    if (mask == mask_of.end())
      throw IoError(image, "has no mask, expected " + (masks / (name + ".png")).string());
    if (const auto [other, is_new] = image_of.emplace(name, image); !is_new)
      throw IoError(image, "has the same name as another image, " + other->second.filename().string() +
                               "; expected one image for the mask " + mask->second.filename().string());
    pairs.push_back({image, {mask->second}});
  }
  if (pairs.empty()) throw IoError(images, "holds no image, expected PNG or JPEG files");
  for (const auto& [name, mask] : mask_of)
    if (!image_of.contains(name))
      throw IoError(mask, "has no image, expected " + (images / name).string() + " with .png, .jpg or .jpeg");
  return pairs;
}

/// One folder per image, one mask file per instance.
std::vector<SegmentationPair> pairs_by_folder(const fs::path& folder) {
  std::vector<SegmentationPair> pairs;
  for (const auto& entry : entries_of(folder)) {
    if (!fs::is_directory(entry / "images")) continue;
    const auto images = images_in(entry / "images");
    if (images.size() != 1)
      throw IoError(entry / "images", "holds " + std::to_string(images.size()) + " images, expected one");
    if (!fs::is_directory(entry / "masks"))
      throw IoError(images[0], "has no masks, expected a folder " + (entry / "masks").string());
    auto masks = masks_in(entry / "masks");
    if (masks.empty()) throw IoError(entry / "masks", "holds no mask, expected PNG files, one per instance");
    pairs.push_back({images[0], std::move(masks)});
  }
  return pairs;
}

void check_size(const fs::path& mask, const image::LabelMap& labels, const SegmentationPair& pair,
                const image::Image& picture) {
  if (labels.width != picture.width || labels.height != picture.height)
    throw IoError(
        mask, c10::str("has ", labels.width, " x ", labels.height, " pixels, expected ", picture.width, " x ",
                       picture.height, " pixels, the size of its image ", pair.image.string()));
}

image::LabelMap read_labels(const fs::path& mask) {
  const auto bytes = read_file(open_regular_file(mask), mask, std::size_t{1} << 30);
  return image::decode_png_labels(bytes, mask, kMaxSegmentedPixels);
}

constexpr int kMaxPoints = 256, kMaxPrompts = 64, kMaxDrawn = 1024;
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

std::vector<SegmentationPair> find_segmentation_pairs(const fs::path& folder) {
  if (!fs::is_directory(folder))
    throw IoError(folder, "is not a folder, expected one with images/ and masks/");
  if (fs::is_directory(folder / "images")) {
    if (!fs::is_directory(folder / "masks"))
      throw IoError(folder, "has no folder masks/, expected one beside images/");
    return pairs_by_name(folder / "images", folder / "masks");
  }
  const auto inner = folder / "stage1_train";
  auto pairs = pairs_by_folder(fs::is_directory(inner) ? inner : folder);
  if (pairs.empty())
    throw IoError(folder,
                  "holds no images, expected the folders images/ and masks/, or NAME/images/ and "
                  "NAME/masks/ for each image");
  return pairs;
}

SegmentedImage read_segmented_image(const SegmentationPair& pair) {
  constexpr std::size_t kMostInstances = 65535;
  SegmentedImage image{image::to_rgb(image::read_image(pair.image, kMaxSegmentedPixels)), {}};
  auto& instances = image.instances;
  if (pair.masks.size() > kMostInstances)
    throw IoError(pair.masks[kMostInstances],
                  "is one mask too many, expected at most 65535 instances per image");
  for (std::size_t i = 0; i < pair.masks.size(); ++i) {
    auto labels = read_labels(pair.masks[i]);
    check_size(pair.masks[i], labels, pair, image.picture);
    if (pair.masks.size() > 1)  // one instance per file
      for (auto& value : labels.values) value = static_cast<std::uint16_t>(value != 0 ? i + 1 : 0);
    if (i == 0)
      instances = std::move(labels);
    else
      std::transform(instances.values.begin(), instances.values.end(), labels.values.begin(),
                     instances.values.begin(), [](auto old, auto value) { return value != 0 ? value : old; });
  }
  if (std::ranges::all_of(instances.values, [](auto value) { return value == 0; }))
    throw IoError(pair.masks.size() == 1 ? pair.masks[0] : pair.masks[0].parent_path(),
                  "is empty: all pixels are 0, expected at least one instance");
  return image;
}

SegmentationStore::SegmentationStore(std::vector<SegmentationPair> pairs, std::size_t cache_bytes)
    : pairs_(std::move(pairs)), kept_(pairs_.size()), room_(cache_bytes) {}

std::shared_ptr<const SegmentedImage> SegmentationStore::get(std::size_t index) const {
  {
    const std::scoped_lock lock(mutex_);
    if (kept_.at(index)) return kept_[index];
  }
  auto image = std::make_shared<const SegmentedImage>(read_segmented_image(pairs_[index]));
  const auto bytes = image->picture.bytes.size() + 2 * image->instances.values.size();
  const std::scoped_lock lock(mutex_);
  if (!kept_[index] && bytes <= room_) {
    room_ -= bytes;
    kept_[index] = image;
  }
  return image;
}

SegmentationDataset::SegmentationDataset(const std::filesystem::path& folder, SamProcessor processor,
                                         const Options& options)
    : store_(std::make_shared<SegmentationStore>(find_segmentation_pairs(folder), options.cache_bytes)),
      processor_(std::move(processor)),
      options_(options) {
  if (options.points_per_image < 1 || options.points_per_image > kMaxPoints)
    throw std::invalid_argument(
        c10::str("SegmentationDataset: expected 1 <= points_per_image <= ", kMaxPoints));
  if (options.prompts_per_image < 1 || options.prompts_per_image > kMaxPrompts ||
      options.prompts_per_image * options.points_per_image > kMaxDrawn)
    throw std::invalid_argument(c10::str("SegmentationDataset: expected 1 <= prompts_per_image <= ",
                                         kMaxPrompts, ", and at most ", kMaxDrawn, " points in all"));
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
    const auto prompts = draw(image->instances, index, epoch);
    result.points = prompts.front();
    for (std::size_t i = 1; i < prompts.size(); ++i)
      result.more.emplace_back(prompts[i], region_of(image->instances, prompts[i]));
  } else {
    for (const auto& point : points_[static_cast<std::size_t>(index)])
      result.points.push_back(turn(point, image->picture.width, image->picture.height));
  }
  result.truth = region_of(image->instances, result.points);
  return result;
}

std::vector<std::vector<PromptPoint>> SegmentationDataset::draw(const image::LabelMap& map,
                                                                std::int64_t index,
                                                                std::optional<std::int64_t> epoch) const {
  const auto turn = epoch ? static_cast<std::uint64_t>(*epoch) + 1 : 0;
  at::Philox4_32 random(options_.seed, static_cast<std::uint64_t>(index), turn * kBlocksOfAnEpoch);
  const auto instances = instances_of(map);
  std::vector<std::vector<PromptPoint>> prompts(static_cast<std::size_t>(options_.prompts_per_image));
  for (auto& points : prompts)
    for (int i = 0; i < options_.points_per_image; ++i) {
      const auto number = instances.numbers[data::uniform_below(instances.numbers.size(), random())];
      points.push_back(pixel_of(map, number, data::uniform_below(instances.pixels[number], random())));
    }
  return prompts;
}

void SegmentationDataset::check_inside(std::int64_t index, std::int64_t width, std::int64_t height) const {
  if (points_.empty()) return;
  for (const auto& point : points_[static_cast<std::size_t>(index)]) {
    if (point.x < static_cast<double>(width) && point.y < static_cast<double>(height)) continue;
    throw IoError(options_.points,
                  c10::str(point.origin, ": expected a point inside image ", index, ", ",
                           pairs()[static_cast<std::size_t>(index)].image.string(), ", which has ", width,
                           " x ", height, " pixels, got y ", point.y, ", x ", point.x));
  }
}

}  // namespace ddprun::sam
