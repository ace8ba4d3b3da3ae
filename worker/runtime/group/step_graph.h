#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StreamGuard.h>

#include <any>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ddprun/group/process_group.h>

namespace ddprun::ddp {

/// Training steps on a GPU as a CUDA graph: after a few steps one is captured, and from then on the GPU does
/// the same again, on the same memory, started by a single call instead of one for every kernel.
///
///   ddp::StepGraph graph(group);     // before the module's DistributedDataParallel
///   ...
///   auto loss = graph.run({input, target}, [&](const auto& batch) {
///     model->zero_grad();
///     auto loss = torch::mse_loss(ddp.forward([&] { return model->forward(batch[0]); }), batch[1]);
///     loss.backward();
///     optimizer.step();              // one that reads its numbers on the GPU: HeldBack::read_rates()
///     return loss.detach();
///   });
///
/// The process's own part of the step is not done again: whatever changes from step to step must lie in
/// tensors that keep their memory. The default random generator draws new numbers.
class StepGraph {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// Until it is destroyed, this thread works on a stream of its own, as capturing demands.
  ///
  /// group     of ranks with GPUs of their own, if several. The shapes of their inputs change together
  /// required  run() throws if a step cannot be captured; else it warns, and steps go on without a graph
  explicit StepGraph(const ProcessGroup& group, bool required = false);
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// Calls step(inputs), or has the GPU do it again. Inputs of other shapes than those captured are for step.
  ///
  /// inputs   on the GPU; what the step uses that differs from call to call
  /// step     gets inputs, or tensors with their values; its result is copied as it is, so that tensors in it
  ///          are the captured step's, with the values of this call until the next
  template <typename Step>
  auto run(const Tensors& inputs, Step step) -> decltype(step(inputs)) {
    using Result = decltype(step(inputs));
    if (!takes(inputs)) return step(inputs);
    if (!replay_) {
      Result result;
      if (!capture([&] { result = step(inputs_); })) return step(inputs);
      result_ = std::move(result);
    }
    replay_();
    return std::any_cast<Result>(result_);
  }

  bool captured() const { return static_cast<bool>(replay_); }

 private:
  /// Whether the graph, or its capture, is for these inputs: then it has their values.
  bool takes(const Tensors& inputs);
  bool capture(const std::function<void()>& step);

  ProcessGroup group_;
  bool required_, refused_ = false;
  c10::StreamGuard stream_;
  std::int64_t runs_ = 0;
  Tensors inputs_;  // the graph's; before: like those of the newest run
  std::any result_;
  std::function<void()> replay_;  // null until captured
};

}  // namespace ddprun::ddp
