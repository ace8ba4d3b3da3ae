#pragma once

#include <torch/types.h>

#include <ddprun/data/dataset.h>
#include <ddprun/data/image_transform.h>

namespace ddprun::data {

/// Which of the two parts of a data set that comes in two.
enum class Part { kTrain, kTest };

/// Images with class labels in memory. Copies share the memory.
struct Images {
  torch::Tensor images_NCHW;  ///< uint8; the C * H * W bytes of one image lie together
  torch::Tensor labels_N;     ///< int64
};

/// Images as a model's input: normalised, and for training augmented as the transform says. Give a validation
/// set of the same images a transform of its own, without augmentation.
class ImageDataset : public Dataset {
 public:
  /// throws  std::invalid_argument if shapes, dtypes or the number of channels do not fit
  ImageDataset(Images images, ImageTransform transform);

  std::int64_t size() const override { return images_.images_NCHW.size(0); }

  /// input float [B, C, H, W], not augmented; target int64 [B]
  Batch get_batch(const std::vector<std::int64_t>& indices) const override;
  /// The same, augmented.
  Batch get_epoch_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const override;

  const Images& images() const { return images_; }

 private:
  template <typename Augment>
  Batch make_batch(const std::vector<std::int64_t>& indices, Augment augment) const;

  Images images_;
  ImageTransform transform_;
};

}  // namespace ddprun::data
