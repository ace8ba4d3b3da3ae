// --check-replicas in train::fit: a rank computes a wrong number, in the middle of a training.
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <filesystem>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/ddp/checks.h>
#include <ddprun/group/spawn.h>
#include <ddprun/train/loop/trainer.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/state/checkpoint.h>
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::train;
namespace fs = std::filesystem;

namespace {

struct Numbers : data::Dataset {
  std::int64_t size() const override { return 96; }
  data::Batch get_batch(const std::vector<std::int64_t>& indices) const override {
    const auto i = torch::tensor(indices, torch::kFloat32).view({-1, 1});
    return {i / 96, i};
  }
};

/// In the forward pass after `steps` others, the last bit of a weight of rank 1 is another one.
Task flipping_task(int rank, int steps) {
  torch::manual_seed(5);
  torch::nn::Linear model(1, 1);
  Task task;
  task.name = "flipping";
  task.data_source = "nowhere";
  task.module = model.ptr();
  task.train_set = std::make_shared<Numbers>();
  task.compute_loss = [=](const data::Batch& batch) mutable {
    if (steps-- == 0 && rank == 1) *static_cast<std::uint8_t*>(model->weight.mutable_data_ptr()) ^= 1;
    return BatchResult{(model->forward(batch.input) - batch.target).square().squeeze(1), {}, {}};
  };
  return task;
}

/// Three ranks with 8 steps per epoch; what each throws, "" if nothing.
void fit_each(const fs::path& out, int flipped_after, const ParallelOptions& parallel,
              const std::function<void(int rank, const std::string& error)>& then) {
  spawn(3, [&](const WorkerEnv& env) {
    auto group = ddp::ProcessGroup::connect(env, {.timeout = std::chrono::seconds(60)});
    TrainerOptions options;
    options.epochs = 3;
    options.batch_size = 4;
    options.progress = options.report = options.tensorboard = false;
    options.optim.optimizer.kind = OptimizerKind::kAdamW;
    options.out = out;
    options.parallel = parallel;
    options.checkpoint.every_steps = 3;
    std::string message;
    try {
      fit(flipping_task(env.rank, flipped_after), options, group);
    } catch (const std::exception& error) {
      message = error.what();
    }
    then(env.rank, message);
    if (message.empty()) group.close();
  });
}

}  // namespace

TEST_CASE("a rank whose weights differ ends the training before they are saved", "[fit]") {
  const auto every = GENERATE(2, 1000);  // steps; a checkpoint is due after step 12
  CAPTURE(every);
  const TempDir dir;
  fit_each(dir.path(), 10, {.check_replicas = every}, [&](int rank, const std::string& error) {
    ensure(rank == 1 ? error.starts_with("replicas differ after step 12: rank 1 on ")
                     : !error.empty() && error.find("replicas differ") == std::string::npos,
           error.c_str());
  });
  CHECK(read_checkpoint(dir.path() / "checkpoints" / "last.pt").step == 9);
}

TEST_CASE("replicas that are equal, with parts or whole, train on", "[fit]") {
  const bool zero1 = GENERATE(false, true);
  const TempDir dir;
  fit_each(dir.path(), 1000, {.zero1 = zero1, .check_replicas = 5},
           [&](int, const std::string& error) { ensure(error.empty(), error.c_str()); });
}

TEST_CASE("ranks that are not replicas are not compared", "[fit]") {
  const ParallelOptions parallel = GENERATE(ParallelOptions{.fsdp = true, .check_replicas = 1},
                                            ParallelOptions{.join = true, .check_replicas = 1});
  const TempDir dir;
  fit_each(dir.path(), 1000, parallel, [&](int, const std::string& error) {
    ensure(error.starts_with("--check-replicas: cannot be used with --fsdp or --join"), error.c_str());
  });
}
