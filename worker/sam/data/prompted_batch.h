#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/data/dataset.h>
#include <ddprun/image/image.h>
#include "worker/sam/data/prediction_rows.h"
#include "worker/sam/data/prompt_points.h"

namespace ddprun::sam {

/// Rejects larger images: at 6 bytes per pixel this one takes 0.4 GB.
constexpr std::int64_t kMaxSegmentedPixels = std::int64_t{1} << 26;

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

/// A picture, the points that mark an object in it, and the true mask.
struct PromptedPicture {
  std::shared_ptr<const image::Image> picture;  ///< RGB
  std::vector<PromptPoint> points;              ///< one prompt; may be empty
  at::Tensor truth = {};                        ///< uint8 [H, W], 0 or 1; undefined: unknown
  /// Further prompts, and their true masks.
  std::vector<std::pair<std::vector<PromptPoint>, at::Tensor>> more = {};
};

/// Makes a batch of B prompted pictures. S: the model's image_size, L: its mask_size, P: the prompts of each
/// picture, as many of all, N: the most points of any prompt, at least 1.
///   input                  float [B, 3, S, S], resized, normalised and padded
///   target                 float [B, P, L, L], the true masks, 0 in the padding and where they are unknown
///   extra[kPoints]         float [B, P, N, 2], points as x, y in the model's frame
///   extra[kPointLabels]    int64 [B, P, N], 1 foreground, 0 background, -10 no point
///   extra[kOriginalSizes]  int64 [B, 2], height and width of the picture
///   extra[kResizedSizes]   int64 [B, 2], the same in the model's frame
///   extra[kFirstTruth + i] uint8 [P, H_i, W_i], the true masks at picture i's own size
///   shown[i]               uint8 [H_i, W_i, 3], picture i; shared memory, do not write to it
data::Batch make_prompted_batch(const std::vector<PromptedPicture>& pictures, const SamProcessor& processor);

/// The same in two halves, as Dataset::get_raw_batch() and prepare(): pictures and targets travel as bytes,
/// and extra ends with processor.colours().
data::Batch make_raw_batch(const std::vector<PromptedPicture>& pictures, const SamProcessor& processor);
data::Batch prepare_prompted_batch(data::Batch raw, const SamProcessor& processor);

/// The layout of Batch::extra.
enum Extra : std::size_t { kPoints, kPointLabels, kOriginalSizes, kResizedSizes, kFirstTruth };

inline const at::Tensor& points_of(const data::Batch& batch) { return batch.extra[kPoints]; }
inline const at::Tensor& point_labels_of(const data::Batch& batch) { return batch.extra[kPointLabels]; }
inline const at::Tensor& original_sizes_of(const data::Batch& batch) { return batch.extra[kOriginalSizes]; }
inline const at::Tensor& resized_sizes_of(const data::Batch& batch) { return batch.extra[kResizedSizes]; }
inline const at::Tensor& truths_of(const data::Batch& batch, std::int64_t i) {
  return batch.extra[kFirstTruth + static_cast<std::size_t>(i)];
}
/// Of the first prompt: [H_i, W_i].
inline at::Tensor truth_of(const data::Batch& batch, std::int64_t i) { return truths_of(batch, i)[0]; }
inline const at::Tensor& picture_of(const data::Batch& batch, std::int64_t i) {
  return batch.shown[static_cast<std::size_t>(i)];
}

/// Picture i of a batch with its first prompt's points and masks, for drawing.
///
/// predicted  [H_i, W_i], nonzero inside the mask; batch and mask may be on any device
PredictionRow prediction_row(const data::Batch& batch, std::int64_t i, const at::Tensor& predicted);

/// Reads an image and `--point`s for a prediction.
///
/// path    PNG or JPEG
/// points  for parse_point()
/// throws  UsageError: no points, or one outside the image; IoError: the image cannot be read
PromptedPicture read_prompted_picture(const std::filesystem::path& path,
                                      const std::vector<std::string>& points);

/// Writes a mask as a grey PNG: 255 where it is nonzero, else 0.
///
/// mask    [H, W], of any dtype, on any device
/// throws  IoError
void write_mask(const std::filesystem::path& path, const at::Tensor& mask);

}  // namespace ddprun::sam
