// Fine-tunes a TorchScript model, [N, 2] floats to [N, 2] scores, that Python exported with
// torch.jit.script(net).save("net.pt"), to tell apart two rings:
//
//   ddprun --nproc-per-node=2 ./fine_tune net.pt tuned.pt    # torch.jit.load("tuned.pt") reads the result
#include <ddprun/runtime.h>
#include <torch/optim/adam.h>
#include <torch/script.h>

#include <numbers>

/// Points on circles of radius 1 and 2.
struct Rings {
  std::int64_t size() const { return 2000; }
  std::pair<torch::Tensor, torch::Tensor> get_batch(const std::vector<std::int64_t>& indices) const {
    const auto which = torch::tensor(indices);
    const auto label = which % 2, angle = which * (2 * std::numbers::pi / static_cast<double>(size()));
    const auto points = torch::stack({torch::cos(angle), torch::sin(angle)}, 1) * (1 + label).unsqueeze(1);
    return {points.to(torch::kFloat), label};
  }
};

int main(int argc, char** argv) {
  return ddprun::run([&](ddprun::Context& ctx) {
    if (argc != 3) throw ddprun::UsageError("expected two arguments: MODEL.pt TUNED.pt");
    ddprun::DistributedDataParallel<torch::jit::Module> model(ctx, torch::jit::load(argv[1]));
    model->train();
    torch::optim::Adam optimizer(model.parameters(), 1e-2);
    ddprun::DataLoader loader(ctx, Rings(), {.batch_size = 50});
    for (std::int64_t epoch = 0; epoch < 5; ++epoch)
      for (auto& [points, label] : loader.epoch(epoch)) {
        optimizer.zero_grad();
        torch::cross_entropy_loss(model(points).toTensor(), label).backward();
        optimizer.step();
      }
    if (ctx.is_main()) model->save(argv[2]);
  });
}
