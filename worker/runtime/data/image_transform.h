#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace ddprun::data {

/// What is done at random to one image in one epoch: mirrored first, then cut out of a frame of zeros.
struct Augmentation {
  bool flip = false;  ///< left and right change places
  int top = 0;        ///< where the window begins in the padded image, 0 .. 2 * padding; so `padding` is no
  int left = 0;       ///< shift at all
};

/// From an image's bytes to a model's input, in one pass: torchvision's RandomHorizontalFlip, RandomCrop(size
/// of the image, padding), ToTensor and Normalize, in that order and equal to the last bit.
///
///   out = (pixel / 255 - mean) / std        float, a table of 256 values for each channel
class ImageTransform {
 public:
  struct Options {
    std::vector<float> mean, std;  ///< of each channel, of pixels scaled to [0, 1]
    int padding = 0;    ///< pixels of zeros around the image from which the window is cut; 0: no crop
    bool flip = false;  ///< mirror half of the images
    std::uint64_t seed = 0;
    bool channels_last =
        false;  ///< the input's memory is [B, H, W, C]; its shape is [B, C, H, W] all the same
  };

  /// throws  std::invalid_argument: no channels, not as many standard deviations as means, one that is not
  /// above 0, or padding out of 0 .. 1000
  explicit ImageTransform(Options options);

  std::int64_t channels() const { return static_cast<std::int64_t>(tables_.size()); }
  bool channels_last() const { return options_.channels_last; }

  /// No augmentation: the image as it is.
  Augmentation none() const { return {false, options_.padding, options_.padding}; }

  /// By (seed, epoch, index) alone, whatever thread, batch or rank asks: Philox4x32-10 (Salmon et al. 2011)
  /// with the seed as its key and (epoch, index) as its counter. Windows and flips are uniform to 2^-32.
  Augmentation draw(std::int64_t epoch, std::int64_t index) const;

  /// image_CHW  height * width bytes of each channel, one channel after the other
  /// out        as many floats, in the order that channels_last says
  void apply(const std::uint8_t* image_CHW, std::int64_t height, std::int64_t width,
             const Augmentation& augmentation, float* out) const;

 private:
  Options options_;
  std::vector<std::array<float, 256>> tables_;
};

}  // namespace ddprun::data
