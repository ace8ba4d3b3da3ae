// The tutorial's Trainer: Linear(20, 1) on 2048 random pairs, SGD.

#include <cstdio>
#include <memory>

#include <torch/nn/modules/linear.h>

#include <ddprun/common/logging.h>
#include <ddprun/data/tensor_dataset.h>
#include <ddprun/train/optim/losses.h>
#include "worker/tasks/registry.h"

namespace ddprun::worker {
namespace {

constexpr const char* kWeightsFile = "checkpoint.pt";

/// "[GPU0] Epoch 0 | Batchsize: 32 | Steps: 64"
std::string toy_line(const train::RankEpoch& epoch) {
  char line[128];
  std::snprintf(line, sizeof line, "[%s%d] Epoch %lld | Batchsize: %lld | Steps: %lld", epoch.device.c_str(),
                epoch.rank, static_cast<long long>(epoch.epoch), static_cast<long long>(epoch.batch_size),
                static_cast<long long>(epoch.steps));
  return line;
}

std::string weights_line(std::int64_t epoch, const std::filesystem::path& file) {
  return "Epoch " + std::to_string(epoch) + " | Training checkpoint saved at " + file.string();
}

train::Task make_toy(const Config& config) {
  // Data first, then weights: the order in which a Python script draws them.
  auto pairs = std::make_shared<data::TensorDataset>(data::make_toy_dataset());
  train::Task task;
  auto model = make_model(config, task, [&] { return torch::nn::Linear(20, 1); });
  init_weights(*model, config);

  task.data_source = "the seed";
  task.train_set = first_of(pairs, config.data.limit_train);
  const bool document = config.model.loss == "cross_entropy";
  if (document)
    log_warning(
        "--loss=cross_entropy: over one class the softmax is always 1, so loss and gradients are 0 "
        "and nothing is learnt; --loss=mse learns");
  task.compute_loss = [model, document](const data::Batch& batch) mutable {
    const auto output_B1 = model->forward(batch.input);
    return train::BatchResult{document ? train::soft_cross_entropy(output_B1, batch.target)
                                       : train::squared_error(output_B1, batch.target)};
  };
  task.epoch_begin_line = toy_line;
  task.weights_file = kWeightsFile;
  task.weights_line = weights_line;
  return task;
}

}  // namespace

TaskEntry toy_task() {
  return {
      .name = "toy",
      .description = "the tutorial's Trainer: Linear(20, 1) on 2048 random pairs",
      .footer =
          R"(After epochs 0, SAVE_EVERY, ... the weights alone, a bare state_dict, go to checkpoint.pt in the run folder.
Example: worker toy 50 10)",
      .positionals = {{"epochs", "TOTAL_EPOCHS"}, {"save-every", "SAVE_EVERY"}},
      .set_defaults =
          [](Config& config) {
            config.train.batch_size = 32;
            config.train.optim.optimizer.kind = train::OptimizerKind::kSgd;
          },
      .make = make_toy,
  };
}

}  // namespace ddprun::worker
