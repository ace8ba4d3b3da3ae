#include "worker/tasks/registry.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/recovery.h>
#include <ddprun/common/text.h>
#include <ddprun/data/dataset.h>
#include <ddprun/train/loop/resume.h>
#include <ddprun/train/optim/gradients.h>
#include "worker/config/kept_checkpoints.h"

namespace ddprun::worker {
namespace {

/// Runs a step and forgets it: a process's first step is the slowest, as kernels are made and memory is
/// mapped.
void rehearse(const train::Task& task, Config config) {
  settle_on_device(config, at::kCPU, /*rank=*/-1);
  const train::TrainerOptions& options = config.train;
  auto& module = *task.module;
  const bool without_weights = module.parameters().empty() || module.parameters()[0].is_meta();
  if (without_weights || !config.sam.embedding_cache.empty())
    return;  // the cache belongs to the run's weights
  std::vector<torch::Tensor> before;
  for (const auto& buffer : module.buffers()) before.push_back(buffer.clone());
  const auto restore = c10::make_scope_exit([&] {
    module.zero_grad();
    const torch::NoGradGuard no_grad;
    const auto buffers = module.buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(before[i]);
  });
  std::vector<std::int64_t> examples(
      static_cast<std::size_t>(std::min(options.batch_size, task.train_set->size())));
  std::iota(examples.begin(), examples.end(), 0);
  module.train();
  const train::AutocastScope precision(options.precision.precision, c10::DeviceType::CPU);
  const auto result = task.compute_loss(task.train_set->get_epoch_batch(examples, 0));
  result.losses.mean().backward();
}

}  // namespace

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

void LoadedTask::load(Config config) {
  if (is_for_cpu(config)) settle_on_device(config, at::kCPU, /*rank=*/-1);
  const bool has_shape =
      !config.resumes || config.resumed_shape.empty() || (task && task->model_config == config.resumed_shape);
  if (task && has_shape && made_of_ == to_json(config)) return;
  task.reset();
  torch::manual_seed(config.train.seed);  // the same initial weights on every rank
  task = make_task(config);
  made_of_ = to_json(config);
}

/// Before it is known which settings hold: those of a checkpoint may replace them.
void LoadedTask::load_early(const Config& config) {
  try {
    load(config);
  } catch (const std::exception&) {  // load() will report it, if it still applies
  }
}

void LoadedTask::load_and_stand_by(const Config& config) {
  if (stands_by() && is_for_cpu(config)) {
    load_early(config);
    if (!has_order() && task) try {
        rehearse(*task, config);
      } catch (const std::exception&) {  // the training's own first step will report it
      }
  }
  stand_by();
}

void LoadedTask::load_in_background(const Config& config) {
  if (loading_.valid() || task) return;
  loading_ = std::async(std::launch::async, [this, config] { load_early(config); });
}

std::string epoch_line(const train::TrainProgress& progress) {
  return formatted("Epoch %ld [%ld/%ld]\ttrain_loss: %.4f", progress.epoch + 1, progress.samples_done,
                   progress.samples_total, progress.loss);
}

void init_weights(torch::nn::Module& model, const Config& config) {
  if (const auto [file, tensors] = read_given_weights(config); !file.empty())
    train::load_weights(model, tensors, file);
}

GivenWeights read_given_weights(const Config& config) {
  const auto &init = config.model.init_weights, &eval = config.model.eval;
  if (!eval.empty()) return {eval, train::read_weights(eval, train::WeightsOf::kAveragesIfAny)};
  if (init.empty() || config.resumes) return {};
  const auto file = checkpoint_of(init, "--init-weights: ");
  return {file, train::read_weights(file)};
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
    throw UsageError(formatted("--val-split %g: expected at least two examples, one for each part, got %ld",
                               options.val_split, whole->size()));
  }
}

}  // namespace ddprun::worker
