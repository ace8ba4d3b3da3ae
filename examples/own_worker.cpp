// A complete training program: a small network tells apart points on two half moons, on any number of ranks.
//
//   ddprun --nproc-per-node=2 ./own_worker    # or ./own_worker alone, as a single process
#include <ddprun/runtime.h>
#include <torch/torch.h>

#include <iostream>
#include <numbers>
#include <string>

using namespace ddprun;

/// The data: examples by number. A real data set may read files; several threads may ask at once.
class Moons : public data::Dataset {
 public:
  explicit Moons(std::int64_t size) {
    labels_ = torch::arange(size) % 2;
    const auto side = 1 - 2 * labels_;  // the upper moon, or the lower one
    const auto angle = std::numbers::pi * torch::rand({size});
    points_ = torch::stack({side * torch::cos(angle) + labels_, side * torch::sin(angle) + 0.5 * labels_}, 1);
    points_ += 0.1 * torch::randn({size, 2});
  }
  std::int64_t size() const override { return labels_.size(0); }
  data::Batch get_batch(const std::vector<std::int64_t>& indices) const override {
    const auto which = torch::tensor(indices);
    return {points_.index_select(0, which), labels_.index_select(0, which)};
  }

 private:
  torch::Tensor points_;  // float [size, 2]
  torch::Tensor labels_;  // int64 [size]
};

/// The model: any torch::nn::Module.
struct Net : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(2, 32));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(32, 2));

  torch::Tensor forward(const torch::Tensor& points) { return output(torch::relu(hidden(points))); }
};

/// The share of right answers. Every rank tests its share of the examples; each example counts once.
double accuracy(Net& net, const Moons& set, const ddp::ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  const auto share = set.get_batch(data::exact_share(set.size(), group.size(), group.rank()));
  const auto right = net.forward(share.input).argmax(1).eq(share.target).sum().item<double>();
  return ddp::all_reduce_sum(group, {right})[0] / static_cast<double>(set.size());
}

void train_net(const WorkerEnv& env) {
  torch::manual_seed(0);  // the same data on every rank; DistributedDataParallel equalises the weights
  const Moons train_set(4000), test_set(1000);
  Net net;
  torch::optim::Adam optimizer(net.parameters(), 0.01);

  auto group = ddp::ProcessGroup::connect(env, {});
  ddp::DistributedDataParallel parallel(net, group);
  data::DistributedSampler sampler(train_set.size(), group.size(), group.rank(), {});
  const Heartbeat heartbeat(env.heartbeat_fd);  // for ddprun --hang-timeout

  std::int64_t step = 0;
  constexpr int kEpochs = 5;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    data::Loader loader(train_set, sampler.indices(), /*batch_size=*/64, /*threads=*/1);
    double loss_sum = 0;
    while (const auto batch = loader.next()) {
      optimizer.zero_grad();
      auto loss = parallel.forward(
          [&] { return torch::cross_entropy_loss(net.forward(batch->input), batch->target); });
      loss.backward();  // now each gradient is the mean over the ranks
      optimizer.step();
      loss_sum += loss.item<double>();
      heartbeat.beat();
      ++step;
    }
    const double loss = ddp::all_reduce_sum(group, {loss_sum})[0] / (loader.batches() * group.size());
    const double right = accuracy(net, test_set, group);
    if (group.rank() == 0)
      std::cout << "epoch " << epoch + 1 << ": loss " << loss << ", accuracy " << right << std::endl;
    if (group.rank() == 0)
      train::save_checkpoint("own_worker.pt",
                             {train::state_dict(net), train::optimizer_state_dict(optimizer), epoch, step});
  }
  const auto norm = torch::nn::utils::parameters_to_vector(net.parameters()).norm().item<double>();
  std::cout << "rank " + std::to_string(env.rank) + ": weights of norm " + std::to_string(norm) + "\n"
            << std::flush;
  group.close();
}

int main() { return run_worker(train_net); }
