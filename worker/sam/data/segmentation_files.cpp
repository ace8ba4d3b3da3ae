#include "worker/sam/data/segmentation_files.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include <ddprun/image/read_image.h>

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
      throw IoError(mask, "has the name of another mask, " + other->second.filename().string() +
                              ", expected one for an image");
  std::map<std::string, fs::path> image_of;
  std::vector<SegmentationPair> pairs;
  for (const auto& image : images_in(images)) {
    const auto name = image.stem().string();
    const auto mask = mask_of.find(name);
    if (mask == mask_of.end())
      throw IoError(image, "has no mask, expected " + (masks / (name + ".png")).string());
    if (const auto [other, is_new] = image_of.emplace(name, image); !is_new)
      throw IoError(image, "has the name of another image, " + other->second.filename().string() +
                               ", expected one for the mask " + mask->second.filename().string());
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
    if (masks.empty()) throw IoError(entry / "masks", "holds no mask, expected PNG files, one an instance");
    pairs.push_back({images[0], std::move(masks)});
  }
  return pairs;
}

void check_size(const fs::path& mask, const image::LabelMap& labels, const SegmentationPair& pair,
                const image::Image& picture) {
  const auto text = [](int width, int height) {
    return std::to_string(width) + " x " + std::to_string(height) + " pixels";
  };
  if (labels.width != picture.width || labels.height != picture.height)
    throw IoError(mask, "has " + text(labels.width, labels.height) + ", expected " +
                            text(picture.width, picture.height) + ", the size of its image " +
                            pair.image.string());
}

image::LabelMap read_labels(const fs::path& mask) {
  const auto bytes = read_file(open_regular_file(mask), mask, std::size_t{1} << 30);
  return image::decode_png_labels(bytes, mask, kMaxSegmentedPixels);
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
                  "is one mask too many, expected at most 65535 instances an image");
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

}  // namespace ddprun::sam
