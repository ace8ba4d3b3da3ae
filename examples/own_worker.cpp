// A complete training program: a small network tells apart points on two half moons, on any number of ranks,
// on CPUs or GPUs.
//
//   ddprun --nproc-per-node=2 ./own_worker    # or torchrun --no-python, or ./own_worker alone
#include <ddprun/runtime.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <numbers>

/// The data: anything with a size and a way to get examples. Several threads may ask at once.
class Moons {
 public:
  explicit Moons(std::int64_t size) {
    labels_ = torch::arange(size) % 2;
    const auto side = 1 - 2 * labels_;  // the upper moon, or the lower one
    const auto angle = std::numbers::pi * torch::rand({size});
    points_ = torch::stack({side * torch::cos(angle) + labels_, side * torch::sin(angle) + 0.5 * labels_}, 1);
    points_ += 0.1 * torch::randn({size, 2});
  }
  std::int64_t size() const { return labels_.size(0); }
  std::pair<torch::Tensor, torch::Tensor> get_batch(const std::vector<std::int64_t>& indices) const {
    const auto which = torch::tensor(indices);
    return {points_.index_select(0, which), labels_.index_select(0, which)};
  }

 private:
  torch::Tensor points_;  // float [size, 2]
  torch::Tensor labels_;  // int64 [size]
};

/// The model: any torch::nn::Module.
struct Net : torch::nn::Module {
  explicit Net(std::int64_t width)
      : hidden(register_module("hidden", torch::nn::Linear(2, width))),
        output(register_module("output", torch::nn::Linear(width, 2))) {}

  torch::Tensor forward(const torch::Tensor& points) { return output(torch::relu(hidden(points))); }

  torch::nn::Linear hidden, output;
};

int main() {
  return ddprun::run([](ddprun::Context& ctx) {  // rank, world size, device, process group
    torch::manual_seed(0);                       // the same data on every rank
    ddprun::DistributedDataParallel<Net> model(ctx, Net(64));
    ddprun::Optimizer<torch::optim::Adam> optimizer(model->parameters(), 1e-2);
    ddprun::DataLoader loader(ctx, Moons(4000), {.batch_size = 64});
    ddprun::DataLoader test_loader(ctx, Moons(1000), {.batch_size = 250, .each_once = true});
    ddprun::Checkpoint checkpoint(ctx, "own_worker.pt", model, optimizer);

    for (std::int64_t epoch = checkpoint.resume(); epoch < 5; checkpoint.save(++epoch)) {
      for (auto& [input, target] : loader.epoch(epoch)) {
        optimizer.zero_grad();
        auto loss = torch::cross_entropy_loss(model(input), target);
        loss.backward();  // now each gradient is the mean over the ranks
        optimizer.step();
        ctx.heartbeat();  // for ddprun --hang-timeout
      }
      const torch::NoGradGuard no_grad;
      double loss_sum = 0, right = 0;
      for (auto& [input, target] : test_loader.epoch()) {
        const auto output = model(input);
        loss_sum += torch::cross_entropy_loss(output, target, {}, at::Reduction::Sum).item<double>();
        right += output.argmax(1).eq(target).sum().item<double>();
      }
      const auto points = static_cast<double>(test_loader.dataset().size());
      const double loss = ctx.all_reduce(loss_sum) / points, accuracy = ctx.all_reduce(right) / points;
      ctx.print("epoch ", epoch + 1, ": loss ", loss, ", accuracy ", accuracy);
    }
  });
}
