#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <torch/types.h>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <ddprun/group/process_group.h>

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
/// defaults (powersgd_hook.h has the options).
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

}  // namespace ddprun::ddp
