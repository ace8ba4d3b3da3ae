#pragma once

#include <torch/types.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/data/dataset.h>
#include <ddprun/image/image.h>
#include <ddprun/train/optim/optimizer.h>
#include <ddprun/train/state/state_dict_file.h>

namespace torch::nn {
class Module;
}

namespace ddprun::train {

/// The result for one batch of B examples.
struct BatchResult {
  torch::Tensor losses = {};  ///< float [B], one per example; training minimises their mean
  /// Task::measures, in the same order: a name and one number per example, [B]. "acc" is 1 or true for a
  /// correctly classified example.
  std::vector<std::pair<std::string, torch::Tensor>> measures = {};
  torch::Tensor scores = {};  ///< for figures: Task::class_names; undefined: none
};

/// A batch and the model's result.
struct Evaluated {
  data::Batch batch;
  BatchResult result;
};

/// Tells DistributedDataParallel which outputs backward starts from.
inline void visit_tensors(BatchResult& result, const std::function<void(torch::Tensor&)>& visit) {
  visit(result.losses);
}

/// A data set of a task: a shared_ptr that says what it expects.
struct SharedDataset : std::shared_ptr<const data::Dataset> {
  SharedDataset(std::nullptr_t = nullptr) {}  // NOLINT(google-explicit-constructor)
  template <typename Set>
  SharedDataset(std::shared_ptr<Set> set) {  // NOLINT(google-explicit-constructor)
    constexpr bool fits = std::derived_from<Set, data::Dataset>;
    static_assert(
        fits,
        "Task: expected a std::shared_ptr to a data set that derives from ddprun::data::Dataset and "
        "overrides size() and get_batch(indices)");
    if constexpr (fits) shared_ptr::operator=(std::move(set));
  }
};

/// For a training log line. Counts are over all ranks.
struct TrainProgress {
  std::int64_t epoch;          ///< from 0
  std::int64_t samples;        ///< of this epoch, before this step
  std::int64_t samples_done;   ///< of this epoch, including this step
  std::int64_t samples_total;  ///< of an epoch
  double share;                ///< of this epoch's batches, before this step: 0 to 1
  double loss;                 ///< this step's, mean over ranks
};

/// For one rank's own log line about an epoch.
struct RankEpoch {
  int rank;
  std::string device;       ///< "GPU" or "CPU"
  std::int64_t epoch;       ///< from 0
  std::int64_t epochs;      ///< in total
  std::int64_t batch_size;  ///< of this rank's first batch
  std::int64_t steps;       ///< this rank's batches
  double loss;              ///< mean of its batches' losses; 0 at the start
};

/// What to train, as data; the trainer decides how.
struct Task {
  std::string name;
  std::string data_source;  ///< for the log
  std::shared_ptr<torch::nn::Module> module;
  /// For a module made without memory, which ParallelOptions::fsdp allocates shard by shard: sets the values
  /// of the parameter or buffer with this name, as ddp::DeferredInit does (sharding/meta_device.h). Otherwise
  /// null.
  std::function<void(const std::string& name, torch::Tensor& values)> initialise;
  SharedDataset train_set;
  SharedDataset validation_set;                  ///< null: none
  SharedDataset test_set;                        ///< null: none
  std::vector<ParameterGroup> parameter_groups;  ///< empty: as given by OptimOptions::grouping
  bool shapes_vary = false;            ///< batches of the same size may differ in shape, also between ranks
  bool test_every_epoch = false;       ///< else once, at the end, with the best weights
  std::int64_t eval_batch_size = 500;  ///< for validation and test, on each rank
  std::vector<std::string> measures;   ///< reported beside the loss, as train_NAME, val_NAME, test_NAME
  /// With scores: names for a confusion matrix of K classes, at least 2; scores are [B, K].
  std::vector<std::string> class_names;
  std::function<BatchResult(const data::Batch&)> compute_loss;  ///< forward pass and loss

  /// Draws the run's training_samples.png and samples.png; may be null. Gets rank 0's last training batch, or
  /// its first held-out batches with at least `shown_samples` samples (if available), with tensors on the
  /// CPU, and the name of the set: "training set", "validation set" or "test set".
  std::function<image::Image(const std::vector<Evaluated>&, const std::string& set)> draw_samples;
  std::int64_t shown_samples = 0;
  /// With it, draw_samples gets the `shown_samples` held-out samples of all ranks with the lowest first
  /// measures, the lowest first: each as a batch of its own, which this makes of sample i. All its tensors
  /// are defined. It holds only what draw_samples needs, as it is sent to rank 0.
  std::function<Evaluated(const Evaluated&, std::int64_t i)> sample_of;
  /// With sample_of: draws the same samples for the report's slider over epochs; may be null.
  std::function<image::Image(const std::vector<Evaluated>&)> draw_epoch;

  /// Rank 0 prints one line about an epoch and its validation: "Epoch 3/20: train_loss 0.31, val_loss 0.35".
  bool line_per_epoch = false;
  // Log lines; may be null. Rank 0 prints train_line at every log interval, every rank prints the others.
  std::function<std::string(const TrainProgress&)> train_line;
  std::function<std::string(const RankEpoch&)> epoch_begin_line;
  std::function<std::string(const RankEpoch&)> epoch_end_line;

  std::string model_config;  ///< the model's shape, stored in checkpoints for `worker export`; empty: none

  /// Writes the best weights (the last ones if none are kept as best) to best/ in the run folder, for other
  /// programs. May be null. Rank 0 calls it at the end.
  std::function<void(const std::filesystem::path& folder, const StateDict& weights)> write_weights;
  std::vector<std::string> best_files;  ///< the names of the files that it writes

  /// A file in the run folder that receives the bare state_dict along with an epoch's checkpoint, and rank
  /// 0's line about it.
  std::string weights_file;
  std::function<std::string(std::int64_t epoch, const std::filesystem::path& file)> weights_line;
};

}  // namespace ddprun::train
