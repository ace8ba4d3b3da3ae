#include <ddprun/train/state/checkpoint.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include <ddprun/serialize/dict_reader.h>

namespace ddprun::train {
namespace {

using c10::IValue;
using c10::impl::GenericDict;

constexpr const char* kVersion = "pytorch-lightning_version";
constexpr const char* kOurs = "ddprun";
constexpr const char* kScaler = "MixedPrecision";  // the plugin that owns the state
/// Parts of a state that have their own places in Lightning.
constexpr const char* kTheirs[] = {"model", "optimizer", "lr_schedule", "scaler"};

IValue list_of(const IValue& value) { return value.isNone() ? make_list() : make_list({value}); }

// -- Lightning's progress: how many epochs, batches, steps were ready, started, processed and completed --

GenericDict counts(std::initializer_list<const char*> of, std::int64_t count) {
  auto dict = make_state();
  for (const char* event : of) dict.insert(event, count);
  return dict;
}

GenericDict progress(std::initializer_list<const char*> of, std::int64_t total, std::int64_t current) {
  return make_state({{"total", counts(of, total)}, {"current", counts(of, current)}});
}

GenericDict epoch_progress(std::int64_t begun, std::int64_t ended) {
  auto whole = progress({"ready", "started"}, begun, begun);
  for (const auto& item : whole)
    for (const char* event : {"processed", "completed"}) item.value().toGenericDict().insert(event, ended);
  return whole;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// A rank's batches of the epoch so far; between epochs, all of them.
std::int64_t batches_of(const TrainingState& state, const nlohmann::json& config) {
  if (state.world_size == 0) return state.position.samples;  // another program's
  const auto batch_size = config.value("batch_size", std::int64_t{1});
  auto samples = state.position.samples;
  const auto trainer = state.callbacks.find("Trainer");
  if (samples == 0 && trainer != state.callbacks.end() && trainer->second.isGenericDict())
    if (const auto kept = trainer->second.toGenericDict();
        kept.contains("train_examples") && kept.at("train_examples").isInt())
      samples = std::clamp(kept.at("train_examples").toInt(), std::int64_t{0}, kMostCounted);
  return ceil_div(ceil_div(samples, state.world_size), batch_size);
}

GenericDict fit_loop(const TrainingState& state) {
  const auto config = nlohmann::json::parse(state.config_json);
  const bool between = state.position.samples == 0;
  const auto accumulate = config.value("accumulate", std::int64_t{1});
  const auto batches = batches_of(state, config), steps = ceil_div(batches, accumulate);
  auto batch_progress = progress({"ready", "started", "processed", "completed"},
                                 std::max(batches, state.step * accumulate), batches);
  batch_progress.insert("is_last_batch", between);
  const auto optimizer =
      make_state({{"step", progress({"ready", "completed"}, state.step, steps)},
                  {"zero_grad", progress({"ready", "started", "completed"}, state.step, steps)}});
  return make_state(
      {{"state_dict", make_state()},
       {"epoch_progress", epoch_progress(state.position.epoch + (between ? 0 : 1), state.position.epoch)},
       {"epoch_loop.state_dict", make_state({{"_batches_that_stepped", state.step}})},
       {"epoch_loop.batch_progress", batch_progress},
       {"epoch_loop.automatic_optimization.state_dict", make_state()},
       {"epoch_loop.automatic_optimization.optim_progress", make_state({{"optimizer", optimizer}})},
       {"epoch_loop.val_loop.state_dict", make_state()}});
}

/// What a LightningModule's arguments may need: the configuration without unset values.
GenericDict hyper_parameters(const IValue& config) {
  auto parameters = make_state();
  for (const auto& item : config.toGenericDict())
    if (!item.value().isNone()) parameters.insert(item.key(), item.value());
  if (parameters.contains("lr")) parameters.insert("learning_rate", parameters.at("lr"));
  return parameters;
}

/// Lightning names a callback after its arguments: "EarlyStopping{'monitor': ...}".
bool is_theirs(const std::string& callback) { return callback.find('{') != std::string::npos; }

// -- and back --

/// The settings that the states of another program's optimizer and schedule imply, as a configuration.
GenericDict implied_config(const IValue& optimizer, const IValue& schedule) {
  auto config = make_state();
  const auto groups = DictReader(optimizer, "optimizer").list("param_groups");
  if (groups.empty()) return config;
  const DictReader group(groups[0], "optimizer: parameter group 0");
  config.insert("lr", group.number(group.has("initial_lr") ? "initial_lr" : "lr"));
  config.insert("scale_lr", "none");  // it already applies to all ranks
  for (const char* key : {"momentum", "weight_decay"})
    if (group.has(key)) config.insert(key, group.number(key));
  if (schedule.isNone()) config.insert("lr_schedule", "none");
  if (!schedule.isGenericDict()) return config;
  auto own = schedule;
  if (const DictReader both(schedule, "the learning rate schedule"); both.has("_milestones")) {
    const auto schedulers = both.list("_schedulers");
    const auto milestones = both.numbers("_milestones");
    if (schedulers.size() != 2 || milestones.size() != 1) return config;  // else a schedule after a warm-up
    config.insert("warmup_steps", static_cast<std::int64_t>(milestones[0]));
    own = schedulers[1];
  }
  const DictReader state(own, "the learning rate schedule");
  for (const auto& [key, kind, factor] : {std::tuple{"T_max", "cosine", ""},
                                          {"step_size", "step", "gamma"},
                                          {"total_steps", "one-cycle", ""},
                                          {"num_bad_epochs", "plateau", "factor"}}) {
    if (!state.has(key)) continue;
    config.insert("lr_schedule", kind);
    if (*factor != '\0') config.insert("gamma", state.number(factor));
  }
  for (const auto& [key, setting] :
       {std::pair{"T_max", "t_max"}, {"step_size", "step_size"}, {"patience", "plateau_patience"}})
    if (state.has(key)) config.insert(setting, state.integer(key));
  return config;
}

/// The parts of a state found in another program's file, with the position of Lightning's loops.
GenericDict state_of_others(const DictReader& root, const IValue& optimizer, const IValue& schedule) {
  const DictReader loops(root.dict("loops"), "Lightning's loops");
  const DictReader fit(loops.dict("fit_loop"), "Lightning's fit_loop");
  const auto current = [&](const char* key) {
    return DictReader(DictReader(fit.dict(key), key).dict("current"), key);
  };
  const auto epochs = current("epoch_progress");
  std::int64_t epoch = epochs.integer("processed"), batches = 0;
  if (epochs.integer("started") > epoch) {  // an epoch ends after its validation
    const DictReader batch(fit.dict("epoch_loop.batch_progress"), "Lightning's batch_progress");
    if (batch.boolean("is_last_batch"))
      ++epoch;
    else
      batches = current("epoch_loop.batch_progress").integer("processed");
  }
  return make_state({{"format", 1},
                     {"epoch", batches == 0 ? std::max<std::int64_t>(0, epoch - 1) : epoch},
                     {"step", root.integer("global_step")},
                     {"position", make_state({{"epoch", epoch}, {"samples", batches}})},
                     {"world_size", 0},
                     {"generators", make_list()},
                     {"callbacks", make_state()},
                     {"config", implied_config(optimizer, schedule)}});
}

IValue only(const DictReader& root, const char* key) {
  const auto states = root.list(key);
  if (states.size() > 1)
    root.fail(std::string("'") + key + "': expected one, got " + std::to_string(states.size()));
  return states.empty() ? IValue() : states[0];
}

GenericDict without_prefix(const GenericDict& weights, const std::string& prefix) {
  auto plain = make_state();
  const DictReader reader(weights, "the run's 'state_dict'");
  for (const auto& name : reader.names())
    plain.insert(name.starts_with(prefix) ? name.substr(prefix.size()) : name, reader.tensor(name));
  return plain;
}

}  // namespace

IValue to_lightning(const TrainingState& state) {
  auto rest = to_value(state).toGenericDict();
  auto weights = make_state(), theirs = make_state(), ours = make_state();
  for (const auto& item : state.model.toGenericDict())
    weights.insert(state.prefix + item.key().toStringRef(), item.value());
  for (const auto& [name, callback] : state.callbacks)
    (is_theirs(name) ? theirs : ours).insert(name, callback);
  auto root = make_state({{"epoch", state.epoch},
                          {"global_step", state.step},
                          {kVersion, "2.0.0"},  // the format has not changed since
                          {"state_dict", weights},
                          {"hparams_name", "kwargs"},
                          {"hyper_parameters", hyper_parameters(rest.at("config"))}});
  if (state.optimizer.isNone()) return root;
  const auto loop = make_state({{"state_dict", make_state()}});
  root.insert("loops", make_state({{"fit_loop", fit_loop(state)},
                                   {"validate_loop", loop},
                                   {"test_loop", loop.copy()},
                                   {"predict_loop", loop.copy()}}));
  root.insert("callbacks", theirs);
  root.insert("optimizer_states", list_of(state.optimizer));
  root.insert("lr_schedulers", list_of(state.lr_schedule));
  if (!state.scaler.isNone()) root.insert(kScaler, state.scaler);
  for (const char* key : kTheirs) (void)rest.erase(key);
  rest.insert_or_assign("callbacks", ours);
  rest.insert("prefix", state.prefix);
  root.insert(kOurs, rest);
  return root;
}

bool is_lightning(const IValue& value) {
  if (!value.isGenericDict()) return false;
  const auto dict = value.toGenericDict();
  return dict.contains(kVersion) && dict.contains("state_dict");
}

bool is_our_lightning(const IValue& value) {
  return is_lightning(value) && value.toGenericDict().contains(kOurs);
}

IValue from_lightning(const IValue& value) {
  if (!is_lightning(value)) return value;
  const DictReader root(value, "the run");
  if (!root.has("optimizer_states") || !root.has("loops")) return value;  // weights only
  const auto optimizer = only(root, "optimizer_states");
  const auto schedule = root.has("lr_schedulers") ? only(root, "lr_schedulers") : IValue();
  const bool ours = root.has(kOurs);
  auto state = ours ? root.dict(kOurs).copy() : state_of_others(root, optimizer, schedule);
  const DictReader reader(state, "the run");
  state.insert("model",
               without_prefix(root.dict("state_dict"), reader.has("prefix") ? reader.text("prefix") : ""));
  state.insert("optimizer", optimizer);
  if (!schedule.isNone()) state.insert("lr_schedule", schedule);
  if (root.has(kScaler)) state.insert("scaler", root.at(kScaler));
  const auto callbacks = reader.dict("callbacks").copy();
  if (root.has("callbacks"))
    for (const auto& item : root.dict("callbacks")) callbacks.insert(item.key(), item.value());
  state.insert_or_assign("callbacks", callbacks);
  return state;
}

}  // namespace ddprun::train
