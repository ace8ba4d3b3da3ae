// Compares memory and time of fully sharded training with DDP's, on ranks of one machine, and measures the
// cost of watching operators. Prints a table row for each number of ranks.
//
// usage: fully_sharded [MAX_RANKS [UNIT_MIB]]

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/group/collectives.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/sharding/gather_schedule.h>
#include "tests/support/counted_memory.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSteps = 5, kBatch = 64, kWidth = 1024, kDepth = 30;  // 31.5 million parameters

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int i = 0; i < kDepth; ++i) {
    net->push_back(torch::nn::Linear(kWidth, kWidth));
    net->push_back(torch::nn::ReLU());
  }
  return net;
}

struct Result {
  double peak_mib = 0;  ///< most bytes in tensors at a time, from the second step on
  double rest_mib = 0;  ///< between steps, gradients kept
  double step_ms = 0;
};

/// The maximum over ranks.
Result over_ranks(const ddp::ProcessGroup& group, const Result& mine) {
  std::vector<double> all(static_cast<std::size_t>(group.size()) * 3, 0);
  const auto at = static_cast<std::size_t>(group.rank()) * 3;
  all[at] = mine.peak_mib, all[at + 1] = mine.rest_mib, all[at + 2] = mine.step_ms;
  all = ddp::all_reduce_sum(group, all);
  Result most;
  for (std::size_t i = 0; i < all.size(); i += 3)
    most = {std::max(most.peak_mib, all[i]), std::max(most.rest_mib, all[i + 1]),
            std::max(most.step_ms, all[i + 2])};
  return most;
}

template <typename Parallel>
Result train(const ddp::ProcessGroup& group, torch::nn::Sequential& net, Parallel& parallel,
             const std::vector<torch::Tensor>& parameters) {
  torch::optim::Adam optimizer(parameters);
  const auto input = torch::randn({kBatch, kWidth});
  std::vector<double> times;
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    if (step == 1) test::take_peak_tensor_bytes();
    ddp::all_reduce_sum(group, {1});
    const auto start = Clock::now();
    optimizer.zero_grad();
    parallel.forward([&] { return net->forward(input).pow(2).mean(); }).backward();
    optimizer.step();
    if (step > 0) times.push_back(milliseconds_since(start));
  }
  result.peak_mib = static_cast<double>(test::take_peak_tensor_bytes()) / (1 << 20);
  result.rest_mib = static_cast<double>(test::tensor_bytes()) / (1 << 20);
  result.step_ms = median(times);
  return over_ranks(group, result);
}

void compare(int ranks, std::int64_t unit_bytes) {
  test::run_ranks(ranks, [&](const ddp::ProcessGroup& group) {
    torch::set_num_threads(1);
    test::count_tensor_memory();
    Result ddp_result, fsdp_result;
    {
      auto net = make_net();
      ddp::DistributedDataParallel ddp(*net, group);
      ddp_result = train(group, net, ddp, net->parameters());
    }
    {
      auto net = make_net();
      ddp::FullyShardedDataParallel::Options options;
      options.unit_bytes = unit_bytes;
      ddp::FullyShardedDataParallel fsdp(*net, group, options);
      fsdp_result = train(group, net, fsdp, fsdp.shards());
    }
    if (group.rank() != 0) return;
    std::printf("| %d | %.0f | %.0f | %.2f | %.0f | %.0f | %.0f | %.0f |\n", ranks, ddp_result.peak_mib,
                fsdp_result.peak_mib, fsdp_result.peak_mib / ddp_result.peak_mib, ddp_result.rest_mib,
                fsdp_result.rest_mib, ddp_result.step_ms, fsdp_result.step_ms);
    std::fflush(stdout);  // a forked rank ends without flushing
  });
}

struct Nobody final : ddp::OperatorListener {
  void before_operator(std::span<const std::size_t>) noexcept override {}
  void after_operator(std::span<const std::size_t>) noexcept override {}
};

/// Nanoseconds per operator on tensors of one element.
double operator_ns(const torch::Tensor& first, const torch::Tensor& second) {
  const torch::NoGradGuard no_grad;
  constexpr int kOperators = 200000;
  auto out = torch::empty({1});
  std::vector<double> runs;
  for (int run = 0; run < 7; ++run) {
    const auto start = Clock::now();
    for (int i = 0; i < kOperators; ++i) at::add_out(out, first, second);
    runs.push_back(milliseconds_since(start) * 1e6 / kOperators);
  }
  return median(runs);
}

void watching() {
  const auto first = torch::ones({1}), second = torch::ones({1});
  const double plain = operator_ns(first, second);
  Nobody nobody;
  const auto other = torch::ones({1});
  ddp::watch_storage(other.storage().unsafeGetStorageImpl(), nobody, 0);
  const double others = operator_ns(first, second);
  ddp::watch_storage(first.storage().unsafeGetStorageImpl(), nobody, 0);
  const double watched = operator_ns(first, second);
  ddp::unwatch_storages(nobody);
  std::printf(
      "\nadd of one element, ns: %.0f; while other tensors are watched %.0f; on a watched tensor %.0f\n",
      plain, others, watched);
}

}  // namespace

int main(int argc, char** argv) {
  const int max_ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  const std::int64_t unit_mib = argc > 2 ? std::atoi(argv[2]) : 4;
  std::printf(
      "| ranks | DDP: peak MiB | sharded | ratio | DDP: MiB between steps | sharded | DDP: ms a step | "
      "sharded |\n"
      "|---|---|---|---|---|---|---|---|\n");
  std::fflush(stdout);
  for (int ranks = 1; ranks <= max_ranks; ++ranks) compare(ranks, unit_mib << 20);
  watching();
}
