// Measures what recording costs: one call in the ring, an all-reduce over Gloo with and without the recording
// backend, and the NaN check of gradients. Two ranks, each a process.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ddprun/ddp/checks.h>
#include <ddprun/flight/flight_recorder.h>
#include "tests/support/run_ranks.h"
#include "worker/models/classifiers.h"

using namespace ddprun;
using Clock = std::chrono::steady_clock;

namespace {

double microseconds(int calls, const std::function<void()>& call) {
  const auto begin = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / calls;
}

/// Median, smallest and largest.
void print(int rank, const char* what, std::vector<double> values) {
  if (rank != 0) return;
  std::sort(values.begin(), values.end());
  std::printf("%-44s %9.3f us (%.3f-%.3f)\n", what, values[values.size() / 2], values.front(), values.back());
  std::fflush(stdout);
}

void measure_ring() {
  std::vector<double> values;
  ddp::FlightRecorder recorder;
  const auto group = recorder.add_group("world");
  const ddp::CollectiveRecord call{.op = "all_reduce", .dtype = "float", .elements = 1000, .tensors = 1};
  for (int round = 0; round < 11; ++round)
    values.push_back(microseconds(100000, [&] {
      const auto id = recorder.begin(group, call);
      recorder.set_started(id);
      recorder.set_completed(id);
    }));
  print(0, "one collective in the ring", values);
}

void measure_all_reduce(const ddp::ProcessGroup& group) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::minutes(1));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const auto store = c10::make_intrusive<c10d::PrefixStore>("bare", group.handle()->getStore());
  c10d::ProcessGroupGloo bare(store, group.rank(), group.size(), options);
  const auto recorded = group.handle()->getBackend(at::kCPU);
  for (const std::int64_t elements : {1, 1000, 250000}) {
    std::vector<at::Tensor> tensors = {torch::zeros({elements})};
    const int calls = elements > 100000 ? 200 : 1000;
    std::vector<double> without, with;
    for (int round = 0; round < 21; ++round) {  // alternating
      without.push_back(microseconds(calls, [&] { bare.allreduce(tensors, {})->wait(); }));
      with.push_back(microseconds(calls, [&] { recorded->allreduce(tensors, {})->wait(); }));
    }
    if (group.rank() == 0) std::printf("all-reduce of %ld float\n", static_cast<long>(elements));
    print(group.rank(), "  Gloo alone", without);
    print(group.rank(), "  recorded", with);
  }
}

void measure_nan_check(const ddp::ProcessGroup& group) {
  models::MnistCnn model(0.0);
  const auto images = torch::randn({128, 1, 28, 28});
  const auto step = [&] { model->forward(images).sum().backward(); };
  std::vector<double> without, with, check_alone;
  for (int round = 0; round < 11; ++round) {
    without.push_back(microseconds(4, step));
    ddp::NanCheck check(*model, group);
    with.push_back(microseconds(4, step));
    check_alone.push_back(microseconds(4, [&] { check.check(); }));
  }
  print(group.rank(), "MNIST CNN, batch 128: forward and backward", without);
  print(group.rank(), "  with the NaN check's hooks", with);
  print(group.rank(), "  check(), one small all-reduce", check_alone);
}

}  // namespace

int main() {
  measure_ring();
  test::run_ranks(2, [](const ddp::ProcessGroup& group) {
    torch::set_num_threads(1);
    measure_all_reduce(group);
    measure_nan_check(group);
  });
}
