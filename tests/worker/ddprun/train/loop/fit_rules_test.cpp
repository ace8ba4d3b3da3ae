// The rules of training, as they reach a step and the metrics through the trainer: on a model of one weight w
// whose numbers can be computed by hand.
//
//   loss of x     (w x - 1)^2           x is 1 or 2, both are in every batch
//   mean loss     2.5 w^2 - 3 w + 1
//   its gradient  5 w - 3
//
// w is 1 at first, and 0.5 w + 0.3 after a step of SGD with the rate 0.1: 0.8, 0.7, 0.65.
#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/group/rounds.h>
#include <ddprun/report/metric_sink.h>
#include <ddprun/train/loop/trainer.h>
#include <ddprun/train/loop/tuner.h>
#include <ddprun/train/state/run_memory.h>
#include "tests/support/catch.h"
#include "tests/support/fake_gpus.h"
#include "tests/support/refused.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using namespace ddprun::train;
using ddprun::ddp::ProcessGroup;
using ddprun::test::Approx;
using ddprun::test::ContainsSubstring;
using ddprun::test::run_ranks;
namespace fs = std::filesystem;

namespace {

/// Its examples are 1 and 2 in turn.
class OnesAndTwos : public data::Dataset {
 public:
  explicit OnesAndTwos(std::int64_t size, std::function<void(std::int64_t index)> at_example = {})
      : size_(size), at_example_(std::move(at_example)) {}
  std::int64_t size() const override { return size_; }
  data::Batch get_batch(const std::vector<std::int64_t>& indices) const override {
    if (at_example_)
      for (const auto index : indices) at_example_(index);
    const auto i = torch::tensor(indices, torch::kInt64);
    return {(i % 2 + 1).to(torch::kFloat32).view({-1, 1}), i};
  }

 private:
  std::int64_t size_;
  std::function<void(std::int64_t)> at_example_;
};

Task one_weight_task() {
  torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
  torch::nn::init::ones_(model->weight);
  Task task;
  task.name = "one_weight";
  task.data_source = "nowhere";
  task.module = model.ptr();
  task.train_set = task.validation_set = std::make_shared<OnesAndTwos>(2);
  task.measures = {"acc"};
  task.compute_loss = [model](const data::Batch& batch) mutable {
    const auto losses = (model->forward(batch.input) - 1).square().squeeze(1);
    return BatchResult{losses, {{"acc", torch::full_like(losses, 0.5)}}};
  };
  return task;
}

TrainerOptions three_epochs_in(const fs::path& out) {
  TrainerOptions options;
  options.epochs = 3;
  options.batch_size = 2;
  options.log_interval = 1;
  options.progress = options.tensorboard = options.report = false;
  options.out = out;
  options.optim.optimizer.kind = OptimizerKind::kSgd;
  options.optim.optimizer.lr = 0.1;
  return options;
}

void run_alone(Task task, const TrainerOptions& options) {
  run_ranks(1, [&](const ProcessGroup& group) { fit(task, options, group); });
}

/// The figure in the rows that have one of validation, of each epoch that is.
std::vector<double> values_by_epoch(const fs::path& out, const std::string& name) {
  std::vector<double> values;
  for (const auto& row : report::read_metrics_csv(out / "metrics.csv")) {
    bool validated = false;
    for (const auto& [key, value] : row) validated = validated || key == "val_loss";
    for (const auto& [key, value] : row)
      if (validated && key == name) values.push_back(value);
  }
  return values;
}

void check_values(const std::vector<double>& values, const std::vector<double>& expected) {
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    CHECK(values[i] == Approx(expected[i]).epsilon(1e-5));
  }
}

}  // namespace

TEST_CASE("a step is that of the optimizer, and what is validated are the weights after it", "[fit]") {
  const TempDir dir;
  run_alone(one_weight_task(), three_epochs_in(dir.path()));
  check_values(values_by_epoch(dir.path(), "val_loss"), {0.2, 0.125, 0.10625});
}

TEST_CASE("with averaged weights these are validated", "[fit]") {
  const TempDir dir;
  auto options = three_epochs_in(dir.path());
  options.optim.ema = 0.5;  // the averages: 0.8, 0.75, 0.7
  run_alone(one_weight_task(), options);
  check_values(values_by_epoch(dir.path(), "val_loss"), {0.2, 0.15625, 0.125});
}

TEST_CASE("the limit of a gradient's values reaches the step", "[fit]") {
  const TempDir dir;
  auto options = three_epochs_in(dir.path());
  options.optim.clip_value = 0.5;  // of 2, 1.75 and 1.5: w is 0.95, 0.9, 0.85
  run_alone(one_weight_task(), options);
  check_values(values_by_epoch(dir.path(), "val_loss"), {0.40625, 0.325, 0.25625});
}

TEST_CASE("a plateau of the metric lowers the learning rate", "[fit]") {
  const TempDir dir;
  auto options = three_epochs_in(dir.path());
  options.checkpoint.monitor = "val_acc";  // which never changes
  options.optim.schedule = LrScheduleKind::kPlateau;
  options.optim.plateau_patience = 0;
  run_alone(one_weight_task(), options);
  check_values(values_by_epoch(dir.path(), "lr"), {0.1, 0.1, 0.01});
}

