// Trainings that a signal stops: nothing is lost, and the run that goes on equals one that was never stopped.
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include <ddprun/common/files.h>
#include <ddprun/report/metric_sink.h>
#include <ddprun/train/loop/trainer.h>
#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/state/checkpoint.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using namespace ddprun::train;
using namespace std::chrono_literals;
using ddprun::ddp::ProcessGroup;
using ddprun::test::ContainsSubstring;
using ddprun::test::run_ranks;
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kTrained = 12, kValidated = 7, kAtOnce = 2;

/// Example i is {i, i * i}, with the target i.
class Examples : public data::Dataset {
 public:
  using AtCall = std::function<void(int call)>;

  /// at_batch  gets the number of each call, from 1, in this process
  explicit Examples(std::int64_t size, AtCall at_batch = {}, AtCall at_size = {})
      : size_(size), at_batch_(std::move(at_batch)), at_size_(std::move(at_size)) {}
  std::int64_t size() const override {
    if (at_size_) at_size_(++sizes_);
    return size_;
  }
  data::Batch get_batch(const std::vector<std::int64_t>& indices) const override {
    if (at_batch_) at_batch_(++batches_);
    const auto i = torch::tensor(indices, torch::kFloat32).view({-1, 1});
    return {torch::cat({i, i * i}, 1) / 10, i};
  }

 private:
  std::int64_t size_;
  AtCall at_batch_, at_size_;
  mutable std::atomic<int> batches_ = 0, sizes_ = 0;
};

Task examples_task(std::shared_ptr<const data::Dataset> validation_set, std::int64_t trained = kTrained) {
  torch::manual_seed(5);
  torch::nn::Sequential model(torch::nn::Linear(2, 3));
  if (trained == kTrained) model->push_back(torch::nn::BatchNorm1d(3));  // else there is a batch of one
  model->push_back(torch::nn::Linear(3, 1));
  Task task;
  task.name = "examples";
  task.data_source = "nowhere";
  task.module = model.ptr();
  task.train_set = std::make_shared<Examples>(trained);
  task.validation_set = std::move(validation_set);
  task.eval_batch_size = 1;
  task.compute_loss = [model](const data::Batch& batch) mutable {
    return BatchResult{(model->forward(batch.input) - batch.target).square().squeeze(1)};
  };
  return task;
}

TrainerOptions examples_options(const fs::path& out) {
  fs::create_directories(out);
  TrainerOptions options;
  options.epochs = 2;
  options.batch_size = kAtOnce;
  options.sanity_batches = 0;
  options.log_interval = 1;
  options.log_indices = out / "indices";
  options.progress = options.tensorboard = options.report = false;
  options.out = out;
  options.optim.ema = 0.5;
  options.checkpoint.resume = "auto";
  options.checkpoint.top_k = -1;
  options.checkpoint.filename = "{epoch}-{step}-{val_loss:.4f}";
  return options;
}

void train_ranks(const Task& task, const TrainerOptions& options, int ranks) {
  run_ranks(ranks, [&](const ProcessGroup& group) {
    ::signal(SIGTERM, SIG_DFL);  // and not Catch2's handler
    fit(task, options, group);
  });
}

/// All that a run leaves but its times.
std::string what_is_left(const fs::path& out, int ranks) {
  std::string text;
  const std::set<std::string> figures = {"epoch", "step", "lr", "train_loss", "train_loss_epoch", "val_loss"};
  for (const auto& row : report::read_metrics_csv(out / "metrics.csv")) {
    for (const auto& [name, value] : row)
      if (figures.contains(name)) text += name + " " + std::to_string(value) + ", ";
    text += "\n";
  }
  for (int rank = 0; rank < ranks; ++rank) text += read_file(out / ("indices." + std::to_string(rank)));
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(out / "checkpoints")) names.insert(entry.path().filename());
  for (const auto& name : names) text += name + "\n";
  const auto state = read_checkpoint(out / "checkpoints/last.pt");
  for (const auto& [name, tensor] : weights_to_evaluate(state))
    text += name + " " + std::to_string(tensor.to(torch::kFloat64).sum().item<double>()) + "\n";
  return text;
}

}  // namespace

TEST_CASE("a run terminated in a validation goes on there, and equals one that never was", "[fit][signals]") {
  const int ranks = GENERATE(1, 2, 3);  // 7 examples for 2 or 3: ranks differ in their batches
  const std::string where = GENERATE("after the epoch", "after each step", "after the last step");
  CAPTURE(ranks, where);
  const TempDir dir;
  const auto options = [&](const char* name) {
    auto made = examples_options(dir.path() / name);
    if (where == "after each step") made.val_every_steps = 1;
    if (where == "after the last step") made.max_steps = kTrained / kAtOnce / ranks + 1;
    return made;
  };
  train_ranks(examples_task(std::make_shared<Examples>(kValidated)), options("whole"), ranks);

  const auto parts = options("parts");
  const auto terminated = [&](int rank_batches) {
    return examples_task(std::make_shared<Examples>(kValidated, [rank_batches](int call) {
      if (call == rank_batches) ::kill(::getpid(), SIGTERM);
    }));
  };
  train_ranks(terminated(1), parts, ranks);
  const auto steps = where == "after each step" ? 1 : kTrained / kAtOnce / ranks;
  const auto state = [&] { return read_checkpoint(parts.out / "checkpoints/last.pt"); };
  CHECK(state().step == steps);
  CHECK(state().position.epoch == 0);
  CHECK(state().position.samples == steps * kAtOnce * ranks);
  CHECK(report::read_metrics_csv(parts.out / "metrics.csv").size() == static_cast<std::size_t>(steps));
  train_ranks(terminated(1), parts, ranks);  // again, in the same validation
  CHECK(state().step == steps);
  if (ranks == 1) {  // several look only twice a second after that
    train_ranks(terminated(kValidated + 2), parts, ranks);
    CHECK(state().step > steps);
  }
  train_ranks(examples_task(std::make_shared<Examples>(kValidated)), parts, ranks);
  CHECK(what_is_left(parts.out, ranks) == what_is_left(dir.path() / "whole", ranks));
}

