#include <ddprun/group/step_graph.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <ddprun/common/logging.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/cuda_backend.h>
#include <ddprun/group/rounds.h>

namespace ddprun::ddp {
namespace {

/// In the first ten steps and in every hundredth, DistributedDataParallel's logger takes times, which cannot
/// be captured. The reducer has its final buckets from the second step on.
constexpr std::int64_t kFirst = 12, kTimed = 100;

/// So many runs in a row with inputs of another shape, and the graph is of no more use.
constexpr std::int64_t kOthers = 3;

c10::Stream own_stream(at::Device device) {
  if (!device.is_cuda())
    throw std::invalid_argument("StepGraph: expected a group with GPUs, got one on the CPU");
  cuda_plugin().synchronize(device);  // for work begun on the old stream
  // Of a pool of 32 that are given out again and again: loaders take theirs, any number, from the other one.
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/false);
}

bool fits(const StepGraph::Tensors& a, const StepGraph::Tensors& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& one, const at::Tensor& other) {
    if (!one.defined() || !other.defined()) return one.defined() == other.defined();
    return one.sizes() == other.sizes() && one.scalar_type() == other.scalar_type();
  });
}

}  // namespace

StepGraph::StepGraph(const ProcessGroup& group, bool required)
    : group_(group), required_(required), stream_(own_stream(group.device())) {}

StepGraph::~StepGraph() { cuda_plugin().synchronize(group_.device()); }

bool StepGraph::takes(const Tensors& inputs) {
  const torch::NoGradGuard no_grad;
  const bool same = fits(inputs, inputs_);
  if (refused_) return false;
  others_ = same ? 0 : others_ + 1;
  if (replay_ && !same) {
    if (others_ < kOthers) return false;  // an epoch's last batch
    cuda_plugin().synchronize(group_.device());
    replay_ = nullptr;
    result_.reset();
  }
  if (!same) {  // an epoch's last batch may come first
    inputs_.clear();
    for (const auto& input : inputs) inputs_.push_back(input.defined() ? at::empty_like(input) : input);
  }
  ++runs_;
  if (!replay_ && (!same || runs_ < kFirst || runs_ % kTimed == 0)) return false;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].defined()) inputs_[i].copy_(inputs[i], /*non_blocking=*/true);
  return true;
}

bool StepGraph::capture(const std::function<void()>& step) {
  std::string problem;  // empty: none
  try {
    const NotRecorded not_recorded;
    replay_ = cuda_plugin().capture(group_.device(), step);
  } catch (const RoundOver&) {
    throw;
  } catch (const std::exception& error) {
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    problem = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
    problem.resize(std::min(problem.find('\n'), problem.size()));  // without CUDA's and LibTorch's advice
    if (problem.empty()) problem = "an error without a message";
  }
  const auto problems = all_gather(group_, problem);
  const auto first = std::ranges::find_if(problems, [](const auto& text) { return !text.empty(); });
  refused_ = first != problems.end();
  if (!refused_) {
    if (group_.rank() == 0) log_info("from this step on, steps are started as a CUDA graph");
    return true;
  }
  replay_ = nullptr;
  const auto rank = first - problems.begin();
  const auto line = "the step cannot be captured as a CUDA graph: " + *first +
                    (rank == 0 ? "" : " (rank " + std::to_string(rank) + ")");
  if (required_) throw std::runtime_error(line);
  if (group_.rank() == 0) log_warning(line + "; going on without");
  return false;
}

}  // namespace ddprun::ddp
