#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/optim/optimization.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/shard_index.h>

namespace ddprun::train {

// The state of a fully sharded model, of which each rank has a part: into checkpoints and back. Every rank
// calls these.

ddp::FullyShardedDataParallel::Options sharding_options(const Run& run);

/// What each rank writes itself; the rest goes into the state.
Shards save_shards(TrainingState& state, const ddp::FullyShardedDataParallel& fsdp,
                   const torch::nn::Module& module, torch::optim::Optimizer& optimizer, const Ema* ema);
/// The inverse, on any number of ranks. throws  IoError
void load_shards(const TrainingState& state, const std::filesystem::path& source,
                 const ddp::FullyShardedDataParallel& fsdp, torch::nn::Module& module, int rank,
                 torch::optim::Optimizer& optimizer, Ema* ema);
/// Reads only the weights, or their averages. key: "model" or "ema"
///
/// returns  what copies them to the module
std::function<void()> read_shard_weights(const TrainingState& state, const std::filesystem::path& source,
                                         const ddp::FullyShardedDataParallel& fsdp, torch::nn::Module& module,
                                         int rank, const std::string& key);

/// What Ema averages: a module's parameters have no memory most of the time.
Ema::NamedTensors named_shards(const ddp::FullyShardedDataParallel& fsdp);
/// Loads averages of named_shards() from a whole state.
void load_averages_of_shards(Ema& ema, const c10::IValue& state, const ddp::FullyShardedDataParallel& fsdp);

/// Gives the parameters of a module that is no longer sharded the state of a module without memory.
void forget_parameters(torch::nn::Module& module);

}  // namespace ddprun::train
