#include <algorithm>
#include <map>
#include <utility>

#include <ATen/core/Dict.h>
#include <ATen/ops/empty_strided.h>

#include <ddprun/common/errors.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/train/model/parallel_engine.h>
#include <ddprun/train/state/run_memory.h>
#include <ddprun/train/state/sharded_optimizer_state.h>

namespace ddprun::train {
namespace {

/// bf16-mixed gathers and reduces in bfloat16, 16-mixed gathers in float16 and reduces in float32, where sums
/// of scaled gradients do not overflow. Autocast computes as without sharding, on the gathered values: it
/// makes no copy of a weight, which autograd would keep.
ddp::FullyShardedDataParallel::Options sharding_options(const TrainerOptions& options, const Task& task) {
  ddp::FullyShardedDataParallel::Options sharding{.initialise = task.initialise};
  if (options.memory != nullptr && options.memory->state)
    sharding.initialise = [](const std::string&, at::Tensor&) {};  // the shards will be loaded
  if (options.precision.precision == Precision::kBf16Mixed)
    sharding.mixed_precision = {.param_dtype = at::kBFloat16, .norms = false};
  if (options.precision.precision == Precision::k16Mixed)
    sharding.mixed_precision = {.param_dtype = at::kHalf, .reduce_dtype = at::kFloat, .norms = false};
  return sharding;
}

class ShardedEngine : public ParallelEngine {
 public:
  explicit ShardedEngine(const Run& run)
      : ParallelEngine(run), sharded_(module_, run.group, sharding_options(run.options, run.task)) {}
  /// If another rank is lost, the next round's engine gives the parameters memory again.
  ~ShardedEngine() override {
    if (run_.options.memory == nullptr || !reads_shards()) return;
    { const auto ended = std::move(sharded_); }
    for (auto& parameter : module_.parameters()) {
      parameter.mutable_grad().reset();
      parameter.unsafeGetTensorImpl()->shallow_copy_from(
          at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options().device(at::kMeta))
              .getIntrusivePtr());
    }
  }

  std::vector<torch::Tensor> parameters() override { return sharded_.shards(); }
  BatchResult forward(const Compute& compute, std::optional<std::int64_t>) override {
    return sharded_.forward(compute);
  }
  BatchResult evaluate(const Compute& compute) override { return sharded_.forward(compute); }
  void zero_grad(torch::optim::Optimizer& optimizer) override { optimizer.zero_grad(); }
  void without_reduction(const std::function<void()>& pass) override {
    const auto no_sync = sharded_.no_sync();
    pass();
  }
  void with_whole_parameters(const std::function<void()>& use) override {
    const auto whole = sharded_.full_parameters();
    use();
  }
  void synchronize_buffers() override { sharded_.synchronize_buffers(); }
  std::optional<Shards> save(TrainingState& state, torch::optim::Optimizer& optimizer, const Ema* ema,
                             bool /*here*/) override {
    if (!reads_shards()) {
      state.model = state_dict(module_);
      state.optimizer = sharded_optimizer_state_dict(optimizer, sharded_, module_, 0);
      if (ema != nullptr) state.ema = ema->state_dict();
      return std::nullopt;
    }
    const auto units = sharded_.units();
    Shards shards{make_shard_index(module_, units), {}};
    for (std::size_t unit = 0; unit < units.size(); ++unit) shards.add("model", unit, units[unit].shard);
    state.optimizer = add_optimizer_pieces(optimizer, sharded_, module_, shards);
    auto buffers = make_state();
    for (const auto& item : module_.named_buffers()) buffers.insert(item.key(), item.value());
    state.model = buffers;
    if (ema == nullptr) return shards;
    auto averages = ema->state_dict();
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      const auto key = "module." + shard_name(unit);
      shards.add("ema", unit, averages.at(key).toTensor());
      (void)averages.erase(key);
    }
    state.ema = averages;
    return shards;
  }
  bool reads_shards() const override { return run_.group.communicates(); }
  void load_shards(const TrainingState& state, const std::filesystem::path& source,
                   torch::optim::Optimizer& optimizer, Ema* ema) override {
    load_shards(state, source, "model");
    ShardReader reader(source, state.shards);
    load_optimizer_pieces(optimizer, sharded_, run_.group.rank(), state.optimizer, reader, source);
    if (ema == nullptr || !state.ema.isGenericDict()) return;
    auto averages = state.ema.toGenericDict().copy();
    for (std::size_t unit = 0; unit < sharded_.units().size(); ++unit)
      averages.insert("module." + shard_name(unit),
                      reader.shard("ema", sharded_.units()[unit], run_.group.rank()));
    ema->load_state_dict(averages);
  }
  void load_shards(const TrainingState& state, const std::filesystem::path& source,
                   const std::string& key) override {
    const torch::NoGradGuard no_grad;
    ShardReader reader(source, state.shards);
    const auto others = key == "ema" ? named_tensors(state.ema, "module.") : named_tensors(state.model);
    for (const auto& item : module_.named_buffers()) {
      const auto found = std::find_if(others.begin(), others.end(),
                                      [&](const auto& other) { return other.first == item.key(); });
      if (found == others.end() || found->second.sizes() != item.value().sizes())
        throw IoError(source, "its tensors do not fit the model: " + item.key() + " is missing or misshapen");
      item.value().copy_(found->second);
    }
    for (const auto& unit : sharded_.units())
      at::Tensor(unit.shard).copy_(reader.shard(key, unit, run_.group.rank()));
  }
  /// With several ranks a module's parameters have no memory most of the time, so shards are averaged.
  Ema::NamedTensors averaged_parameters() override {
    if (!reads_shards()) return ParallelEngine::averaged_parameters();
    Ema::NamedTensors shards;
    for (const auto& unit : sharded_.units()) shards.emplace_back(shard_name(shards.size()), unit.shard);
    return shards;
  }
  void load_averages(Ema& ema, const c10::IValue& state) override {
    if (!reads_shards()) return ParallelEngine::load_averages(ema, state);
    const DictReader from(state, "the weight average");
    auto own = state.toGenericDict().copy();
    std::map<std::string, at::Tensor> whole;
    for (const auto& [name, tensor] : named_tensors(state, "module.")) whole[name] = tensor;
    const auto shares = sharded_.share_out(whole);
    std::size_t trainable = 0, unit = 0;
    for (const auto& each : sharded_.units()) {
      const bool frozen = !each.shard.requires_grad();  // equal to its average
      own.insert("module." + shard_name(unit++), frozen ? each.shard : shares[trainable++]);
    }
    ema.load_state_dict(own);
  }
  void load_optimizer(torch::optim::Optimizer& optimizer, const c10::IValue& state,
                      const std::filesystem::path& source) override {
    load_sharded_optimizer_state(optimizer, sharded_, module_, state, source);
  }
  c10::impl::GenericDict own_model() override {
    auto own = make_state();
    for (const auto& unit : sharded_.units()) own.insert(shard_name(own.size()), unit.shard.detach());
    for (const auto& item : module_.named_buffers()) own.insert(item.key(), item.value());
    return own;
  }
  bool is_sharded() const override { return true; }

 private:
  static std::string shard_name(std::size_t unit) { return "shard " + std::to_string(unit); }

  ddp::FullyShardedDataParallel sharded_;
};

}  // namespace

std::unique_ptr<ParallelEngine> make_sharded_engine(const Run& run) {
  return std::make_unique<ShardedEngine>(run);
}

}  // namespace ddprun::train
