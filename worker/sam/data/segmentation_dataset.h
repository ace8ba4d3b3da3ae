#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ddprun/data/dataset.h>
#include <ddprun/image/image.h>
#include <ddprun/image/image_files.h>
#include "worker/sam/data/prompted_batch.h"

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

/// Images with points and the masks of the objects they mark, for training SAM. Reads images and masks on
/// demand, in the calling thread. Batches come from make_prompted_batch().
///
/// With a file of points, an image's points are one prompt; the true mask is the union of the instances that
/// its foreground points hit, perhaps none. For an image without points it is the union of all instances.
///
/// Without a file, draws points: each picks an instance, then one of its pixels, uniformly. In training they
/// depend only on (seed, epoch, index), in get_batch() on (seed, index). So do image rotations.
class SegmentationDataset : public data::Dataset {
 public:
  struct Options {
    std::filesystem::path points = {};  ///< for read_points(); empty: draw them
    int points_per_image = 1;           ///< how many to draw, 1 .. 256
    int prompts_per_image = 1;          ///< how many to draw, each with its own points, 1 .. 64
    std::uint64_t seed = 0;             ///< for drawing
    bool augment = false;               ///< in training, turn, mirror, brighten or darken images at random
    std::size_t cache_bytes = 0;        ///< limit for decoded images kept in memory
  };

  /// folder  for find_segmentation_pairs()
  /// throws  IoError: something missing or inconsistent in the folder, the files' headers (sizes) or the file
  ///         of points; std::invalid_argument unless points_per_image is in 1 .. 256, prompts_per_image in
  ///         1 .. 64, and there are at most 1024 points in all
  SegmentationDataset(const std::filesystem::path& folder, SamProcessor processor, const Options& options);

  /// The same images with the same points in every epoch, for validation. Shares decoded images.
  std::shared_ptr<const SegmentationDataset> with_fixed_points() const;

  std::int64_t size() const override { return static_cast<std::int64_t>(store_->pairs().size()); }

  /// throws  IoError naming the file, as read_segmented_image
  data::Batch get_batch(const std::vector<std::int64_t>& indices) const override;
  data::Batch get_epoch_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const override;
  data::Batch get_raw_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const override;
  data::Batch prepare(data::Batch raw) const override;

  const std::vector<SegmentationPair>& pairs() const { return store_->pairs(); }

 private:
  data::Batch raw_batch(const std::vector<std::int64_t>& indices, std::optional<std::int64_t> epoch) const;
  PromptedPicture prompted(std::int64_t index, std::optional<std::int64_t> epoch) const;
  std::vector<std::vector<PromptPoint>> draw(const image::LabelMap& instances, std::int64_t index,
                                             std::optional<std::int64_t> epoch) const;
  void check_headers() const;
  void check_inside(std::int64_t index, std::int64_t width, std::int64_t height) const;

  std::shared_ptr<const SegmentationStore> store_;
  SamProcessor processor_;
  Options options_;
  std::vector<std::vector<PromptPoint>> points_;  // by image; empty: drawn at random
  bool fixed_points_ = false;
};

}  // namespace ddprun::sam
