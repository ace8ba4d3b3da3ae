#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <ddprun/data/dataset.h>
#include "worker/sam/data/prompted_batch.h"
#include "worker/sam/data/segmentation_files.h"

namespace ddprun::data {

/// Images with points and the masks that the points mean: what SAM is fine-tuned with. Images and masks are
/// read when they are asked for, by the thread that asks. Batches are those of make_prompted_batch(),
/// without the pictures in training.
///
/// With a file of points, an image's points are one prompt, and right is the union of the instances that its
/// foreground points lie in (none, if all of them miss). For an image without a point right is the union of
/// all its instances.
///
/// Without one, points are drawn: each picks an instance, then one of its pixels, all with the same chance.
/// In training they depend on (seed, epoch, index) alone, in get_batch() on (seed, index).
class SegmentationDataset : public Dataset {
 public:
  struct Options {
    std::filesystem::path points = {};  ///< read_points(); empty: they are drawn
    int points_per_image = 1;           ///< how many are drawn, 1 .. 256
    std::uint64_t seed = 0;             ///< of what is drawn
    std::size_t cache_bytes = 0;        ///< of decoded images that may be kept in memory
  };

  /// folder  as find_segmentation_pairs() reads it
  /// throws  IoError: what is missing or does not fit, in the folder, the files' headers (sizes) or the file
  /// of points; std::invalid_argument unless points_per_image is in 1 .. 256
  SegmentationDataset(const std::filesystem::path& folder, SamProcessor processor, const Options& options);

  /// The same images with the same points in every epoch, for validation. Decoded images are shared.
  std::shared_ptr<const SegmentationDataset> with_fixed_points() const;

  std::int64_t size() const override { return static_cast<std::int64_t>(store_->pairs().size()); }

  /// throws  IoError naming the file, as read_segmented_image
  Batch get_batch(const std::vector<std::int64_t>& indices) const override;
  Batch get_epoch_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const override;

  const std::vector<SegmentationPair>& pairs() const { return store_->pairs(); }

 private:
  PromptedPicture prompted(std::int64_t index, std::optional<std::int64_t> epoch) const;
  std::vector<PromptPoint> draw(const image::LabelMap& instances, std::int64_t index,
                                std::optional<std::int64_t> epoch) const;
  void check_headers() const;
  void check_inside(std::int64_t index, std::int64_t width, std::int64_t height) const;

  std::shared_ptr<const SegmentationStore> store_;
  SamProcessor processor_;
  Options options_;
  std::vector<std::vector<PromptPoint>> points_;  // of each image; empty: they are drawn
  bool fixed_points_ = false;
};

}  // namespace ddprun::data
