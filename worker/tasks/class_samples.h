#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <ddprun/image/image.h>
#include <ddprun/train/model/task.h>

namespace ddprun::worker {

/// How a data set normalises pixels in [0, 1], by channel: input = (pixel - mean) / std.
struct PixelScale {
  std::vector<float> mean, std;
};

/// The pictures that a model takes.
struct PictureInput {
  std::int64_t side = 0;     ///< pixels of each side
  PixelScale scale;          ///< of 1 channel, grey, or 3, RGB
  bool dark_ground = false;  ///< objects are light on black, with nothing around them
};

/// A trained model, for worker TASK --predict.
struct Classifier {
  std::vector<std::string> classes;
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor& input)> log_probabilities;  ///< float [B, K] of [B, ...]
  std::optional<PictureInput> pictures = {};                                   ///< nullopt: rows of numbers
  std::int64_t columns = 0;                                                    ///< in a row
};

/// Lets the task draw its first held-out samples and its last training batch with predictions: "pred 3 / true
/// 5". For picture classifiers: input float [B, C, H, W] with 1 or 3 channels, target int64 [B], scores [B,
/// K].
///
/// class_names  K of them; also set on the task
void add_class_samples(train::Task& task, PixelScale scale, std::vector<std::string> class_names);

}  // namespace ddprun::worker
