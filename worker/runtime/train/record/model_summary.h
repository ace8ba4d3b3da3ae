#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ddprun/train/model/task.h>

namespace ddprun::train {

/// A module with parameters of its own, or what operators without parameters do together.
struct LayerSummary {
  std::string name;  ///< as in named_modules(); "" for operators without parameters
  std::string type;
  std::vector<std::int64_t> input = {}, output = {};  ///< shapes; empty: unused, or no tensors
  std::int64_t parameters = 0;                        ///< a shared one counts in its first layer
  std::int64_t trainable = 0;
  std::int64_t flops = 0;  ///< of the forward pass: two for a multiplication and addition
};

/// The layers in order, and what a forward pass of the training set's first example does in them. FLOPs are
/// those of matrix products, convolutions and attention, as torch.utils.flop_counter counts them.
std::vector<LayerSummary> summarize(const Task& task);

/// As a table with its totals.
std::string to_text(const std::vector<LayerSummary>& layers);

}  // namespace ddprun::train
