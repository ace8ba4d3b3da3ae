#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/ScopeExit.h>

#include <ddprun/ddp/model_tensors.h>
#include <ddprun/group/process_group.h>

namespace c10d {
class CommHookInterface;
}

namespace ddprun::ddp {

class DistributedDataParallel;

/// Thrown on every rank when one runs out of input and JoinOptions::throw_on_early_termination is set.
class UnevenInputs : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct JoinOptions {
  /// Divide gradients by the number of all ranks, so that every sample counts the same; if false, by the
  /// number of ranks that still have input.
  bool divide_by_initial_world_size = true;
  /// Throw UnevenInputs on every rank as soon as one runs out of input: for modules with other collectives,
  /// such as SyncBatchNorm, in which that rank could not take part.
  bool throw_on_early_termination = false;
};

/// Training where ranks have different numbers of batches; see DistributedDataParallel::join(). The
/// counterpart of torch.distributed.algorithms.Join.
///
///   auto join = ddp.join({});
///   while (auto batch = loader.next()) { forward, backward, step }
///   join.finish();
///
/// Every rank creates one and calls finish() once. Destroyed without it, as when an exception unwinds, it
/// only ends this rank's part.
class [[nodiscard]] Join {
 public:
  Join(DistributedDataParallel& ddp, const JoinOptions& options);
  Join(const Join&) = delete;
  ~Join();

  /// This rank has no more input. Takes part in the other ranks' steps with zero gradients until no rank has
  /// input; then copies the parameters and buffers of the rank with the most steps (the highest, if several)
  /// to every rank.
  ///
  /// after_step  called after each of those steps that reduces gradients, with these as this rank's own: if
  /// it
  ///             takes the optimizer's step too, optimizer, averages and schedule stay the same on all ranks.
  ///             Null: gradients stay as they are
  /// throws  UnevenInputs; c10::Error; std::invalid_argument, on this rank only, if it never had input, with
  ///         DistributedDataParallel::Options::static_graph
  void finish(const std::function<void()>& after_step = {});

 private:
  DistributedDataParallel& ddp_;
  bool ended_ = false;
};

/// Data-parallel training of one model (a torch::nn::Module, a torch::jit::Module, or ModelTensors): every
/// rank computes gradients on its own batch, and they are averaged over the ranks bucket by bucket while
/// backward runs. Uses PyTorch's engine (c10d::Reducer) the way torch.nn.parallel.DistributedDataParallel
/// does (torch/nn/parallel/distributed.py, 2.11).
///
///   DistributedDataParallel ddp(*model, group);
///   ddp.zero_grad();
///   auto loss = ddp.forward([&] { return torch::nll_loss(model->forward(images), labels); });
///   loss.backward();    // gradients are now the mean over ranks
///   optimizer.step();
///
/// Every rank must run forward and backward equally often (or use join()). The module must keep the same
/// parameters throughout. Does nothing with one rank.
class DistributedDataParallel {
 public:
  struct Options {
    std::int64_t bucket_bytes = kDefaultBucketBytes;  ///< gradients are reduced in buckets of about this size
    /// The first bucket's size. Default: 1 MiB with the default bucket_bytes, else bucket_bytes.
    std::optional<std::int64_t> first_bucket_bytes = std::nullopt;
    /// Unless empty, overrides the two above: the size of each bucket in turn, the last for all further ones.
    std::vector<std::int64_t> bucket_bytes_list = {};
    bool broadcast_buffers = true;  ///< rank 0's buffers (BatchNorm's statistics); see forward()
    /// Do not wait for parameters that forward()'s result or the loss does not depend on. Parameters that no
    /// rank used keep their gradients. Walks the graph every step.
    bool find_unused_parameters = false;
    /// Every step uses the same parameters the same number of times; the first step records which.
    bool static_graph = false;
    /// Gradients are bucket views: saves a copy and memory. Use zero_grad() here, not the optimizer's.
    bool gradient_as_bucket_view = false;
    /// Do not reduce buckets that no rank uses at all. Needs find_unused_parameters.
    bool skip_all_reduce_unused_parameters = false;
    std::vector<std::string> ignore = {};  ///< names of parameters and buffers not to keep in sync
    bool init_sync = true;                 ///< make all ranks begin with the same; false: they do
  };

