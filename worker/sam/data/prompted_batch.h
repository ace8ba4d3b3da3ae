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

namespace ddprun::data {

/// A picture, the points that say what of it is meant, and what is right.
struct PromptedPicture {
  std::shared_ptr<const image::Image> picture;  ///< RGB
  std::vector<PromptPoint> points;              ///< one prompt; perhaps none
  at::Tensor truth = {};                        ///< uint8 [H, W], 0 or 1; undefined: not known
};

/// What a batch of B prompted pictures holds. S: the model's image_size, L: its mask_size, N: the most points
/// of a picture, at least 1.
///   input           float [B, 3, S, S], resized, normalised and padded
///   target          float [B, 1, L, L], what is right, 0 in the padding; all 0 where it is not known
///   extra[0]        float [B, 1, N, 2], points as x, y in the model's frame
///   extra[1]        int64 [B, 1, N], 1 foreground, 0 background, -10 no point
///   extra[2], [3]   int64 [B, 2], height and width of the picture, and of it in the model's frame
///   extra[4 + i]    uint8 [H_i, W_i], what is right at picture i's own size
///   shown[i]        uint8 [H_i, W_i, 3], picture i; memory that others may see: not to be written to
Batch make_prompted_batch(const std::vector<PromptedPicture>& pictures, const SamProcessor& processor);

// Parts of such a batch.

inline const at::Tensor& points_of(const Batch& batch) { return batch.extra[0]; }
inline const at::Tensor& point_labels_of(const Batch& batch) { return batch.extra[1]; }
inline const at::Tensor& original_sizes_of(const Batch& batch) { return batch.extra[2]; }
inline const at::Tensor& resized_sizes_of(const Batch& batch) { return batch.extra[3]; }
inline const at::Tensor& truth_of(const Batch& batch, std::int64_t i) {
  return batch.extra[static_cast<std::size_t>(4 + i)];
}
inline const at::Tensor& picture_of(const Batch& batch, std::int64_t i) {
  return batch.shown[static_cast<std::size_t>(i)];
}

/// Picture i of a batch with its points, the true mask and the predicted one, to be drawn.
///
/// predicted  [H_i, W_i], not 0 where the mask is; batch and mask may be on any device
image::PredictionRow prediction_row(const Batch& batch, std::int64_t i, const at::Tensor& predicted);

/// One image of one's own and `--point`s, for a prediction.
///
/// path    PNG or JPEG
/// points  as parse_point reads them
/// throws  UsageError: no point, or one outside the image; IoError: an image that cannot be read
PromptedPicture read_prompted_picture(const std::filesystem::path& path,
                                      const std::vector<std::string>& points);

/// Writes a mask as a grey PNG: 255 where it is not 0, and 0 elsewhere.
///
/// mask    [H, W], of any dtype, on any device
/// throws  IoError
void write_mask(const std::filesystem::path& path, const at::Tensor& mask);

}  // namespace ddprun::data
