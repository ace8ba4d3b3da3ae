#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/ddp/join.h>
#include <ddprun/ddp/output_tensors.h>
#include <ddprun/group/process_group.h>

namespace c10d {
class CommHookInterface;
}
namespace torch::nn {
class Module;
}

namespace ddprun::ddp {

/// Data-parallel training of one module: every rank computes gradients on its own batch, and they are
/// averaged over the ranks bucket by bucket while backward still runs. PyTorch's own engine (c10d::Reducer),
/// driven as torch.nn.parallel.DistributedDataParallel drives it (torch/nn/parallel/distributed.py, 2.11).
///
///   DistributedDataParallel ddp(*model, group);
///   ddp.zero_grad();
///   auto loss = ddp.forward([&] { return torch::nll_loss(model->forward(images), labels); });
///   loss.backward();    // gradients are the mean over ranks now
///   optimizer.step();
///
/// Every rank must run forward and backward equally often (or use join()). The module must not change its
/// parameters while this lives. In a world of one nothing is reduced or sent, and nothing costs time.
class DistributedDataParallel {
 public:
  struct Options {
    std::int64_t bucket_bytes = kDefaultBucketBytes;  ///< gradients are reduced in buckets of about this size
    /// The first is smaller, so that communication starts early. Not set: 1 MiB beside the default
    /// bucket_bytes, else bucket_bytes.
    std::optional<std::int64_t> first_bucket_bytes = std::nullopt;
    /// If not empty, the size of each bucket in turn, the last for all further; in place of the two above.
    std::vector<std::int64_t> bucket_bytes_list = {};
    bool broadcast_buffers = true;  ///< rank 0's buffers (BatchNorm's statistics), as forward() says
    /// Parameters that no tensor of forward()'s result depends on, or none of the loss, are not waited for.
    /// What no rank used keeps its gradient as it is. Costs a walk through the graph every step.
    bool find_unused_parameters = false;
    /// The same parameters are used, as often, in every step: parameters not used, and those used several
    /// times, are found in the first step.
    bool static_graph = false;
    /// Gradients lie in the buckets: saves a copy and the memory of one set of gradients. The optimizer's
    /// zero_grad() does not work then: use the one here.
    bool gradient_as_bucket_view = false;
    /// Buckets of which every parameter is unused are not reduced: for parameters that are unused on all
    /// ranks alike. Needs find_unused_parameters.
    bool skip_all_reduce_unused_parameters = false;
    std::vector<std::string> ignore = {};  ///< names of parameters and buffers that stay each rank's own
  };

  /// Checks that all ranks have the same parameters, then gives every rank rank 0's parameters and, with
  /// broadcast_buffers, buffers.
  /// throws  std::invalid_argument, on every rank, if the ranks' modules differ (naming the parameter and the
  ///         ranks), if no parameter requires a gradient, if one is sparse or on another kind of device, or
  ///         if a name in ignore is none of the module's
  DistributedDataParallel(torch::nn::Module& module, const ProcessGroup& group, const Options& options);
  DistributedDataParallel(torch::nn::Module& module, const ProcessGroup& group);
  DistributedDataParallel(DistributedDataParallel&&) noexcept;  ///< not while a NoSync or Join of it lives
  ~DistributedDataParallel();

  /// Gradients are reduced by this hook instead of a plain all-reduce: comm_hooks.h has compressing ones. The
  /// same on every rank, before the first forward. In a world of one it is never run.
  /// throws  std::invalid_argument if there is a hook already or a forward has run
  void register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook);

  /// Runs compute() as this step's forward pass and returns its result. Buffers are broadcast before, unless
  /// the previous forward was without gradient or in no_sync(), as in Python: once an accumulation.
  ///
  /// compute  returns a tensor, or a type that visit_output (output_tensors.h) looks into
  /// samples  how many samples compute()'s mean is over. If given (on all ranks), gradients are the mean over
  ///          all samples of all ranks, also where batches are of different sizes: backward scales this
  ///          rank's by samples x ranks / all samples. The result's values are not scaled. Costs a small
  ///          all-reduce.
  /// throws  c10::Error, naming parameters, if the previous backward did not reach all that it should have;
  ///         UnevenInputs; std::invalid_argument if find_unused_parameters or samples finds no tensor with a
  ///         gradient in the result, and on this rank alone if samples is less than 1: the others then wait
  ///         for it until their timeout
  template <typename Compute>
  auto forward(Compute&& compute, std::optional<std::int64_t> samples = std::nullopt) {
    before_forward(samples);
    auto output = std::forward<Compute>(compute)();
    after_forward([&](const TensorVisitor& visit) { visit_output(output, visit); });
    return output;
  }

  /// Leaves every parameter without a gradient, in all modes, also where the optimizer's zero_grad() throws
  /// "Can't detach views in-place". Without and not zero: what a step does not use, the optimizer then leaves
  /// alone.
  void zero_grad();

  /// While the returned object lives, backward only adds to this rank's gradients: for gradient accumulation.
  /// The first backward after it reduces the sum. Divide the loss by the number of micro-batches yourself.
  class [[nodiscard]] NoSync {
   public:
    ~NoSync() { owner_.synchronize_ = previous_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    friend DistributedDataParallel;
    explicit NoSync(DistributedDataParallel& owner)
        : owner_(owner), previous_(std::exchange(owner.synchronize_, false)) {}
    DistributedDataParallel& owner_;
    bool previous_;
  };
  NoSync no_sync() { return NoSync(*this); }

  /// For ranks with different numbers of batches: see Join.
  Join join(const JoinOptions& options) { return Join(*this, options); }

  /// What c10d::Logger knows; times are means over the steps it sampled (the first ten, then every
  /// hundredth), in nanoseconds. Empty in a world of one.
  struct Statistics {
    std::string backend;                                      ///< "gloo", "nccl"
    std::vector<std::int64_t> bucket_bytes;                   ///< of the buckets now in use
    std::vector<std::vector<std::string>> bucket_parameters;  ///< the parameters in each
    bool buckets_rebuilt = false;       ///< in the order in which gradients arrive, after the first backward
    std::int64_t iteration = 0;         ///< forwards so far that were to be reduced
    std::int64_t buckets_reduced = 0;   ///< in the last sampled step
    std::int64_t unused_bytes = 0;      ///< parameters found unused in the last sampled step
    std::int64_t forward_ns = 0;        ///< forward's computation
    std::int64_t backward_ns = 0;       ///< backward's computation
    std::int64_t communication_ns = 0;  ///< all-reduce of the buckets
    std::int64_t overlap_ns = 0;        ///< the part of communication_ns hidden behind backward_ns
  };
  Statistics statistics() const;

  /// Rank 0's buffers on every rank: before evaluating or saving, so that what is reported is what is saved.
  void synchronize_buffers();

 private:
  friend Join;
  static constexpr std::int64_t kDefaultBucketBytes = 25 << 20;
  using OutputVisitor = std::function<void(const TensorVisitor&)>;

  void before_forward(std::optional<std::int64_t> samples);
  void after_forward(const OutputVisitor& visit_output);

  void begin_join(const JoinOptions& options);
  bool shadow_step();  ///< false if no rank has input any more
  void take_final_state(bool made_most_steps);
  void end_join();

  struct Engine;
  std::unique_ptr<Engine> engine_;
  bool synchronize_ = true;
};

}  // namespace ddprun::ddp
