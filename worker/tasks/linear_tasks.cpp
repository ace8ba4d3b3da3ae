// The tasks of one linear layer: toy, the tutorial's Trainer, Linear(20, 1) on 2048 random pairs with SGD;
// and linear, Linear(10, 1) with BCEWithLogits and Adam, on 1000 random samples with random labels or on a
// table.

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <memory>

#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/data/dataset.h>
#include <ddprun/data/dataset_files.h>
#include <ddprun/train/optim/losses.h>
#include <ddprun/train/state/state_dict_file.h>
#include "worker/tasks/class_samples.h"
#include "worker/tasks/registry.h"

namespace ddprun::worker {
namespace {

constexpr const char* kWeightsFile = "checkpoint.pt";

/// "[GPU0] Epoch 0 | Batchsize: 32 | Steps: 64"
std::string toy_line(const train::RankEpoch& epoch) {
  return formatted("[%s%d] Epoch %ld | Batchsize: %ld | Steps: %ld", epoch.device.c_str(), epoch.rank,
                   epoch.epoch, epoch.batch_size, epoch.steps);
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
    return train::BatchResult{document ? train::cross_entropy(output_B1, batch.target)
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
          "After each epoch that is saved, checkpoint.pt in the run folder gets the weights alone, a bare "
          "state_dict. "
          "toy's lines call these epochs 0, SAVE_EVERY, ..., as the tutorial does.\n"
          "Example: worker toy 50 10",
      .positionals = {{"epochs", "TOTAL_EPOCHS"}, {"save-every", "SAVE_EVERY"}},
      .set_defaults =
          [](Config& config) {
            config.train.batch_size = 32;
            config.train.optim.optimizer.kind = train::OptimizerKind::kSgd;
          },
      .make = make_toy,
  };
}

// -- linear --

namespace {

/// "Rank 0, Epoch 1/10, Loss: 0.7012"
std::string linear_line(const train::RankEpoch& epoch) {
  return formatted("Rank %d, Epoch %ld/%ld, Loss: %.4f", epoch.rank, epoch.epoch + 1, epoch.epochs,
                   epoch.loss);
}

train::Task make_linear(const Config& config) {
  // The data use a separate generator: in a program where a parent process draws them, the weights are drawn
  // right after seeding.
  const auto& table = config.data.source;
  auto samples = std::make_shared<data::TensorDataset>(
      table.empty() ? data::make_linear_dataset(at::make_generator<at::CPUGeneratorImpl>(config.train.seed))
                    : data::read_table(table, data::Label::kZeroOrOne));
  train::Task task;
  auto model = make_model(config, task, [&] { return torch::nn::Linear(samples->input().size(1), 1); });
  init_weights(*model, config);

  task.data_source = table.empty() ? "the seed" : table;
  const auto split = split_for_validation(samples, samples, config);
  task.train_set = split.train;
  task.validation_set = split.validation;
  task.measures = {"acc"};
  task.compute_loss = [model](const data::Batch& batch) mutable {
    const auto logits_B1 = model->forward(batch.input);
    return train::BatchResult{train::binary_cross_entropy_with_logits(logits_B1, batch.target),
                              {{"acc", ((logits_B1 > 0) == (batch.target > 0.5)).squeeze(1)}}};
  };
  task.epoch_end_line = linear_line;
  return task;
}

Classifier linear_classifier(const train::StateDict& weights, const std::filesystem::path& source,
                             const std::string& /*data*/) {
  const auto matrix = std::ranges::find_if(weights, [](const auto& item) { return item.second.dim() == 2; });
  const auto columns = matrix == weights.end() ? 10 : matrix->second.size(1);
  torch::nn::Linear model(columns, 1);
  train::load_weights(*model, weights, source);
  return {.classes = {"0", "1"},
          .module = model.ptr(),
          .log_probabilities =
              [model](const auto& input) mutable {
                const auto logits_B1 = model->forward(input);
                return torch::log_sigmoid(torch::cat({-logits_B1, logits_B1}, 1));
              },
          .columns = columns};
}

}  // namespace

TaskEntry linear_task() {
  return {
      .name = "linear",
      .description = "a linear classifier, on 1000 random samples or a CSV file",
      .footer =
          "Without --data the labels are random: there is nothing to learn, and the loss approaches ln 2 = "
          "0.693.\n"
          "worker linear --predict FILE.csv --checkpoint FILE classifies rows.",
      .set_defaults =
          [](Config& config) {
            config.train.epochs = 10;
            config.train.batch_size = 32;
          },
      .make = make_linear,
      .classifier = linear_classifier,
  };
}

}  // namespace ddprun::worker
