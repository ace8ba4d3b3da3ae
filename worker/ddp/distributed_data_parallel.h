#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "worker/ddp/process_group.h"

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
///   optimizer.zero_grad();
///   auto loss = ddp.forward([&] { return torch::nll_loss(model->forward(images), labels); });
///   loss.backward();    // gradients are the mean over ranks now
///   optimizer.step();
///
/// Every rank must run forward and backward equally often. The module must not change its parameters while
/// this lives, and the process group must outlive it.
class DistributedDataParallel {
 public:
  struct Options {
    std::int64_t bucket_bytes = 25 << 20;       ///< gradients are reduced in buckets of about this size
    std::int64_t first_bucket_bytes = 1 << 20;  ///< the first is smaller, so that communication starts early
    bool broadcast_buffers = true;  ///< rank 0's buffers (BatchNorm's statistics) before every forward
  };

  /// Checks that all ranks have the same parameters, then gives every rank rank 0's parameters and buffers.
  /// throws  std::invalid_argument, on every rank, if the ranks' modules differ (naming the parameter and the
  ///         ranks) or if no parameter requires a gradient
  DistributedDataParallel(torch::nn::Module& module, const ProcessGroup& group, const Options& options);
  DistributedDataParallel(torch::nn::Module& module, const ProcessGroup& group);
  DistributedDataParallel(DistributedDataParallel&&) noexcept;
  ~DistributedDataParallel();

  /// Gradients are reduced by this hook instead of a plain all-reduce: comm_hooks.h has compressing ones. The
  /// same on every rank, before the first forward.
  /// throws  std::invalid_argument if there is a hook already or a forward has run
  void register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook);

  /// Runs compute() as this step's forward pass and returns its result.
  template <typename Compute>
  auto forward(Compute&& compute) {
    before_forward();
    auto output = std::forward<Compute>(compute)();
    after_forward();
    return output;
  }

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

  /// What c10d::Logger measured; times are means over the steps it sampled (the first ten, then every
  /// hundredth).
  struct Statistics {
    std::vector<std::int64_t> bucket_bytes;  ///< of the buckets now in use
    bool buckets_rebuilt = false;       ///< in the order in which gradients arrive; after the first backward
    std::int64_t backward_ns = 0;       ///< backward's computation
    std::int64_t communication_ns = 0;  ///< all-reduce of the buckets
    std::int64_t overlap_ns = 0;        ///< the part of communication_ns hidden behind backward_ns
  };
  Statistics statistics() const;

  /// Rank 0's buffers on every rank: before evaluating or saving, so that what is reported is what is saved.
  void synchronize_buffers();

 private:
  void before_forward();
  void after_forward();

  struct Engine;
  std::unique_ptr<Engine> engine_;
  bool synchronize_ = true;
};

}  // namespace ddprun::ddp
