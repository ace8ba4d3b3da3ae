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

/// The rank that owns each parameter, as torch.distributed.optim.ZeroRedundancyOptimizer divides them: group
/// by group, the largest first, each to the rank with the fewest elements so far.
///
/// group_sizes  of each parameter group the elements of each parameter
/// returns      the owners of all groups' parameters, one group after the other
std::vector<int> partition_parameters(const std::vector<std::vector<std::int64_t>>& group_sizes, int ranks);

/// An optimizer whose state is divided over the ranks (ZeRO stage 1): every rank updates the parameters that
/// it owns with an optimizer over these alone, and then all get them from their owners. Every rank's weights
/// are bit for bit those of the plain optimizer, while its state takes 1 / ranks of the memory.
///
///   ZeroOptimizer optimizer({model->parameters()}, [](auto groups) {
///     return std::make_unique<torch::optim::Adam>(std::move(groups), torch::optim::AdamOptions(1e-3));
///   }, group);
///
/// It is used as any optimizer, with DistributedDataParallel or where gradients are equal on all ranks:
/// param_groups() holds all parameters and their options, which may change between steps; state() is of the
/// parameters that this rank owns. Every rank must call step() equally often. For checkpoints see
/// train/optimizer_state.h. The parameters' memory moves into a few flat buffers, one for each owner and
/// type: move a model to its device and type before.
///
/// Rajbhandari et al. 2020, section 5.1
class ZeroOptimizer : public torch::optim::Optimizer {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  /// Makes the optimizer of a rank's part: as many groups as there are, some perhaps without parameters.
  using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(Groups)>;

  /// groups  those without options get the made optimizer's defaults
  /// throws  std::invalid_argument if there is no parameter, or one twice
  ZeroOptimizer(Groups groups, const Factory& make_optimizer, const ProcessGroup& group);

  /// throws  std::invalid_argument if a parameter was added, moved to other memory or made trainable since
  ///         construction
  torch::Tensor step(LossClosure closure = nullptr) override;

  int rank() const { return group_.rank(); }

  /// Whether this rank owns the parameter of that place in all groups, one after the other.
  bool owns(std::size_t parameter) const { return owners_[parameter] == group_.rank(); }

  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  /// Brings to rank 0 what the ranks keep of their parameters. Every rank must call it.
  ///
  /// own      for each parameter, in the order of owns(), of one's own what to bring; else empty
  /// returns  rank 0: for each parameter its owner's list, on the CPU; on other ranks empty lists
  std::vector<NamedTensors> gather_to_rank_0(const std::vector<NamedTensors>& own) const;

 private:
  /// Parameters of one owner and type, whose memory is a part of flat.
  struct Part {
    int owner;
    at::Tensor flat;
    std::vector<std::pair<at::Tensor, void*>> parameters;  ///< and where each lies
  };
  void flatten_parameters();
  void check_unchanged() const;
  void step_own_part();
  void broadcast_parameters();

  const ProcessGroup group_;
  std::vector<int> owners_;
  std::unique_ptr<torch::optim::Optimizer>
      local_;  ///< over the own part; its state is in state_ between steps
  std::vector<Part> parts_;
};

}  // namespace ddprun::ddp
