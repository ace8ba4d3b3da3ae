// Captures that are refused, on the fake GPU (fake_gpu.cpp): CUDA is used in forked ranks only.
#include <ddprun/group/step_graph.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/group/rounds.h>
#include "tests/support/catch.h"
#include "tests/support/fake_gpus.h"

using namespace ddprun;
using ddp::DistributedDataParallel;
using ddp::ProcessGroup;
using test::ContainsSubstring;
using test::on_fake_gpus;

namespace {

constexpr int kCaptured = 12;  // this call of the step is the capture

struct Training {
  DistributedDataParallel::Options options = {};
  std::string hook = "none";
  bool joins = false;
};

/// A fault in a step: called in its forward, in the middle of its backward, and at its end.
enum class Place { kForward, kBackward, kEnd };
using Fault = std::function<void(int call, Place place)>;

/// The weights and buffers after 16 steps.
at::Tensor weights_after(const ProcessGroup& group, const Training& training, ddp::StepGraph* graph,
                         const Fault& fault) {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::ReLU(),
                              torch::nn::Linear(8, 8), torch::nn::ReLU(), torch::nn::Linear(8, 3));
  model->to(group.device());
  auto options = training.options;
  options.bucket_bytes = 64;  // so that some are reduced before the fault
  DistributedDataParallel parallel(*model, group, options);
  if (auto hook = ddp::make_comm_hook(training.hook, group)) parallel.register_comm_hook(std::move(hook));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.125).momentum(0.5));
  int calls = 0;
  model->parameters()[0].register_hook([&](const at::Tensor&) { fault(calls, Place::kBackward); });
  const auto step = [&](const std::vector<at::Tensor>& batch) {
    ++calls;
    parallel.zero_grad();
    const auto loss = parallel.forward(
        [&] {
          const auto output = model->forward(batch[0]);
          fault(calls, Place::kForward);
          return output.square().mean();
        },
        training.joins ? std::optional(batch[0].size(0)) : std::nullopt);
    loss.backward();
    fault(calls, Place::kEnd);
    optimizer.step();
    return loss.detach();
  };
  std::optional<ddp::Join> join;
  if (training.joins) join.emplace(parallel, ddp::JoinOptions{});
  torch::manual_seed(static_cast<std::uint64_t>(group.rank()));
  for (int i = 0; i < 16; ++i) {
    const std::vector<at::Tensor> batch = {torch::randn({4, 6}).to(group.device())};
    graph != nullptr ? graph->run(batch, step, [&] { parallel.abandon_step(); }) : step(batch);
  }
  if (join) join->finish();
  if (graph != nullptr && (graph->captured() || calls != 17)) throw std::runtime_error("expected a refusal");
  std::vector<at::Tensor> state;
  for (const auto& each : model->parameters()) state.push_back(each.detach().flatten());
  for (const auto& each : model->buffers()) state.push_back(each.flatten().to(at::kFloat));
  return torch::cat(state).cpu();
}

}  // namespace

TEST_CASE("a user's step goes on wherever it threw in a capture, on one rank or all", "[step_graph]") {
  const std::vector<Training> trainings = {{},
                                           {.options = {.gradient_as_bucket_view = true}},
                                           {.options = {.find_unused_parameters = true}},
                                           {.options = {.static_graph = true}},
                                           {.hook = "bf16"},

                                           {.joins = true}};
  on_fake_gpus(2, [&](const ProcessGroup& group) {
    for (std::size_t i = 0; i < trainings.size(); ++i) {
      const auto expected = weights_after(group, trainings[i], nullptr, [](int, Place) {});
      for (const auto where : {Place::kForward, Place::kBackward, Place::kEnd})
        for (const int rank : {-1, 1}) {
          ddp::StepGraph graph(group);
          const auto got = weights_after(group, trainings[i], &graph, [&](int call, Place place) {
            if (call == kCaptured && place == where && (rank < 0 || group.rank() == rank))
              throw std::runtime_error("not in a graph");
          });
          if (!torch::equal(got, expected))
            throw std::runtime_error("training " + std::to_string(i) + ", place " +
                                     std::to_string(static_cast<int>(where)) + ", rank " +
                                     std::to_string(rank) + ": other weights");
        }
    }
  });
}

TEST_CASE("a graph is captured anew when the shape of the batches changes for good", "[step_graph]") {
  const std::vector<std::int64_t> sizes = {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 4, 6, 6, 6, 6, 6};
  on_fake_gpus(2, [&](const ProcessGroup& group) {
    const auto weights = [&](ddp::StepGraph* graph, int& calls) {
      torch::manual_seed(3);
      torch::nn::Linear model(6, 3);
      model->to(group.device());
      DistributedDataParallel parallel(*model, group);
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.125).momentum(0.5));
      const auto step = [&](const std::vector<at::Tensor>& batch) {
        ++calls;
        parallel.zero_grad();
        const auto loss = parallel.forward([&] { return model->forward(batch[0]).square().mean(); });
        loss.backward();
        optimizer.step();
        return loss.detach();
      };
      torch::manual_seed(static_cast<std::uint64_t>(group.rank()));
      for (const auto size : sizes) {
        const std::vector<at::Tensor> batch = {torch::randn({size, 6}).to(group.device())};
        graph != nullptr ? graph->run(batch, step, [&] { parallel.abandon_step(); }) : step(batch);
      }
      return model->weight.detach().cpu();
    };
    int plain_calls = 0, calls = 0;
    const auto expected = weights(nullptr, plain_calls);
    ddp::StepGraph graph(group);
    if (!torch::equal(weights(&graph, calls), expected)) throw std::runtime_error("other weights");
    // The graph does the 13th, 15th and 20th; the one batch of 3 does not cost the first graph.
    if (!graph.captured() || calls != 17) throw std::runtime_error("calls: " + std::to_string(calls));
  });
}

TEST_CASE("a required graph that is refused ends with the reason, on every rank", "[step_graph]") {
  on_fake_gpus(2, [](const ProcessGroup& group) {
    ddp::StepGraph graph(group, /*required=*/true);
    std::string message;
    try {
      weights_after(group, {}, &graph, [&](int call, Place place) {
        if (call == kCaptured && place == Place::kBackward && group.rank() == 1)
          throw std::runtime_error("not in a graph\nmore");
      });
    } catch (const std::exception& error) {
      message = error.what();
    }
    if (message != "the step cannot be captured as a CUDA graph: not in a graph (rank 1)")
      throw std::runtime_error("got: " + message);
  });
}

TEST_CASE("a lost rank ends a capture as it ends a step", "[step_graph]") {
  on_fake_gpus(2, [](const ProcessGroup& group) {
    ddp::StepGraph graph(group);
    try {
      weights_after(group, {}, &graph, [&](int call, Place place) {
        if (call == kCaptured && place == Place::kForward) throw ddp::RoundOver();
      });
    } catch (const ddp::RoundOver&) {
      return;
    }
    throw std::runtime_error("expected RoundOver");
  });
}
