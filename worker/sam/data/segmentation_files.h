#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include <ddprun/image/image.h>
#include <ddprun/image/png.h>

namespace ddprun::sam {

/// The files of an image and its instances.
struct SegmentationPair {
  std::filesystem::path image;
  std::vector<std::filesystem::path> masks;  ///< one with the instances' numbers, or one per instance
};

/// Finds the images of a folder and their masks, ordered by the images' names. Either
///   images/NAME.png|jpg|jpeg  masks/NAME.png           a mask's pixels: 0, or an instance's number
///   NAME/images/*.png  NAME/masks/*.png                one mask per instance, its pixels nonzero (Data
///   Science
///                                                      Bowl 2018); also below stage1_train/
/// Ignores other files and hidden ones.
///
/// throws  IoError naming the file: no such folder, no images, an image without a mask, a mask without an
///         image, two images with the same name
std::vector<SegmentationPair> find_segmentation_pairs(const std::filesystem::path& folder);

/// A pair's pixels.
struct SegmentedImage {
  image::Image picture;       ///< RGB
  image::LabelMap instances;  ///< same size, at least one instance
};

/// Rejects larger images: at 6 bytes per pixel this one takes 0.4 GB.
constexpr std::int64_t kMaxSegmentedPixels = std::int64_t{1} << 26;

/// throws  IoError naming the file: unreadable, damaged, more than kMaxSegmentedPixels, mask and image of
///         different sizes, a coloured mask, no instances
SegmentedImage read_segmented_image(const SegmentationPair& pair);

/// Decodes pairs on demand and keeps the first ones, as many as fit.
class SegmentationStore {
 public:
  /// cache_bytes  limit for pixels kept in memory
  SegmentationStore(std::vector<SegmentationPair> pairs, std::size_t cache_bytes);

  const std::vector<SegmentationPair>& pairs() const { return pairs_; }

  /// Thread-safe. throws IoError as read_segmented_image()
  std::shared_ptr<const SegmentedImage> get(std::size_t index) const;

 private:
  std::vector<SegmentationPair> pairs_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const SegmentedImage>> kept_;
  mutable std::size_t room_;
};

}  // namespace ddprun::sam
