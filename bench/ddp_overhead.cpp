// Measures what DDP adds to a step. On every rank a model of 100 small layers alternates blocks of bare steps
// and of steps under DistributedDataParallel:
//
//   ddprun --nproc-per-node=2 ddp_overhead [BLOCKS]
//
// Rank 0 prints a JSON line: median ms per step and mean CPU ms per step (all threads), bare and with DDP.
// ddp_overhead.py has the same in Python, and runs both in turn.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <vector>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <ddprun/common/worker_env.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/group/collectives.h>

using namespace ddprun;

namespace {

constexpr int kLayers = 100, kWidth = 64, kBatch = 8, kStepsPerBlock = 20;

double cpu_ms() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& time) {
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_usec);
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

struct Times {
  std::vector<double> step_ms;
  double cpu_ms = 0;

  double median() {
    std::sort(step_ms.begin(), step_ms.end());
    return step_ms[step_ms.size() / 2];
  }
  double mean_cpu_ms() const { return cpu_ms / static_cast<double>(step_ms.size()); }
};

struct Training {
  Training() {
    for (int i = 0; i < kLayers; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
    optimizer.emplace(layers->parameters(), torch::optim::SGDOptions(1e-3));
  }

  torch::Tensor loss() { return layers->forward(images).square().mean(); }

  void step() {
    optimizer->zero_grad();
    if (ddp) {
      ddp->forward([&] { return loss(); }).backward();
    } else {
      loss().backward();
    }
    optimizer->step();
  }

  void run_block(Times& times) {
    const double before = cpu_ms();
    for (int i = 0; i < kStepsPerBlock; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      step();
      times.step_ms.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    }
    times.cpu_ms += cpu_ms() - before;
  }

  torch::nn::Sequential layers;
  torch::Tensor images = torch::ones({kBatch, kWidth});
  std::optional<torch::optim::SGD> optimizer;
  std::optional<ddp::DistributedDataParallel> ddp;
};

}  // namespace

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? std::atoi(argv[1]) : 20;
  torch::set_num_threads(1);
  auto group = ddp::ProcessGroup::connect(from_env(), {});
  {
    Training bare, with_ddp;
    with_ddp.ddp.emplace(*with_ddp.layers, group);
    Times warm_up, bare_times, ddp_times;
    bare.run_block(warm_up);
    with_ddp.run_block(warm_up);
    for (int i = 0; i < blocks; ++i) {
      bare.run_block(bare_times);
      ddp::all_reduce_sum(group, {0});  // both ranks start together
      with_ddp.run_block(ddp_times);
    }
    if (group.rank() == 0)
      std::printf("{\"bare_ms\":%.4f,\"ddp_ms\":%.4f,\"bare_cpu_ms\":%.4f,\"ddp_cpu_ms\":%.4f}\n",
                  bare_times.median(), ddp_times.median(), bare_times.mean_cpu_ms(), ddp_times.mean_cpu_ms());
  }
  group.close();
}