TEST_CASE("with --join a rank with fewer batches has the others' optimizer, averages and schedule",
          "[fit][signals]") {
  const TempDir dir;
  constexpr std::int64_t kUneven = kTrained + 1;  // 4 and 3 batches
  const auto options = [&](const char* name) {
    auto made = examples_options(dir.path() / name);
    made.epochs = 3;
    made.parallel.join = true;
    made.optim.optimizer.kind = OptimizerKind::kAdamW;
    made.optim.schedule = LrScheduleKind::kCosine;
    made.optim.schedule_per_step = true;
    return made;
  };
  train_ranks(examples_task(std::make_shared<Examples>(kValidated), kUneven), options("whole"), 2);
  const auto parts = options("parts");
  const auto terminates = std::make_shared<Examples>(kValidated, [](int call) {
    if (call == 1) ::kill(::getpid(), SIGTERM);
  });
  train_ranks(examples_task(terminates, kUneven), parts, 2);
  CHECK(read_checkpoint(parts.out / "checkpoints/last.pt").step == 4);
  train_ranks(examples_task(std::make_shared<Examples>(kValidated), kUneven), parts, 2);
  CHECK(what_is_left(parts.out, 2) == what_is_left(dir.path() / "whole", 2));
}

TEST_CASE("SIGUSR1 in a validation saves at once, and the validation begins again", "[fit][signals]") {
  const TempDir dir;
  const auto parts = examples_options(dir.path() / "parts"), whole = examples_options(dir.path() / "whole");
  train_ranks(examples_task(std::make_shared<Examples>(kValidated)), whole, 1);
  const auto last = parts.out / "checkpoints/last.pt";
  train_ranks(
      examples_task(std::make_shared<Examples>(kValidated,
                                               [&](int call) {
                                                 if (call == 3) ::kill(::getpid(), SIGUSR1);
                                                 if (call == kValidated + 1)  // only if it begins again
                                                   while (!fs::exists(last)) std::this_thread::sleep_for(1ms);
                                                 if (call == kValidated + 1)
                                                   fs::copy(last, parts.out / "seen.pt");
                                               })),
      parts, 1);
  const auto seen = read_checkpoint(parts.out / "seen.pt");
  CHECK(seen.step == kTrained / kAtOnce);
  CHECK(seen.position.epoch == 0);
  CHECK(what_is_left(parts.out, 1) == what_is_left(whole.out, 1));
}

TEST_CASE("SIGTERM waits for a slow validation or checkpoint, also with --join", "[fit][signals]") {
  const bool join = GENERATE(false, true);
  const TempDir dir;
  auto options = examples_options(dir.path() / "run");
  options.parallel.join = join;
  options.epochs = 100000;
  const auto terminate_and_sleep = [] {
    ::kill(::getpid(), SIGTERM);
    std::this_thread::sleep_for(3500ms);  // longer than a rank that makes no progress has
  };
  Task task;
  SECTION("validation") {
    task = examples_task(std::make_shared<Examples>(kValidated, [&](int call) {
      if (call == 1) terminate_and_sleep();
    }));
  }
  SECTION("checkpoint") {
    const auto after_validation = std::make_shared<std::atomic<bool>>(false);
    task = examples_task(std::make_shared<Examples>(kValidated, [=](int call) {
      if (call == 1) *after_validation = true;
    }));
    // Its size is looked up for the checkpoint.
    task.train_set = std::make_shared<Examples>(kTrained, Examples::AtCall(), [=](int) {
      if (after_validation->exchange(false)) terminate_and_sleep();
    });
  }
  CHECK_NOTHROW(train_ranks(task, options, 2));
  CHECK(read_checkpoint(options.out / "checkpoints/last.pt").step >= kTrained / kAtOnce / 2);
  CHECK_FALSE(fs::exists(options.out / "summary.json"));
}

TEST_CASE("with averaged weights and batch norm, validation is of what a checkpoint holds",
          "[fit][signals]") {
  const bool join = GENERATE(false, true);
  const TempDir dir;
  auto task = examples_task(std::make_shared<Examples>(kValidated), join ? kTrained + 1 : kTrained);
  task.test_set = task.validation_set;
  auto options = examples_options(dir.path() / "run");
  options.epochs = 1;
  options.parallel.join = join;
  train_ranks(task, options, 2);
  const auto summary = nlohmann::json::parse(read_file(options.out / "summary.json"));
  CHECK_THAT(summary["best_checkpoint"].get<std::string>(), ContainsSubstring("epoch=0"));
  CHECK(std::abs(summary["val_loss"].get<double>() - summary["test_loss"].get<double>()) < 1e-5);
}
