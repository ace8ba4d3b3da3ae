#pragma once

#include <torch/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/data/dataset.h>

namespace ddprun::data {

/// The random changes to one image in one epoch: it is mirrored, then cropped from a frame of zeros.
struct Augmentation {
  bool flip = false;  ///< mirror left and right
  int top = 0,
      left = 0;  ///< where the window starts in the padded image; `padding` is the image's own corner
};

/// Turns an image's bytes into a model's input in one pass: torchvision's RandomHorizontalFlip,
/// RandomCrop(crop, padding), ToTensor and Normalize, in this order and bit for bit.
///
///   out = (pixel / 255 - mean) / std        float, from a table of 256 values per channel
class ImageTransform {
 public:
  struct Options {
    std::vector<float> mean, std;  ///< of each channel, of pixels scaled to [0, 1]
    int padding = 0;               ///< width of the frame of zeros before cropping
    std::int64_t crop = 0;         ///< side of the random crops in pixels; 0: the image's height and width
    bool flip = false;             ///< mirror half of the images
    std::uint64_t seed = 0;
    bool channels_last = false;  ///< memory is [B, H, W, C], shape still [B, C, H, W]
  };

  /// throws  std::invalid_argument: no channels, different numbers of means and deviations, a deviation of 0
  ///         or less, padding outside 0 .. 1000, or a negative crop
  explicit ImageTransform(Options options);

  std::int64_t channels() const { return static_cast<std::int64_t>(tables_.size()); }
  bool channels_last() const { return options_.channels_last; }

  bool augments() const { return options_.flip || options_.padding > 0 || options_.crop > 0; }

  /// The height or width of an image after apply().
  ///
  /// side  the image's own
  std::int64_t side(std::int64_t side, bool augmented) const {
    return augmented && options_.crop > 0 ? options_.crop : side;
  }

  /// throws  std::invalid_argument if crops are larger than the padded image
  void check_crop(std::int64_t height, std::int64_t width) const;

  /// Depends only on (seed, epoch, index), not on thread, batch or rank: Philox4x32-10 (Salmon et al. 2011)
  /// with the seed as key and (epoch, index) as counter. Windows and flips are uniform to 2^-32.
  ///
  /// height, width  of the image
  Augmentation draw(std::int64_t epoch, std::int64_t index, std::int64_t height, std::int64_t width) const;

  /// image_CHW     height * width bytes per channel, one channel after the other
  /// augmentation  nullptr: the whole image, unchanged
  /// out           side(height) * side(width) floats per channel, ordered as channels_last says
  void apply(const std::uint8_t* image_CHW, std::int64_t height, std::int64_t width,
             const Augmentation* augmentation, float* out) const;

  /// apply() for a batch, with operators of any device and the same values.
  ///
  /// images_BCHW  uint8
  /// scale_3C11   scale() on the device: CUDA rounds differently when it divides by a number
  /// drawn_B3     int64: flip, top and left of each image; undefined: whole images, unchanged
  torch::Tensor apply(const torch::Tensor& images_BCHW, const torch::Tensor& scale_3C11,
                      const torch::Tensor& drawn_B3) const;
  torch::Tensor scale() const;  ///< float [3, C, 1, 1]: 255, mean, std

 private:
  Options options_;
  std::vector<std::array<float, 256>> tables_;
};

enum class Part { kTrain, kTest };

/// Images with class labels. Copies share memory.
struct Images {
  torch::Tensor images_NCHW;  ///< uint8; the C * H * W bytes of one image are contiguous
  torch::Tensor labels_N;     ///< int64
};

/// Images as a model's input: normalised and, in training, augmented by the transform. For validation on the
/// same images, use another one whose transform does not augment.
class ImageDataset : public Dataset {
 public:
  /// throws  std::invalid_argument if shapes, dtypes or the number of channels do not fit, or the crops are
  ///         larger than the padded images
  ImageDataset(Images images, ImageTransform transform);

  std::int64_t size() const override { return images_.images_NCHW.size(0); }

  /// input float [B, C, H, W], not augmented; target int64 [B]
  Batch get_batch(const std::vector<std::int64_t>& indices) const override;
  /// The same, augmented.
  Batch get_epoch_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const override;
  /// The raw bytes and the work on them: the transform's scale, and what it drew, if anything.
  Batch get_raw_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const override;
  Batch prepare(Batch raw) const override;

  const Images& images() const { return images_; }

 private:
  /// epoch  nullopt: not augmented
  Batch make_batch(const std::vector<std::int64_t>& indices, std::optional<std::int64_t> epoch) const;

  Images images_;
  ImageTransform transform_;
};

/// A part of the training in which images have this size, for progressive resizing.
struct ImageSize {
  std::int64_t side = 0;  ///< pixels of each side
  double share = 0;       ///< of the epochs
};

/// "14:0.5,21:0.35,28": half of the epochs with images of 14 x 14 pixels, and so on; the last share may be
/// left out. returns  nullopt if it is not of this form, sides are not in 1 .. 4096, or shares do not add up
/// to 1
std::optional<std::vector<ImageSize>> parse_image_sizes(const std::string& text);

/// Progressive resizing (Howard 2018; Composer's method of this name): training sees another data set's
/// images scaled to the side of the current epoch, bilinear and antialiased. Small images cost less and teach
/// early what larger ones refine. get_batch(), for validation, scales nothing.
class ProgressiveResizing : public Dataset {
 public:
  /// epochs  of the training; later ones have the last size
  ProgressiveResizing(std::shared_ptr<const Dataset> images, std::vector<ImageSize> sizes,
                      std::int64_t epochs);

  std::int64_t size() const override { return images_->size(); }
  Batch get_batch(const std::vector<std::int64_t>& indices) const override;
  Batch get_epoch_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const override;
  Batch get_raw_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const override;
  Batch prepare(Batch raw) const override;

  std::int64_t side(std::int64_t epoch) const;

 private:
  std::shared_ptr<const Dataset> images_;
  std::vector<ImageSize> sizes_;
  std::int64_t epochs_;
};

}  // namespace ddprun::data
