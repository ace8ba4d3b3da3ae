// The trainer behind `worker` with a task of your own: the loop, validation, checkpoints, early stopping,
// resume, metrics for TensorBoard and as JSON lines, charts and a report page come with it, in the run folder
// "waves".
//
//   ddprun --nproc-per-node=2 ./fit    # a second start continues from the last checkpoint
#include <ddprun/runtime.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

using namespace ddprun;

/// Points on a sine wave: batches of the numbers [first, first + size).
class Waves : public data::Dataset {
 public:
  Waves(std::int64_t first, std::int64_t size) : first_(first), size_(size) {}
  std::int64_t size() const override { return size_; }
  data::Batch get_batch(const std::vector<std::int64_t>& indices) const override {
    const auto x = (torch::tensor(indices) + first_).to(torch::kFloat).unsqueeze(1) * 0.618 % 6.28 - 3.14;
    return {.input = x, .target = torch::sin(x)};
  }

 private:
  std::int64_t first_, size_;
};

/// Sees the training, and ends it when it is good enough.
class GoodEnough : public train::Callback {
 public:
  void on_epoch(const train::TrainState& state, train::Control& control) override {
    for (const auto& [name, value] : state.metrics)
      if (name == "val_loss" && value < 1e-4) control.request_stop("val_loss is below 1e-4");
  }
};

int main() {
  return run([](Context& ctx) {
    torch::manual_seed(0);
    torch::nn::Sequential net(torch::nn::Linear(1, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));

    train::Task task;
    task.name = "waves";
    task.data_source = "a formula";
    task.module = net.ptr();
    task.train_set = std::make_shared<Waves>(0, 4000);
    task.validation_set = std::make_shared<Waves>(4000, 1000);
    task.measures = {"close"};  // reported as train_close and val_close
    task.compute_loss = [net](const data::Batch& batch) mutable {
      const auto error = (net->forward(batch.input) - batch.target).squeeze(1);
      return train::BatchResult{.losses = error.square(), .measures = {{"close", error.abs() < 0.1}}};
    };

    train::TrainerOptions options;
    options.out = "waves";
    options.epochs = 10;
    options.batch_size = 50;
    options.optim.optimizer = {.kind = train::OptimizerKind::kAdam, .lr = 1e-2};
    options.optim.schedule = train::LrScheduleKind::kCosine;
    options.checkpoint.resume = "auto";
    options.checkpoint.patience = 3;
    options.callbacks = {std::make_shared<GoodEnough>()};
    train::fit(task, options, ctx.group());
  });
}
