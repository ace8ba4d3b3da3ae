// A linear classifier, Linear(10, 1) with BCEWithLogits and Adam, on 1000 random samples with random labels,
// or on a table.

#include <cstdio>
#include <memory>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/linear.h>

#include <ddprun/data/table_dataset.h>
#include <ddprun/data/tensor_dataset.h>
#include <ddprun/train/optim/losses.h>
#include "worker/tasks/registry.h"

namespace ddprun::worker {
namespace {

/// "Rank 0, Epoch 1/10, Loss: 0.7012"
std::string linear_line(const train::RankEpoch& epoch) {
  char line[128];
  std::snprintf(line, sizeof line, "Rank %d, Epoch %lld/%lld, Loss: %.4f", epoch.rank,
                static_cast<long long>(epoch.epoch + 1), static_cast<long long>(epoch.epochs), epoch.loss);
  return line;
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

}  // namespace

TaskEntry linear_task() {
  return {
      .name = "linear",
      .description = "a linear classifier, on 1000 random samples or a CSV file",
      .footer =
          "Without --data the labels are random: there is nothing to learn, and the loss approaches ln 2 = "
          "0.693.",
      .set_defaults =
          [](Config& config) {
            config.train.epochs = 10;
            config.train.batch_size = 32;
          },
      .make = make_linear,
  };
}

}  // namespace ddprun::worker
