#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ScopeExit.h>

#include <ddprun/ddp/model_tensors.h>
#include <ddprun/group/process_group.h>

namespace torch::nn {
class Module;
}

namespace ddprun::ddp {

/// Data-parallel training where each of N ranks keeps 1/N of the parameters, gradients and optimizer state.
/// Parameters are packed into units. A unit is gathered just before the first operator that uses it, in
/// forward and again in backward, and freed when the next one, prefetched meanwhile, is used; its gradients
/// are averaged and sharded as soon as they are complete. Modules need no change
/// (docs/decisions/0011-fully-sharded-hooks.md). Zhao et al. 2023, "PyTorch FSDP", arXiv:2304.11277;
/// Rajbhandari et al. 2020, "ZeRO", stage 3.
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
/// operation, even outside forward(). The optimizer must treat every element alike, as SGD, Adam and AdamW
/// do. Its destruction makes the module's parameters unusable.
class FullyShardedDataParallel {
 public:
  /// FSDP2's MixedPrecisionPolicy. Shards, and so the optimizer and checkpoints, keep the parameters' types.
  /// Cast the inputs yourself. With one rank nothing is gathered, and only output_dtype applies.
  struct MixedPrecision {
    std::optional<at::ScalarType> param_dtype = {};   ///< for gathering and computing; nullopt: unchanged
    std::optional<at::ScalarType> reduce_dtype = {};  ///< of gradients between ranks; nullopt: param_dtype
    std::optional<at::ScalarType> output_dtype = {};  ///< of what forward() returns; nullopt: unchanged
    bool norms = true;  ///< false: modules that have only vectors, such as BatchNorm, keep their types
  };

  struct Options {
    std::int64_t unit_bytes = 0;  ///< pack modules into units up to this size; 0: 4 MiB, or 64 MiB on a GPU
    std::vector<torch::nn::Module*> units = {};  ///< make each of these, with its submodules, a unit
    int prefetch = 1;               ///< units to gather ahead while one computes; each takes memory
    bool broadcast_buffers = true;  ///< rank 0's buffers (BatchNorm's statistics) before every forward
    MixedPrecision mixed_precision = {};
    /// For a module made on the meta device (meta_device.h): sets the values of the parameter or buffer with
    /// this name. Memory is allocated on the group's device, unit by unit. Rank 0's values count.
    std::function<void(const std::string& name, at::Tensor& tensor)> initialise = {};
  };

  /// Checks that all ranks have the same parameters, copies rank 0's parameters and buffers to every rank,
  /// and frees all but this rank's share.
  /// throws  std::invalid_argument, on every rank, if modules or options differ between ranks, no parameter
  ///         requires a gradient, parameters overlap in memory, a unit is not a part of the module, or a
  ///         parameter on the meta device has no Options::initialise
  FullyShardedDataParallel(torch::nn::Module& module, const ProcessGroup& group, const Options& options);
  FullyShardedDataParallel(torch::nn::Module& module, const ProcessGroup& group);
  /// Only while no no_sync() or full_parameters() refers to it.
  FullyShardedDataParallel(FullyShardedDataParallel&&) noexcept;
  ~FullyShardedDataParallel();

  /// Runs compute() as this step's forward pass and returns its result. With autograd off (NoGradGuard)
  /// nothing stays gathered.
  template <typename Compute>
  auto forward(Compute&& compute) {
    before_forward();
    auto output = std::forward<Compute>(compute)();
    after_forward();
    if (const auto dtype = output_dtype())
      visit_output(output, [&](at::Tensor& each) {
        if (each.is_floating_point()) each = each.to(*dtype);
      });
    return output;
  }

  /// For the optimizer: this rank's share of every unit, 1-D, without frozen parameters. After backward,
  /// .grad() is the gradient's share.
  std::vector<at::Tensor> shards() const;

  /// How long this process has waited for other ranks' shards and gradients so far; on a GPU, how long its
  /// streams have.
  static double seconds_waited();

  /// Scales the gradients so that their 2-norm, over all ranks, is at most max_norm, like
  /// torch.nn.utils.clip_grad_norm_, without waiting for the device. Every rank calls it. Returns the norm
  /// before scaling, a float64 scalar on the group's device.
  at::Tensor clip_grad_norm(double max_norm);

  /// While the returned object lives, backward keeps this rank's whole gradients instead of adding to the
  /// shards': accumulation without communication, but with a whole gradient in memory. Divide the loss by the
  /// number of micro-batches yourself.
  [[nodiscard]] auto no_sync() {
    return c10::make_scope_exit([this, previous = set_synchronize(false)] { set_synchronize(previous); });
  }

  /// While the returned object lives, every parameter is whole on every rank: to save, export, load, or
  /// evaluate on one rank. Changes are kept if all ranks make the same. Do not step the optimizer meanwhile.
  /// Every rank calls it.
  [[nodiscard]] auto full_parameters() {
    gather_all();
    return c10::make_scope_exit([this] { release_all(); });
  }

  /// An optimizer's state for the shards (exp_avg, say), whole and by parameter name. Every rank calls it and
  /// gets the result. per_shard: in the order of shards(); undefined if there is none yet.
  std::map<std::string, at::Tensor> consolidate(const std::vector<at::Tensor>& per_shard) const;
  /// The inverse: this rank's share, in the order of shards(); undefined for units with none of the names.
  /// throws  std::invalid_argument naming a parameter whose unit is incomplete, or of another shape
  std::vector<at::Tensor> share_out(const std::map<std::string, at::Tensor>& by_name) const;

  /// Where a unit's parameters are, for checkpoints that no rank gathers.
  struct Unit {
    struct Parameter {
      std::string name;  ///< its first name
      at::Tensor tensor;
      std::int64_t offset;                ///< in the unit's flat tensor, in elements
      std::vector<std::int64_t> strides;  ///< of its values there
    };
    std::vector<Parameter> parameters;
    at::Tensor shard;  ///< 1-D; rank r has the flat tensor's elements from r * shard.numel()
  };
  /// All units, including those of frozen parameters.
  std::vector<Unit> units() const;

  /// Copies rank 0's buffers to every rank: before evaluating or saving, so that both see the same model.
  void synchronize_buffers();

 private:
  bool set_synchronize(bool synchronize);  ///< returns what it was
  void gather_all();
  void release_all();
  void before_forward();
  void after_forward();
  std::optional<at::ScalarType> output_dtype() const;

  struct Engine;
  std::unique_ptr<Engine> engine_;
};

}  // namespace ddprun::ddp
