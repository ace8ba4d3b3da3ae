#pragma once

#include <filesystem>

#include <ATen/core/ivalue.h>

#include <ddprun/train/state/shard_index.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddprun::ddp {
class FullyShardedDataParallel;
}

namespace ddprun::train {

/// The state of an optimizer over sharded.shards(), like optimizer_state_dict() of an optimizer over the
/// module's parameters. Every rank must call it; all but rank 0 get None. throws  like optimizer_state_dict()
c10::IValue sharded_optimizer_state_dict(torch::optim::Optimizer& optimizer,
                                         const ddp::FullyShardedDataParallel& sharded,
                                         const torch::nn::Module& module, int rank);

/// Loads a dict from sharded_optimizer_state_dict() or optimizer_state_dict(), from any number of ranks, into
/// an optimizer over sharded.shards(). Every rank passes the whole dict. Parameters that share a shard have
/// one number of steps then, the largest; where one of them has no state, it is zero.
///
/// source  the file named in errors
/// throws  IoError if the dict does not fit, as load_optimizer_state()
void load_sharded_optimizer_state(torch::optim::Optimizer& optimizer,
                                  const ddp::FullyShardedDataParallel& sharded,
                                  const torch::nn::Module& module, const c10::IValue& state_dict,
                                  const std::filesystem::path& source);

/// The same for a sharded checkpoint: {"param_groups": ..., "steps": {name: ...}, "scalars": {"step": the
/// most}} with the parameters' numbers in the module. Adds this rank's tensors to the shards.
c10::IValue add_optimizer_pieces(torch::optim::Optimizer& optimizer,
                                 const ddp::FullyShardedDataParallel& sharded,
                                 const torch::nn::Module& module, Shards& shards);

/// The inverse, on any number of ranks: reads what this rank needs. throws  IoError
void load_optimizer_pieces(torch::optim::Optimizer& optimizer, const ddp::FullyShardedDataParallel& sharded,
                           int rank, const c10::IValue& state, ShardReader& reader,
                           const std::filesystem::path& source);

}  // namespace ddprun::train
