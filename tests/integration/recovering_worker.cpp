// A program on ddprun::run, for training_recover_test.cpp: a small network with dropout, whose steps take a
// moment. Rank 0 prints each step and writes checkpoints to the path that it is given, before the optimizer's
// name; "batch norm": with a layer of that kind, and Adam; "accumulate": SGD, a step for every two batches;
// "flip": Adam, and a bit of rank 1's weights flips once. Then it calls ddprun::run twice more.
#include <ddprun/runtime.h>
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace {

struct Numbers {
  std::int64_t size() const { return 256; }
  std::pair<torch::Tensor, torch::Tensor> get_batch(const std::vector<std::int64_t>& indices) const {
    const auto x = torch::tensor(indices, torch::kFloat).unsqueeze(1) / 256;
    return {torch::cat({x, x * x, torch::sin(6 * x)}, 1), torch::cos(6 * x)};
  }
};

struct Net : torch::nn::Module {
  explicit Net(bool normalizes) {
    if (normalizes) norm = register_module("norm", torch::nn::BatchNorm1d(32));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto features = torch::tanh(hidden(x));
    if (norm) features = norm(features);
    return output(torch::dropout(features, 0.2, is_training()));
  }
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(3, 32))};
  torch::nn::Linear output{register_module("output", torch::nn::Linear(32, 1))};
  torch::nn::BatchNorm1d norm{nullptr};
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, Net& model) {
  if (name == "sgd" || name == "accumulate")
    return std::make_unique<ddprun::Optimizer<torch::optim::SGD>>(model.parameters(), 1e-2);
  if (name == "adam" || name == "flip" || name == "batch norm")
    return std::make_unique<ddprun::Optimizer<torch::optim::Adam>>(model.parameters(), 1e-2);
  return ddprun::train::make_optimizer({.kind = ddprun::train::OptimizerKind::kAdamW, .lr = 1e-2},
                                       {{model.parameters()}});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string path = argv[1], name = argv[2];
  torch::manual_seed(0);
  ddprun::run([&](ddprun::Context& ctx) {
    const auto drawn = torch::rand({1}).item<double>();  // such as a split of the data
    if (ctx.all_reduce(drawn, ddprun::Op::kMin) != ctx.all_reduce(drawn, ddprun::Op::kMax))
      throw std::runtime_error("expected the same random numbers on all ranks");
    ddprun::DistributedDataParallel<Net> model(ctx, Net(name == "batch norm"));
    const auto made = make_optimizer(name, model.module());
    auto& optimizer = *made;
    ddprun::DataLoader loader(ctx, Numbers(), {.batch_size = 8});
    ddprun::Checkpoint checkpoint(ctx, path, model, optimizer);
    const auto backward = [&](const torch::Tensor& input, const torch::Tensor& target) {
      torch::mse_loss(model(input), target).backward();
    };
    bool half = false;
    int until_flip = 20;
    for (std::int64_t epoch = checkpoint.resume(); epoch < 8; checkpoint.save(++epoch))
      for (auto& [input, target] : loader.epoch(epoch)) {
        if (name == "accumulate" && !std::exchange(half, !half)) {
          const auto guard = model.no_sync();
          optimizer.zero_grad();
          backward(input, target);
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          continue;
        }
        if (name != "accumulate") optimizer.zero_grad();
        backward(input, target);
        optimizer.step();
        if (name == "flip" && ctx.rank() == 1 && ctx.env().round == 0 && --until_flip == 0)
          *static_cast<std::uint8_t*>(model.module().parameters()[0].mutable_data_ptr()) ^= 1;
        if (name == "flip")
          ddprun::ddp::check_replicas(ctx.group(),
                                      ddprun::train::replicated_tensors(model.module(), optimizer), epoch);
        const auto largest = ctx.all_reduce(input.max().item<double>(), ddprun::Op::kMax);  // after the step
        ctx.print("step of epoch ", epoch, ", largest ", largest);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    ctx.print("done");
  });
  for (const std::string run : {"second", "third"})
    ddprun::run([&](ddprun::Context& ctx) {
      ctx.print(run, " run, sum over ranks ", ctx.all_reduce(ctx.rank() + 1.0));
    });
}
