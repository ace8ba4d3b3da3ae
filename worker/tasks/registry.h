#pragma once

#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/sharding/meta_device.h>
#include <ddprun/train/state/state_dict_file.h>
#include "worker/config/config.h"

namespace torch::nn {
class Module;
}

namespace ddprun::worker {

const std::vector<TaskEntry>& all_tasks();

/// throws  UsageError for an unknown task
const TaskEntry& entry_of(const std::string& task);

/// The configured task: its model, initialised from the seed, and its data, read and checked.
/// throws  UsageError for an unknown task or data set, IoError for data and weights
train::Task make_task(const Config& config);

/// This process's task, kept from round to round of the job.
struct LoadedTask {
  std::optional<train::Task> task;
  bool used = false;  ///< it may have been trained since it was made

  /// Makes the task, unless it has been made of these settings.
  void load(Config config);
  /// Before anything needs a GPU; under ddprun --standby, waits until this process is needed, having done a
  /// step.
  void load_and_stand_by(const Config& config);
  /// The others wait for a process that replaces a lost rank, so it loads while it connects.
  void load_in_background(const Config& config);
  void finish_loading() {
    if (loading_.valid()) loading_.get();
  }

 private:
  void load_early(const Config& config);

  std::string made_of_;  // the settings, as JSON
  std::future<void> loading_;
};

TaskEntry mnist_task();
TaskEntry toy_task();
TaskEntry linear_task();
TaskEntry cifar10_task();
TaskEntry sam_task();

/// The file of --init-weights or --eval, and its weights; both empty if neither is to be read. From a
/// checkpoint with averaged weights, --eval takes those, like the test at the end of a training. throws  as
/// train::read_weights()
struct GivenWeights {
  std::filesystem::path file;
  train::StateDict tensors;
};
GivenWeights read_given_weights(const Config& config);

/// Sets task.module to what make() returns, and returns it. With --fsdp the model gets memory shard by shard
/// later, unless its weights come from a file or are inspected (--summary).
template <typename Make>
auto make_model(const Config& config, train::Task& task, const Make& make) {
  const bool given = !config.model.eval.empty() || (!config.model.init_weights.empty() && !config.resumes) ||
                     (!config.sam.checkpoint.empty() && !(config.resumes && !config.resumed_shape.empty()));
  const bool defer = config.train.parallel.fsdp && !given && !config.summary;
  ddp::DeferredInit deferred;
  if (defer) task.initialise = deferred;
  auto model = defer ? deferred.make(make) : make();
  task.module = model.ptr();
  return model;
}

struct SplitSet {
  std::shared_ptr<const data::Dataset> train;
  std::shared_ptr<const data::Dataset> validation;  ///< null: none
};

/// Splits a training set according to --val-split, --limit-train and --limit-val; the seed picks the examples
/// for validation.
///
/// plain    the same examples without augmentation, for validation
/// throws   UsageError if there are too few examples for two parts
SplitSet split_for_validation(const std::shared_ptr<const data::Dataset>& whole,
                              const std::shared_ptr<const data::Dataset>& plain, const Config& config);

/// The first `limit` examples; all of them if limit is 0.
std::shared_ptr<const data::Dataset> first_of(const std::shared_ptr<const data::Dataset>& set,
                                              std::int64_t limit);

/// "Epoch 1 [640/50000]\ttrain_loss: 1.8732"
std::string epoch_line(const train::TrainProgress& progress);

/// Loads the weights, if any. throws  as train::load_weights()
void init_weights(torch::nn::Module& model, const Config& config);

}  // namespace ddprun::worker
