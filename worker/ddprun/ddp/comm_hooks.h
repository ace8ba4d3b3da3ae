#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <ddprun/group/process_group.h>

namespace torch::nn {
class Module;
}

namespace ddprun::ddp {

/// Gradients that DistributedDataParallel reduces together: getBuffer() is all of them as one row,
/// getGradients() the same memory by parameter, and getParameters() the parameters.
using Bucket = c10d::GradBucket;
using CommHook = std::unique_ptr<c10d::CommHookInterface>;

/// A future result. If it fails, DistributedDataParallel's backward throws the error.
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

/// A custom hook: the function is called once for each bucket, as soon as its gradients are ready, in the
/// same order on every rank; the future's value, shaped like the buffer, becomes the gradients. The hook must
/// do the averaging: it gets this rank's gradients undivided.
///
///   ddp.register_comm_hook(make_comm_hook([&group](Bucket& bucket) {     // the majority's sign
///     return then(all_reduce_async(group, bucket.getBuffer().sign()),
///                 [](const torch::Tensor& votes) { return votes.sign(); });
///   }));
CommHook make_comm_hook(std::function<FuturePtr(Bucket&)> function);

/// The hook with that name: "none" (nullptr: register nothing), "fp16", "bf16", or "powersgd" with PyTorch's
/// defaults (PowerSgd::Options).
/// throws  UsageError for another name
CommHook make_comm_hook(const std::string& name, const ProcessGroup& group);

/// The mean over ranks, as without a hook: a base for custom hooks.
CommHook all_reduce_hook(const ProcessGroup& group);

/// Sends gradients in 16 bits, half the bytes of float: casts, divides by the number of ranks, sums and casts
/// back. fp16 keeps 11 bits of each value, but is infinite above 65504 and zero below 6e-8; bf16 keeps 8 bits
/// and float's range. Like fp16_compress_hook and bf16_compress_hook of
/// torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py.
CommHook fp16_compress_hook(const ProcessGroup& group);
CommHook bf16_compress_hook(const ProcessGroup& group);

/// Starts the sum over ranks, in place; the future's value is the tensor. Every rank must start a group's
/// collectives in the same order: start them in a hook's function, not in then().
FuturePtr all_reduce_async(const ProcessGroup& group, const torch::Tensor& tensor);
FuturePtr all_reduce_async(const c10::intrusive_ptr<c10d::ProcessGroup>& group, torch::Tensor tensor);

/// A future of change(value). A thread of the process group calls change, without gradient mode.
template <typename Change>
FuturePtr then(const FuturePtr& future, Change change) {
  return future->then(
      [change = std::move(change)](c10::ivalue::Future& done) -> c10::IValue {
        const torch::NoGradGuard no_grad;
        return change(done.value().toTensor());
      },
      c10::TensorType::get());
}

struct PowerSgdMemory;
struct PowerSgdRound;

/// PowerSGD: each gradient M, seen as a matrix [rows, columns], is reduced as the product of two thin ones.
///
///   P = orthogonalize(sum over ranks of M Q),  Q = mean over ranks of M^T P,  M <- P Q^T
///                                                  Vogels et al. 2019 (arXiv:1905.13727), algorithms 1, 2
///
/// Bit for bit torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py, 2.11: same options, defaults,
/// random numbers and order. Differences:
/// - The memory belongs to parameters, not to buckets: it survives a rebuild of the buckets, so training can
///   resume, and any start_iteration is allowed.
/// - A layer without gradients in some step gets zeros instead of NaN, and keeps learning.
/// - Over Gloo no thread waits for a collective, and Q has separate connections: several buckets in flight
///   neither mix up their collectives nor block each other.
///
///   auto power_sgd = std::make_shared<PowerSgd>(group, PowerSgd::Options{.rank = 2});
///   ddp.register_comm_hook(powersgd_hook(power_sgd));
class PowerSgd {
 public:
  struct Options {
    std::int64_t rank = 1;                 ///< columns of P and Q: more are more exact, and cost more to send
    std::int64_t start_iteration = 1000;   ///< before, a plain all-reduce
    double min_compression_rate = 2;       ///< send uncompressed if it would shrink by less than this factor
    bool use_error_feedback = true;        ///< add what compression lost to the next gradient
    bool warm_start = true;                ///< begin with the last iteration's Q, not a random one
    double orthogonalization_epsilon = 0;  ///< added to columns' norms
    std::uint32_t random_seed = 0;
    bool batch_tensors_with_same_shape = false;  ///< one product for all matrices of a shape in a bucket
  };

  /// Makes connections, so every rank must construct one at the same time.
  /// throws  std::invalid_argument if an option is out of range
  PowerSgd(const ProcessGroup& group, const Options& options);
  explicit PowerSgd(const ProcessGroup& group);

  /// For checkpoints, by parameter name. Errors differ between ranks; the rest is the same on every rank.
  struct State {
    std::int64_t iteration = 0;
    std::string random_state;                     ///< of the seed generator
    std::map<std::string, torch::Tensor> errors;  ///< shaped as the parameter
    std::map<std::string, torch::Tensor> qs;      ///< [columns, rank]
  };

  /// Copies, for the trained module; call it between steps.
  State state(const torch::nn::Module& module) const;

  /// throws  std::invalid_argument, before any change, naming the entry that does not fit the module
  void load_state(const torch::nn::Module& module, const State& state);

  /// Elements of gradients before and after compression.
  struct Compression {
    std::int64_t elements_before = 0;
    std::int64_t elements_after = 0;
  };
  const Compression& compression() const { return compression_; }

  /// The hook: use powersgd_hook().
  FuturePtr reduce(Bucket& bucket);

 private:
  using Handle = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Memory = std::unordered_map<const c10::TensorImpl*, std::shared_ptr<PowerSgdMemory>>;  // by parameter

  static std::shared_ptr<PowerSgdMemory> memory_of(Memory& memory, const torch::Tensor& parameter);
  FuturePtr reduce_on_stream(PowerSgdRound& round);
  FuturePtr reduce_compressed(const std::shared_ptr<PowerSgdRound>& round, const FuturePtr& plain);

  Options options_;
  Handle group_;
  Handle q_group_;
  std::mt19937 random_;
  std::int64_t iteration_ = 0;
  Compression compression_;
  Memory memory_;
  FuturePtr q_started_;  ///< completes when the previous bucket's Q has started
};

/// The hook for a PowerSgd, which the caller may keep to save its state.
CommHook powersgd_hook(std::shared_ptr<PowerSgd> power_sgd);

}  // namespace ddprun::ddp
