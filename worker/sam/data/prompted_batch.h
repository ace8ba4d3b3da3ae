#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ddprun/data/dataset.h>
#include <ddprun/image/image.h>
#include "worker/sam/data/prediction_rows.h"
#include "worker/sam/data/prompt_points.h"
#include "worker/sam/data/sam_processor.h"

namespace ddprun::sam {

/// A picture, the points that mark an object in it, and the true mask.
struct PromptedPicture {
  std::shared_ptr<const image::Image> picture;  ///< RGB
  std::vector<PromptPoint> points;              ///< one prompt; may be empty
  at::Tensor truth = {};                        ///< uint8 [H, W], 0 or 1; undefined: unknown
};

/// Makes a batch of B prompted pictures. S: the model's image_size, L: its mask_size, N: the most points of
/// any picture, at least 1.
///   input                  float [B, 3, S, S], resized, normalised and padded
///   target                 float [B, 1, L, L], the true mask, 0 in the padding and where it is unknown
///   extra[kPoints]         float [B, 1, N, 2], points as x, y in the model's frame
///   extra[kPointLabels]    int64 [B, 1, N], 1 foreground, 0 background, -10 no point
///   extra[kOriginalSizes]  int64 [B, 2], height and width of the picture
///   extra[kResizedSizes]   int64 [B, 2], the same in the model's frame
///   extra[kFirstTruth + i] uint8 [H_i, W_i], the true mask at picture i's own size
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
inline const at::Tensor& truth_of(const data::Batch& batch, std::int64_t i) {
  return batch.extra[kFirstTruth + static_cast<std::size_t>(i)];
}
inline const at::Tensor& picture_of(const data::Batch& batch, std::int64_t i) {
  return batch.shown[static_cast<std::size_t>(i)];
}

/// Picture i of a batch with its points and masks, for drawing.
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
