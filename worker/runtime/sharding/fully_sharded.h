#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/group/process_group.h>

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace ddprun::ddp {

/// Data-parallel training of a module whose parameters, gradients and optimizer state are shared out: each of
/// N ranks keeps 1/N of them. Parameters are packed into units; a unit is gathered just before the first
/// operator that uses it, in forward and again in backward, and freed when the next one is used; the next is
/// fetched ahead. Its gradients are averaged over the ranks and cut as soon as they are complete. No change
/// to the module is needed (docs/decisions/0011-fully-sharded-hooks.md). Zhao et al. 2023, "PyTorch FSDP",
/// arXiv:2304.11277; Rajbhandari et al. 2020, "ZeRO", stage 3.
///
///   FullyShardedDataParallel fsdp(*model, group);
///   torch::optim::Adam optimizer(fsdp.shards());    // not model->parameters()
///   optimizer.zero_grad();
///   auto loss = fsdp.forward([&] { return torch::nll_loss(model->forward(images), labels); });
///   loss.backward();
///   fsdp.clip_grad_norm(1.0);
///   optimizer.step();
///
/// All ranks must run the same operators on the parameters in the same order: using one is a collective
/// operation, outside forward() too. The optimizer must treat every element alike, as SGD, Adam and AdamW do.
/// After this the module's parameters cannot be used any more.
class FullyShardedDataParallel {
 public:
  struct Options {
    std::int64_t unit_bytes = 4 << 20;           ///< modules are packed into units of up to this size
    std::vector<torch::nn::Module*> units = {};  ///< modules to make a unit each, with what they contain
    bool prefetch = true;           ///< gather the next unit while this one computes: two in memory at a time
    bool broadcast_buffers = true;  ///< rank 0's buffers (BatchNorm's statistics) before every forward
  };

  /// Checks that all ranks have the same parameters, gives every rank rank 0's parameters and buffers, and
  /// frees all but this rank's share.
  /// throws  std::invalid_argument, on every rank, if the ranks' modules or options differ, if no parameter
  ///         requires a gradient, if parameters overlap in memory, or if units does not name parts of module
  FullyShardedDataParallel(torch::nn::Module& module, const ProcessGroup& group, const Options& options);
  FullyShardedDataParallel(torch::nn::Module& module, const ProcessGroup& group);
  /// Not while a NoSync or FullParameters of it lives.
  FullyShardedDataParallel(FullyShardedDataParallel&&) noexcept;
  ~FullyShardedDataParallel();

  /// Runs compute() as this step's forward pass and returns its result. With autograd off (NoGradGuard) it is
  /// an evaluation, and nothing stays gathered.
  template <typename Compute>
  auto forward(Compute&& compute) {
    before_forward();
    auto output = std::forward<Compute>(compute)();
    after_forward();
    return output;
  }

  /// For the optimizer: this rank's share of every unit, 1-D, with the gradient's share as .grad() after
  /// backward. Frozen parameters are not among them.
  std::vector<at::Tensor> shards() const;

  /// Scales the gradients so that the 2-norm of all of them, over all ranks, is at most max_norm, as
  /// torch.nn.utils.clip_grad_norm_. Every rank calls it.
  /// returns  the norm before
  double clip_grad_norm(double max_norm);

  /// While the returned object lives, backward keeps this rank's whole gradients: accumulation without
  /// communication, for the memory of a whole gradient. Without it, backward adds to the shards' gradients,
  /// which gives the same sum. Divide the loss by the number of micro-batches yourself.
  class [[nodiscard]] NoSync {
   public:
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    friend FullyShardedDataParallel;
    explicit NoSync(FullyShardedDataParallel& owner);
    FullyShardedDataParallel& owner_;
    bool previous_;
  };
  NoSync no_sync() { return NoSync(*this); }

  /// While the returned object lives, every parameter is whole on every rank, to be saved, exported,
  /// evaluated by one rank alone, or loaded: what is written into them is kept, if all ranks write the same.
  /// The optimizer must not step meanwhile. Every rank calls it.
  class [[nodiscard]] FullParameters {
   public:
    ~FullParameters();
    FullParameters(const FullParameters&) = delete;
    FullParameters& operator=(const FullParameters&) = delete;

   private:
    friend FullyShardedDataParallel;
    explicit FullParameters(FullyShardedDataParallel& owner);
    FullyShardedDataParallel& owner_;
  };
  FullParameters full_parameters() { return FullParameters(*this); }

  /// What an optimizer keeps for the shards (exp_avg, say), whole and by the parameters' names, on every
  /// rank. Every rank calls it. per_shard: in the order of shards(); undefined where there is none yet.
  std::map<std::string, at::Tensor> consolidate(const std::vector<at::Tensor>& per_shard) const;
  /// The inverse: this rank's share, in the order of shards(); undefined for units without any of the names.
  /// throws  std::invalid_argument naming a parameter that is missing beside others, or of another shape
  std::vector<at::Tensor> share_out(const std::map<std::string, at::Tensor>& by_name) const;

  /// Rank 0's buffers on every rank: before evaluating or saving, so that what is reported is what is saved.
  void synchronize_buffers();

  /// Elements of the largest unit's flat tensor, and the number of units.
  std::int64_t largest_unit_numel() const;
  std::size_t unit_count() const;

 private:
  void before_forward();
  void after_forward();

  struct Engine;
  std::unique_ptr<Engine> engine_;
};

}  // namespace ddprun::ddp
