#pragma once

#include <string>
#include <vector>

#include <ddprun/image/image.h>
#include <ddprun/train/model/task.h>

namespace ddprun::worker {

/// How a data set normalises pixels in [0, 1], by channel: input = (pixel - mean) / std.
struct PixelScale {
  std::vector<float> mean, std;
};

/// Lets the task draw its first held-out samples and its last training batch with predictions: "pred 3 / true
/// 5". For picture classifiers: input float [B, C, H, W] with 1 or 3 channels, target int64 [B], scores [B,
/// K].
///
/// class_names  K of them; also set on the task
void add_class_samples(train::Task& task, PixelScale scale, std::vector<std::string> class_names);

}  // namespace ddprun::worker
