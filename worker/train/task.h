#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/data/dataset.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
class OptimizerParamGroup;
}  // namespace torch::optim

namespace ddprun::train {

/// What one batch of B examples gave.
struct StepResult {
  torch::Tensor losses;   ///< float [B], of each example; training minimises their mean
  torch::Tensor correct;  ///< bool [B], which examples were classified rightly
};

/// For DistributedDataParallel: what backward goes through.
inline void visit_tensors(StepResult& result, const std::function<void(torch::Tensor&)>& visit) {
  visit(result.losses);
}

/// What a log line of training may say. Counts are of all ranks together.
struct TrainProgress {
  std::int64_t epoch;          ///< from 0
  std::int64_t samples_done;   ///< of this epoch
  std::int64_t samples_total;  ///< of an epoch
  double loss;                 ///< this step's, mean over ranks
};

/// One training, as data: what the trainer needs and nothing of how it trains.
struct Task {
  std::string name;
  std::string data_source;  ///< where the data comes from, for the log
  std::shared_ptr<torch::nn::Module> module;
  /// Over these of the module's parameters, or the parts of them that a rank keeps.
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::optim::OptimizerParamGroup>)>
      make_optimizer;
  std::unique_ptr<data::Dataset> train_set;
  std::unique_ptr<data::Dataset> test_set;
  std::function<StepResult(const data::Batch&)> step;  ///< forward pass and loss
  std::function<std::string(const TrainProgress&)>
      train_line;  ///< the log line, as the task's document has it
};

}  // namespace ddprun::train
