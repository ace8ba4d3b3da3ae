#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include <ddprun/image/image.h>
#include <ddprun/image/png.h>

namespace ddprun::data {

/// An image and where its instances are.
struct SegmentationPair {
  std::filesystem::path image;
  std::vector<std::filesystem::path> masks;  ///< one with the instances' numbers, or one of each instance
};

/// The images of a folder with their masks, in the order of the images' names. Either
///   images/NAME.png|jpg|jpeg  masks/NAME.png           a mask's pixels: 0, or the number of an instance
///   NAME/images/*.png  NAME/masks/*.png                a mask an instance, its pixels not 0 (Data Science
///                                                      Bowl 2018); also below stage1_train/
/// Other files, and hidden ones, are not looked at.
///
/// throws  IoError naming the file: no such folder, no image, an image without a mask, a mask without an
/// image, two images of one name
std::vector<SegmentationPair> find_segmentation_pairs(const std::filesystem::path& folder);

/// A pair's pixels.
struct SegmentedImage {
  image::Image picture;       ///< RGB
  image::LabelMap instances;  ///< of the same size, with at least one instance
};

/// Images of more pixels than this are refused: they take 6 bytes a pixel, 0.4 GB.
constexpr std::int64_t kMaxSegmentedPixels = std::int64_t{1} << 26;

/// throws  IoError naming the file: unreadable, damaged, more than kMaxSegmentedPixels, a mask of another
/// size than its image, a mask in colours, no instance
SegmentedImage read_segmented_image(const SegmentationPair& pair);

/// Pairs that are decoded when they are asked for. Those that come first are kept, as many as fit.
class SegmentationStore {
 public:
  /// cache_bytes  of pixels to keep in memory; 0: none
  SegmentationStore(std::vector<SegmentationPair> pairs, std::size_t cache_bytes);

  const std::vector<SegmentationPair>& pairs() const { return pairs_; }

  /// Safe from several threads. throws IoError as read_segmented_image
  std::shared_ptr<const SegmentedImage> get(std::size_t index) const;

 private:
  std::vector<SegmentationPair> pairs_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const SegmentedImage>> kept_;
  mutable std::size_t room_;
};

}  // namespace ddprun::data
