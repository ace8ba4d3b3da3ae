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

/// Runs training steps on a GPU as a CUDA graph: after a few steps it captures one, and from then on the GPU
/// repeats it on the same memory, started by a single call instead of one per kernel. If inputs of another
/// shape come several times in a row, as when a training's images grow, a new step is captured for them.
///
///   ddp::StepGraph graph(group);     // before the module's DistributedDataParallel
///   ...
///   auto loss = graph.run({input, target}, [&](const auto& batch) {
///     model->zero_grad();
///     auto loss = torch::mse_loss(ddp.forward([&] { return model->forward(batch[0]); }), batch[1]);
///     loss.backward();
///     optimizer.step();              // one that reads its numbers on the GPU: HeldBack::read_rates()
///     return loss.detach();
///   }, [&] { ddp.abandon_step(); });
///
/// The step's CPU code does not run again: whatever changes from step to step must lie in tensors that keep
/// their memory. The default random generator draws new numbers.
class StepGraph {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// Until it is destroyed, this thread works on a separate stream, as capturing demands.
  ///
  /// group     if several ranks, each has its own GPU, and their input shapes change together
  /// required  run() throws if a step cannot be captured; else it warns, and steps run without a graph
  explicit StepGraph(const ProcessGroup& group, bool required = false);
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// Calls step(inputs), or has the GPU repeat it. Inputs of shapes that were not captured are for step.
  ///
  /// inputs   on the GPU; everything the step uses that changes between calls
  /// step     gets inputs, or tensors with their values; its result is copied as it is: tensors in it are
  ///          the captured step's and hold this call's values until the next
  /// reset    after a refused capture, before step(inputs): undoes what step did on the CPU, on every rank,
  ///          wherever step threw. The GPU has computed nothing: gradients made by step have no values
  template <typename Step>
  auto run(const Tensors& inputs, Step step, const std::function<void()>& reset = {})
      -> decltype(step(inputs)) {
    using Result = decltype(step(inputs));
    if (!takes(inputs)) return step(inputs);
    if (!replay_) {
      Result result;
      if (capture([&] { result = step(inputs_); })) result_ = std::move(result);
    }
    if (!replay_) {
      if (reset) reset();
      return step(inputs);
    }
    replay_();
    return std::any_cast<Result>(result_);
  }

  bool captured() const { return static_cast<bool>(replay_); }

 private:
  /// Whether the graph, or its capture, is for these inputs; if so, it now has their values.
  bool takes(const Tensors& inputs);
  bool capture(const std::function<void()>& step);

  ProcessGroup group_;
  bool required_, refused_ = false;
  c10::StreamGuard stream_;
  std::int64_t runs_ = 0;
  Tensors inputs_;           // the graph's; before capture, shaped like the newest run's
  std::int64_t others_ = 0;  // runs in a row with inputs of another shape than the graph's
  std::any result_;
  std::function<void()> replay_;  // null until captured
};

}  // namespace ddprun::ddp