  /// Checks that all ranks have the same parameters, then copies rank 0's parameters and, with
  /// broadcast_buffers, buffers to every rank (init_sync).
  /// throws  std::invalid_argument, on every rank, if the modules differ (naming the parameter and the
  ///         ranks), no parameter requires a gradient, one is sparse or on another kind of device, or ignore
  ///         names an unknown parameter or buffer
  DistributedDataParallel(const ModelTensors& model, const ProcessGroup& group, const Options& options);
  DistributedDataParallel(const ModelTensors& model, const ProcessGroup& group);
  DistributedDataParallel(
      DistributedDataParallel&&) noexcept;  ///< only while no no_sync() or Join refers to it
  ~DistributedDataParallel();

  /// Reduces gradients by this hook instead of a plain all-reduce (comm_hooks.h). The same on every rank,
  /// before the first forward. Never runs with one rank.
  /// throws  std::invalid_argument if a hook is already registered or a forward has run
  void register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook);

  /// Runs compute() as this step's forward pass and returns its result. Broadcasts buffers first, unless the
  /// previous forward ran without gradient or in no_sync(): once per accumulation, as in Python.
  ///
  /// compute  returns a tensor, or a type that visit_output (model_tensors.h) supports
  /// samples  how many samples compute()'s mean is over. If given (on all ranks), gradients are the mean over
  ///          all samples of all ranks, even if batches differ in size: backward scales this rank's gradients
  ///          by samples x ranks / all samples. Does not scale the result. Costs a small all-reduce.
  /// throws  c10::Error, naming the parameters that the previous backward should have reached but did not;
  ///         UnevenInputs; std::invalid_argument if find_unused_parameters or samples finds no tensor with a
  ///         gradient in the result, and on this rank only if samples is less than 1: the others time out
  template <typename Compute>
  auto forward(Compute&& compute, std::optional<std::int64_t> samples = std::nullopt) {
    before_forward(samples);
    auto output = std::forward<Compute>(compute)();
    after_forward([&](const TensorVisitor& visit) { visit_output(output, visit); });
    return output;
  }

  /// Removes all gradients, even where the optimizer's zero_grad() throws "Can't detach views in-place".
  void zero_grad();

  /// Drops a step in which forward or backward threw, and all gradients, so that the next forward can begin.
  /// Every rank calls it. With static_graph, the first step cannot be dropped.
  void abandon_step();

  /// For gradient accumulation: while the returned object lives, backward only adds to this rank's gradients.
  /// The next backward reduces the sum. Divide the loss by the number of micro-batches yourself.
  ///
  ///   const auto guard = ddp.no_sync(step % 4 != 3);
  ///
  /// accumulate  false: changes nothing
  [[nodiscard]] auto no_sync(bool accumulate = true) {
    return c10::make_scope_exit([this, previous = std::exchange(synchronize_, synchronize_ && !accumulate)] {
      synchronize_ = previous;
    });
  }

  /// For ranks with different numbers of batches: see Join.
  Join join(const JoinOptions& options) { return Join(*this, options); }

  /// Means over c10d::Logger's sampled steps (the first ten, then every hundredth). Empty with one rank.
  struct Statistics {
    std::string backend;                                      ///< "gloo", "nccl"
    std::vector<std::int64_t> bucket_bytes;                   ///< of the buckets now in use
    std::vector<std::vector<std::string>> bucket_parameters;  ///< the parameters in each
    bool buckets_rebuilt = false;      ///< in the order of the gradients' arrival, after the first backward
    std::int64_t iteration = 0;        ///< forwards so far whose gradients are reduced
    std::int64_t buckets_reduced = 0;  ///< in the last sampled step
    std::int64_t unused_bytes = 0;     ///< parameters found unused in the last sampled step
    std::int64_t forward_ns = 0, backward_ns = 0;  ///< computation
    std::int64_t communication_ns = 0;             ///< all-reduce of the buckets
    std::int64_t overlap_ns = 0;                   ///< the part of communication_ns hidden behind backward_ns
  };
  Statistics statistics() const;

  /// Copies rank 0's buffers to every rank: before evaluating or saving, so that both see the same model.
  void synchronize_buffers();

 private:
  friend Join;
  static constexpr std::int64_t kDefaultBucketBytes = 25 << 20;
  using OutputVisitor = std::function<void(const TensorVisitor&)>;

  void before_forward(std::optional<std::int64_t> samples);
  void after_forward(const OutputVisitor& visit_output);

  struct Engine;
  std::unique_ptr<Engine> engine_;
  bool synchronize_ = true;
};

}  // namespace ddprun::ddp
