#include "worker/tasks/registry.h"

#include <cstdio>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include <torch/nn/module.h>

#include <ddprun/common/errors.h>
#include <ddprun/data/subset.h>

namespace ddprun::worker {

const std::vector<TaskEntry>& all_tasks() {
  static const std::vector<TaskEntry> tasks = {mnist_task(), toy_task(), linear_task(), cifar10_task(),
                                               sam_task()};
  return tasks;
}

const TaskEntry& entry_of(const std::string& task) {
  for (const auto& entry : all_tasks())
    if (entry.name == task) return entry;
  throw UsageError("unknown task '" + task + "'");
}

train::Task make_task(const Config& config) {
  const auto& entry = entry_of(config.task);
  auto task = entry.make(config);
  task.name = entry.name;
  return task;
}

std::string epoch_line(std::int64_t epoch, const train::TrainProgress& progress) {
  char line[128];
  std::snprintf(line, sizeof line, "Epoch %lld [%lld/%lld]\ttrain_loss: %.4f", static_cast<long long>(epoch),
                static_cast<long long>(progress.samples_done), static_cast<long long>(progress.samples_total),
                progress.loss);
  return line;
}

void init_weights(torch::nn::Module& model, const Config& config) {
  if (const auto [file, tensors] = read_given_weights(config); !file.empty())
    train::load_weights(model, tensors, file);
}

GivenWeights read_given_weights(const Config& config) {
  const auto &init = config.model.init_weights, &eval = config.model.eval;
  if (!eval.empty()) return {eval, train::read_weights(eval, train::WeightsOf::kAveragesIfAny)};
  return {init, init.empty() ? train::StateDict() : train::read_weights(init)};
}

std::shared_ptr<const data::Dataset> first_of(const std::shared_ptr<const data::Dataset>& set,
                                              std::int64_t limit) {
  if (limit == 0 || limit >= set->size()) return set;
  std::vector<std::int64_t> indices(static_cast<std::size_t>(limit));
  std::iota(indices.begin(), indices.end(), 0);
  return std::make_shared<data::Subset>(set, std::move(indices));
}

SplitSet split_for_validation(const std::shared_ptr<const data::Dataset>& whole,
                              const std::shared_ptr<const data::Dataset>& plain, const Config& config) {
  const auto& options = config.data;
  if (options.val_split <= 0) return {first_of(whole, options.limit_train), nullptr};
  try {
    auto split = data::random_split(whole->size(), options.val_split, config.train.seed);
    return {
        std::make_shared<data::Subset>(whole, data::first(std::move(split.train), options.limit_train)),
        std::make_shared<data::Subset>(plain, data::first(std::move(split.validation), options.limit_val))};
  } catch (const std::invalid_argument&) {
    std::ostringstream message;
    message << "--val-split " << options.val_split << ": expected two examples or more, one a part, got "
            << whole->size();
    throw UsageError(message.str());
  }
}

}  // namespace ddprun::worker