TEST_CASE("the check before the training is of so many batches, and nothing is told of it", "[fit]") {
  const TempDir dir;
  auto task = one_weight_task();
  const auto trained = std::make_shared<bool>(false);
  task.compute_loss = [compute_loss = task.compute_loss, module = task.module,
                       trained](const data::Batch& batch) {
    *trained = *trained || module->is_training();
    return compute_loss(batch);
  };
  task.eval_batch_size = 1;
  task.validation_set = std::make_shared<OnesAndTwos>(4, [trained](std::int64_t index) {
    if (index == 2 && !*trained) throw std::runtime_error("the third batch");
  });
  auto options = three_epochs_in(dir.path());
  options.sanity_batches = 3;
  CHECK_THROWS_WITH(run_alone(task, options), ContainsSubstring("the third batch"));
  options.sanity_batches = 2;
  options.overwrite = true;
  run_alone(task, options);
  CHECK(values_by_epoch(dir.path(), "val_loss").size() == 3);
}

TEST_CASE("a rank that is lost in the check before the training leaves no state", "[fit]") {
  const TempDir dir;
  auto task = one_weight_task();
  task.module->register_buffer("mean", torch::zeros({1}));
  task.validation_set = std::make_shared<OnesAndTwos>(4, [](std::int64_t) { throw ddp::RoundOver(); });
  auto options = three_epochs_in(dir.path());
  options.sanity_batches = 1;
  run_ranks(1, [&](const ProcessGroup& group) {
    RunMemory memory;
    options.memory = &memory;
    CHECK_THROWS_AS(fit(task, options, group), ddp::RoundOver);
    CHECK_FALSE(memory.state);
  });
}

TEST_CASE("a weight with two names takes each step once", "[fit]") {
  const TempDir dir;
  auto task = one_weight_task();
  const auto both = std::make_shared<torch::nn::Module>();
  both->register_module("first", task.module);
  both->register_module("second", task.module);
  task.module = both;
  run_alone(task, three_epochs_in(dir.path()));
  check_values(values_by_epoch(dir.path(), "val_loss"), {0.2, 0.125, 0.10625});
}

TEST_CASE("a task's groups have learning rates of their own, with --zero1 too", "[fit]") {
  for (const int ranks : {1, 2}) {
    const TempDir dir;
    auto task = one_weight_task();
    auto options = three_epochs_in(dir.path());
    options.batch_size = 2 / ranks;
    options.parallel.zero1 = ranks > 1;
    options.optim.optimizer.lr = 0.2;
    task.parameter_groups = {{{"weight"}, 0.5}};
    run_ranks(ranks, [&](const ProcessGroup& group) { fit(task, options, group); });
    check_values(values_by_epoch(dir.path(), "val_loss"), {0.2, 0.125, 0.10625});
  }
}

TEST_CASE("the finder of rates takes its steps at the rates that it tries", "[fit]") {
  const TempDir dir;
  run_ranks(2, [&](const ProcessGroup& group) {
    auto options = three_epochs_in(dir.path());
    options.batch_size = 1;
    const auto task = one_weight_task();
    const auto found = find_lr(task, options, group);
    const auto w = task.module->parameters()[0].item<float>();
    ensure(std::abs(w - 0.6) < 0.1, "steps at rates of about 0.03 lead to the minimum");
    ensure(found && *found > 1e-3 && *found < 0.4, "a rate at which the loss falls");
  });
}

TEST_CASE("with drop_last no step has fewer samples, as with PyTorch's loader", "[fit]") {
  const TempDir dir;
  for (const auto& [size, drop_last, steps] : {std::tuple(5, false, 2.0), std::tuple(5, true, 1.0),
                                               std::tuple(7, true, 1.0), std::tuple(9, true, 2.0)}) {
    auto task = one_weight_task();
    task.train_set = std::make_shared<OnesAndTwos>(size);
    auto options = three_epochs_in(dir.path() / (std::to_string(size) + (drop_last ? "d" : "")));
    options.drop_last = drop_last;
    options.epochs = 1;
    std::filesystem::create_directories(options.out);
    run_ranks(2, [&](const ProcessGroup& group) { fit(task, options, group); });
    CHECK(values_by_epoch(options.out, "step") == std::vector{steps});
  }
  auto options = three_epochs_in(dir.path() / "none");
  options.drop_last = true;
  options.batch_size = 3;
  CHECK_THROWS_WITH(
      run_alone(one_weight_task(), options),
      ContainsSubstring("--drop-last: no rank has a whole batch; use a --batch-size of at most 2"));
}

TEST_CASE("a module with sparse gradients is no CUDA graph", "[step_graph]") {
  const TempDir dir;
  auto task = one_weight_task();
  task.module->register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(3, 1).sparse(true)));
  auto options = three_epochs_in(dir.path());
  options.cuda_graph = GraphChoice::kOn;
  test::on_fake_gpus(1, [&](const ProcessGroup& group) {
    test::ensure_refused([&] { fit(task, options, group); },
                         "--cuda-graph=on: not possible with sparse gradients");
  });
}
