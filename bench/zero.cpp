// Measures what ZeRO-1 saves and costs. Every rank runs Adam on a perceptron of 16.8 million parameters under
// DDP:
//
//   ddprun --nproc-per-node=N zero plain|zero [STEPS]
//
// Rank 0 prints a line: ranks, optimizer state and peak RSS of the rank with the most in MB, the median step
// in ms and the optimizer's part of it. The batch is small, so that the optimizer's share is as large as
// possible.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <ddprun/common/worker_env.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/group/collectives.h>
#include <ddprun/sharding/zero_optimizer.h>

using namespace ddprun;

namespace {

constexpr std::int64_t kWidth = 1024;
constexpr int kLayers = 16;

using Clock = std::chrono::steady_clock;
double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double state_mb(const torch::optim::Optimizer& optimizer) {
  std::size_t bytes = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state);
    bytes += adam.exp_avg().nbytes() + adam.exp_avg_sq().nbytes();
  }
  return static_cast<double>(bytes) / 1e6;
}

double peak_rss_mb() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;
}

double largest_of(const ddp::ProcessGroup& group, double mine) {
  std::vector<double> all(static_cast<std::size_t>(group.size()), 0);
  all[static_cast<std::size_t>(group.rank())] = mine;
  all = ddp::all_reduce_sum(group, std::move(all));
  return *std::max_element(all.begin(), all.end());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const int steps = argc > 2 ? std::atoi(argv[2]) : 20;
  if ((mode != "plain" && mode != "zero") || steps < 1) {
    std::fprintf(stderr, "usage: ddprun --nproc-per-node=N zero plain|zero [STEPS]\n");
    return 2;
  }
  torch::set_num_threads(1);
  auto group = ddp::ProcessGroup::connect(from_env(), {});
  torch::manual_seed(0);
  torch::nn::Sequential model;
  for (int i = 0; i < kLayers; ++i) model->push_back(torch::nn::Linear(kWidth, kWidth));
  {
    ddp::DistributedDataParallel ddp(*model, group);
    const auto make = [](std::vector<torch::optim::OptimizerParamGroup> groups) {
      return std::make_unique<torch::optim::Adam>(std::move(groups), torch::optim::AdamOptions(1e-4));
    };
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(model->parameters());
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (mode == "zero") {
      optimizer = std::make_unique<ddp::ZeroOptimizer>(groups, make, group);
    } else {
      optimizer = make(groups);
    }
    const auto x = torch::randn({4, kWidth});
    std::vector<double> step_ms, optimizer_ms;
    for (int step = 0; step < steps; ++step) {
      ddp::all_reduce_sum(group, {0});  // all ranks start together
      const auto begin = Clock::now();
      optimizer->zero_grad(/*set_to_none=*/false);
      ddp.forward([&] { return model->forward(x).square().mean(); }).backward();
      const auto gradients = Clock::now();
      optimizer->step();
      step_ms.push_back(milliseconds(Clock::now() - begin));
      optimizer_ms.push_back(milliseconds(Clock::now() - gradients));
    }
    const double state = largest_of(group, state_mb(*optimizer)), rss = largest_of(group, peak_rss_mb());
    if (group.rank() == 0)
      std::printf("%s ranks %d state_mb %.1f peak_rss_mb %.0f step_ms %.0f optimizer_ms %.0f\n", mode.c_str(),
                  group.size(), state, rss, median(step_ms), median(optimizer_ms));
  }
  group.close();
}
