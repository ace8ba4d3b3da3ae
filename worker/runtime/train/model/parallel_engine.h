#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/optim/ema.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/shard_index.h>
#include <ddprun/train/state/state_dict_file.h>

namespace ddprun::train {

Ema::NamedTensors to_vector(const torch::OrderedDict<std::string, torch::Tensor>& tensors);

/// The tensors of a state_dict whose names begin with the prefix, which is dropped.
StateDict named_tensors(const c10::IValue& dict, const std::string& prefix = "");

/// How ranks share one model.
class ParallelEngine {
 public:
  using Compute = std::function<BatchResult()>;

  explicit ParallelEngine(const Run& run) : run_(run), module_(*run.task.module) {}
  virtual ~ParallelEngine() = default;

  /// What the optimizer updates.
  virtual std::vector<torch::Tensor> parameters() = 0;
  /// samples  in this rank's batch, if batch sizes may differ between ranks and every sample must count alike
  virtual BatchResult forward(const Compute& compute, std::optional<std::int64_t> samples) = 0;
  virtual BatchResult evaluate(const Compute& compute) = 0;
  virtual void zero_grad(torch::optim::Optimizer& optimizer) = 0;
  /// After a forward or backward that threw: drops it and its gradients. Not if the model is sharded.
  virtual void abandon_step() {}
  /// Keeps the gradients of the pass on this rank.
  virtual void without_reduction(const std::function<void()>& pass) = 0;
  virtual void with_whole_parameters(const std::function<void()>& use) = 0;
  virtual void synchronize_buffers() = 0;
  /// here  also on this rank, if the state is not sharded
  virtual std::optional<Shards> save(TrainingState& state, torch::optim::Optimizer& optimizer, const Ema* ema,
                                     bool here) = 0;
  virtual void load_optimizer(torch::optim::Optimizer& optimizer, const c10::IValue& state,
                              const std::filesystem::path& source) = 0;
  /// The model tensors that this rank has, by name, including its own shards. Shares memory.
  virtual c10::impl::GenericDict own_model() { return state_dict(module_); }
  virtual bool is_sharded() const = 0;
  /// Whether this rank has only a part of the parameters and reads only that part of a sharded checkpoint.
  virtual bool reads_shards() const { return false; }
  /// Loads all the state in a sharded checkpoint that the engine keeps.
  virtual void load_shards(const TrainingState&, const std::filesystem::path&, torch::optim::Optimizer&,
                           Ema*) {}
  /// Loads only the weights: "model" or "ema".
  virtual void load_shards(const TrainingState&, const std::filesystem::path&, const std::string&) {}
  /// The parameters that Ema averages.
  virtual Ema::NamedTensors averaged_parameters() { return to_vector(module_.named_parameters()); }
  /// Loads them from a whole state.
  virtual void load_averages(Ema& ema, const c10::IValue& state) {
    ema.load_state_dict(state.toGenericDict());
  }
  virtual std::optional<ddp::Join> join() { return std::nullopt; }
  virtual ddp::DistributedDataParallel::Statistics statistics() const { return {}; }

 protected:
  const Run& run_;
  torch::nn::Module& module_;
};

/// Fully sharded.
std::unique_ptr<ParallelEngine> make_sharded_engine(const Run& run);

}  // namespace ddprun::train
