#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ddprun/train/model/task.h>

namespace ddprun::train {

/// A module with parameters, or the combined work of operators without parameters.
struct LayerSummary {
  std::string name;  ///< as in named_modules(); "" for operators without parameters
  std::string type;
  std::vector<std::int64_t> input = {}, output = {};  ///< shapes; empty: unused, or no tensors
  std::int64_t parameters = 0;                        ///< a shared parameter counts in its first layer
  std::int64_t trainable = 0;
  std::int64_t flops = 0;  ///< of the forward pass: two per multiply-add
};

/// The layers in order, with the work of a forward pass on the training set's first example. FLOPs are those
/// of matrix products, convolutions and attention, as in torch.utils.flop_counter.
///
/// sync_batch_norm  whether a ddp::SyncBatchNorm will work as one, not as a BatchNorm
std::vector<LayerSummary> summarize(const Task& task, bool sync_batch_norm = false);

/// "1,199,882", of a number from 0.
std::string with_commas(std::int64_t number);

/// As a table with its totals.
std::string to_text(const std::vector<LayerSummary>& layers);

}  // namespace ddprun::train
