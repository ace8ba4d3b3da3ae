#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include <ddprun/group/process_group.h>

namespace ddprun::ddp {

/// The owner of each parameter, assigned as in torch.distributed.optim.ZeroRedundancyOptimizer: group by
/// group, the largest first, each to the rank with the fewest elements so far.
///
/// group_sizes  the elements of each parameter of each parameter group
/// returns      the owners of all groups' parameters, concatenated
std::vector<int> partition_parameters(const std::vector<std::vector<std::int64_t>>& group_sizes, int ranks);

/// An optimizer whose state is divided among the ranks (ZeRO stage 1): every rank updates the parameters that
/// it owns, then broadcasts them. The weights are bit for bit those of the plain optimizer, while each rank's
/// state takes 1 / ranks of the memory.
///
///   ZeroOptimizer optimizer({model->parameters()}, [](auto groups) {
///     return std::make_unique<torch::optim::Adam>(std::move(groups), torch::optim::AdamOptions(1e-3));
///   }, group);
///
/// Use it like any optimizer, with DistributedDataParallel or wherever all ranks have the same gradients.
/// param_groups() holds all parameters and their options, which may change between steps; state() only this
/// rank's. Every rank must call step() equally often. Parameters move into a few flat buffers, one per owner
/// and type, so move the model to its device and type first. Checkpoints: train/state/optimizer_state.h.
///
/// Rajbhandari et al. 2020, section 5.1
class ZeroOptimizer : public torch::optim::Optimizer {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  /// Makes the optimizer for a rank's part: the same number of groups, some perhaps without parameters.
  using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(Groups)>;

  /// groups  those without options get the new optimizer's defaults
  /// throws  std::invalid_argument if there is no parameter, or a duplicate
  ZeroOptimizer(Groups groups, const Factory& make_optimizer, const ProcessGroup& group);

  /// throws  std::invalid_argument if a parameter was added, moved to other memory or made trainable since
  ///         construction
  torch::Tensor step(LossClosure closure = nullptr) override;

  int rank() const { return group_.rank(); }
  torch::optim::Optimizer& local() const { return *local_; }  ///< steps this rank's part

  /// Whether this rank owns a parameter, by its index over all groups.
  bool owns(std::size_t parameter) const { return owners_[parameter] == group_.rank(); }

  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  /// Collects the ranks' state of their parameters on rank 0. Every rank must call it.
  ///
  /// own      for each parameter, in the order of owns(): its state if this rank owns it, else empty
  /// returns  on rank 0, each parameter's list, on the CPU; on other ranks, empty lists
  std::vector<NamedTensors> gather_to_rank_0(const std::vector<NamedTensors>& own) const;

 private:
  /// Parameters of one owner and type, with their memory in flat.
  struct Part {
    int owner;
    at::Tensor flat;
    std::vector<std::pair<at::Tensor, void*>> parameters;  ///< with their addresses
  };
  void flatten_parameters();
  void check_unchanged() const;
  void step_own_part();
  void broadcast_parameters();

  const ProcessGroup group_;
  std::vector<int> owners_;
  std::unique_ptr<torch::optim::Optimizer> local_;  ///< this rank's part; state_ has its state between steps
  std::vector<Part> parts_;
};

}  // namespace ddprun::ddp
