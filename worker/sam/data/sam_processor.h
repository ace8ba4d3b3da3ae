#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include <ddprun/image/image.h>

namespace ddprun::sam {

struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;
  bool operator==(const ImageSize&) const = default;
};

/// Converts images and prompts to SAM's input and its masks back to images, like transformers' SamProcessor:
/// the longest side becomes `image_size` (S here), proportions are kept, and after normalising the image is
/// padded with zeros to S x S on the right and below. Const, so several threads can use it at once.
class SamProcessor {
 public:
  struct Options {
    std::int64_t image_size = 1024;  ///< the model's: pixels of a side
    std::int64_t mask_size = 256;    ///< of its masks, per side
    std::array<double, 3> mean = {0.485, 0.456, 0.406}, std = {0.229, 0.224, 0.225};  ///< of pixels in [0, 1]
  };

  SamProcessor() : SamProcessor(Options{}) {}
  /// throws  std::invalid_argument unless sizes and standard deviations are above 0
  explicit SamProcessor(const Options& options);

  const Options& options() const { return options_; }

  /// The size in the model's frame, before padding: side * S / longest, rounded half up, at least 1.
  ImageSize resized(ImageSize original) const;

  /// picture  grey, RGB or RGBA, of any size
  /// returns  float [3, S, S]: resized (bilinear with antialiasing, in bytes, within 1 of Pillow's result),
  ///          scaled to [0, 1], normalised, padded
  at::Tensor pixel_values(const image::Image& picture) const;

  /// The same in two halves, the second of which may run on a GPU: pixels() returns uint8 [3, S, S], resized
  /// and padded, and normalised() the values of B such pictures.
  ///
  /// pixels   uint8 [B, 3, S, S]
  /// sizes    int64 [B, 2], the height and width that resized() gives
  /// colours  colours() on the device of both
  at::Tensor pixels(const image::Image& picture) const;
  at::Tensor normalised(const at::Tensor& pixels, const at::Tensor& sizes, const at::Tensor& colours) const;
  at::Tensor colours() const;  ///< float [2, 3, 1, 1]: means and standard deviations of bytes

  /// points   [..., 2], x and y in pixels of the original image
  /// returns  float64 of the same shape: in the model's frame, before padding
  at::Tensor points(const at::Tensor& points, ImageSize original) const;

  /// boxes    [..., 4], x and y of the top left corner, then of the bottom right one
  at::Tensor boxes(const at::Tensor& boxes, ImageSize original) const;

  /// The target for a prediction of `side` x `side`: the mask at the image's place in the model's frame.
  ///
  /// mask     [H, W] of the original image, of any type
  /// returns  [side, side] of the same type: nearest neighbour, 0 in the padding
  at::Tensor low_resolution_mask(const at::Tensor& mask, std::int64_t side) const;

  /// A model's mask at the image's own size.
  ///
  /// logits   float [..., L, L] of one image
  /// returns  float [..., height, width], above 0 inside the mask: bilinear to S x S, padding removed,
  ///          bilinear to the original size
  at::Tensor mask_logits(const at::Tensor& logits, ImageSize original) const;

 private:
  Options options_;
};

/// Points of several images, padded to the same number.
struct PaddedPoints {
  at::Tensor points;  ///< float64 [B, 1, N, 2]; -10 where an image has no point
  at::Tensor labels;  ///< int64 [B, 1, N]; -10 there
};

/// N is the most points of an image, at least 1.
///
/// points  of each image float [n, 2]
/// labels  of each image int64 [n]: 1 foreground, 0 background
/// throws  std::invalid_argument unless there are as many labels as points
PaddedPoints pad_points(const std::vector<at::Tensor>& points, const std::vector<at::Tensor>& labels);

}  // namespace ddprun::sam
