#include <ddprun/train/loop/checkpoint_saver.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/group/collectives.h>
#include <ddprun/serialize/dict_reader.h>

namespace ddprun::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTrainer = "Trainer";
constexpr const char* kExamples = "train_examples";  // this and the next three belong to the trainer
constexpr const char* kEvaluating = "evaluating";
constexpr const char* kRows = "rows";
constexpr const char* kMetrics = "metrics";
constexpr const char* kSeconds = "seconds";
constexpr const char* kSpent = "spent";
constexpr const char* kTraining = "training";  // in it
constexpr const char* kLimits = "limits";
constexpr const char* kTrained = "trained";
constexpr const char* kStop = "stop";
constexpr const char* kPolicy = "ModelCheckpoint";
constexpr const char* kEarlyStopping = "EarlyStopping";

/// Every rank's figures, by rank.
///
/// alone  only this rank's; the others' are empty
c10::IValue values_by_rank(const ddp::ProcessGroup& group, const std::vector<double>& values, bool alone) {
  std::vector<c10::IValue> ranks;
  for (int rank = 0; rank < group.size(); ++rank) ranks.emplace_back(make_list());
  for (const double value : values) {
    if (alone) {
      ranks[static_cast<std::size_t>(group.rank())].toList().push_back(value);
      continue;
    }
    const auto of_ranks = ddp::all_gather(group, value);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank].toList().push_back(of_ranks[rank]);
  }
  return make_list(ranks);
}

c10::impl::GenericDict sums_by_rank(const ddp::ProcessGroup& group, const EpochSums& sums, bool alone) {
  return make_state({{"totals", values_by_rank(group, sums.totals.sums(), alone)},
                     {"losses", values_by_rank(group, {sums.losses.sum(), sums.losses.batches()}, alone)}});
}

/// What the trainer kept; empty in older checkpoints, or if another program wrote the file.
DictReader kept_by_trainer(const TrainingState& state) {
  const auto kept = state.callbacks.find(kTrainer);
  const bool ours = kept != state.callbacks.end() && kept->second.isGenericDict();
  return {ours ? kept->second.toGenericDict() : make_state(), "the trainer"};
}

std::optional<std::int64_t> number_of(const TrainingState& state, const char* key) {
  const auto kept = kept_by_trainer(state);
  return kept.has(key) ? std::optional(kept.integer(key)) : std::nullopt;
}

/// A callback and what it judges by, as the beginning of Lightning's key.
std::string key_by_metric(const std::string& callback, const Run& run) {
  return callback + "{'monitor': '" + run.monitor + "', 'mode': '" +
         (run.mode == MonitorMode::kMax ? "max" : "min") + "'";
}

/// A callback's key in a checkpoint, Lightning's for those that it has too.
std::string key_of(const std::string& callback, const Run& run) {
  const bool policy = callback == kPolicy;
  if (!policy && callback != kEarlyStopping) return callback;
  return key_by_metric(callback, run) +
         (policy ? ", 'every_n_train_steps': 0, 'every_n_epochs': 1, 'train_time_interval': None" : "") + "}";
}

/// Whether the state under a plain name, as ours once was, judges by this run's metric.
bool is_by_metric(const TrainingState& state, const Run& run) {
  const auto policy = state.callbacks.find(kPolicy);
  if (policy == state.callbacks.end() || !policy->second.isGenericDict()) return true;
  const auto dict = policy->second.toGenericDict();
  return !dict.contains("monitor") || !dict.at("monitor").isString() ||
         dict.at("monitor").toStringRef() == run.monitor;
}

/// A callback's state, ours or Lightning's, if it judges by this run's metric; else None.
c10::IValue callback_state(const TrainingState& state, const std::string& callback, const Run& run) {
  const auto plain = state.callbacks.find(callback);
  if (plain != state.callbacks.end() && is_by_metric(state, run)) return plain->second;
  const auto wanted = key_by_metric(callback, run);
  const auto found = state.callbacks.lower_bound(wanted);
  if (found != state.callbacks.end() && found->first.starts_with(wanted)) return found->second;
  const auto other = state.callbacks.lower_bound(callback);
  if (run.on_rank_0() && other != state.callbacks.end() && other->first.starts_with(callback))
    log_info("resume: the checkpoint's " + callback + " uses a metric other than " + run.monitor +
             ": it starts again");
  return {};
}

/// This rank's values; empty if there are none.
std::vector<double> values_of(const TrainingState& state, const char* key, const ddp::ProcessGroup& group) {
  const auto kept = kept_by_trainer(state);
  if (!kept.has(key)) return {};
  const auto ranks = kept.list(key);
  std::vector<double> own;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto values = DictReader(make_state({{key, ranks[rank]}}), "the trainer").numbers(key);
    const bool same_world = static_cast<int>(ranks.size()) == group.size();
    if (same_world && static_cast<int>(rank) == group.rank()) return values;
    // With another number of ranks, the first rank takes the sum.
    own.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      if (group.rank() == 0) own[i] += values[i];
  }
  return own;
}

}  // namespace

bool Resumed::is_in(const fs::path& run_folder) const {
  std::error_code error;
  return fs::equivalent(fs::canonical(path, error).parent_path(), run_folder / "checkpoints", error);
}

std::string limits_of(const Run& run) {
  const auto& options = run.options;
  std::ostringstream text;
  text.precision(17);
  text << options.epochs << ' ' << options.max_steps << ' ' << options.max_seconds << ' '
       << options.checkpoint.patience << ' ' << options.checkpoint.min_delta << ' ' << run.monitor << ' '
       << static_cast<int>(run.mode);
  return text.str();
}

void check_kept(const Resumed& resumed, const Run& run) try {
  const auto& state = resumed.state;
  for (const char* key : {kExamples, kRows}) number_of(state, key);
  for (const char* key : {"losses", "totals"}) values_of(state, key, run.group);
  evaluating_of(state);
  metrics_of(state);
  before_resume(state, run);
} catch (const std::invalid_argument& error) {
  throw IoError(resumed.source(), error.what());
}

std::optional<std::int64_t> examples_of(const TrainingState& state) { return number_of(state, kExamples); }

Evaluating evaluating_of(const TrainingState& state) {
  const auto kept = number_of(state, kEvaluating).value_or(0);
  if (kept < 0 || kept > static_cast<std::int64_t>(Evaluating::kEpoch))
    kept_by_trainer(state).fail("'evaluating': expected 0 to 2, got " + std::to_string(kept));
  return static_cast<Evaluating>(kept);
}

std::optional<std::int64_t> rows_of(const TrainingState& state) { return number_of(state, kRows); }

report::MetricRow metrics_of(const TrainingState& state) {
  report::MetricRow row;
  const auto kept = kept_by_trainer(state);
  if (!kept.has(kMetrics)) return row;
  const DictReader values(kept.dict(kMetrics), "the trainer's metrics");
  for (const auto& name : values.names()) row.emplace_back(name, values.number(name));
  return row;
}

SoFar before_resume(const TrainingState& state, const Run& run) {
  SoFar so_far;
  const auto kept = kept_by_trainer(state);
  if (kept.has(kSeconds)) so_far.seconds = kept.number(kSeconds);
  if (kept.has(kSpent)) {
    const auto parts = kept.dict(kSpent);
    const DictReader spent(parts, "the trainer's times");
    for (const auto& [name, part] : kLedgerParts)
      if (spent.has(name)) so_far.spent.*part = spent.number(name);
    if (spent.has(kTraining)) so_far.training_seconds = spent.number(kTraining);
  }
  if (kept.has(kTrained)) so_far.trained = kept.boolean(kTrained);
  const bool same = kept.has(kLimits) && kept.text(kLimits) == limits_of(run);
  if (same && kept.has(kStop)) so_far.stop_reason = kept.text(kStop);
  if (run.options.max_seconds > 0 && so_far.seconds >= run.options.max_seconds && !so_far.stop_reason)
    so_far.stop_reason = kTimeIsUp;
  return so_far;
}

void load_sums(const EpochSums& sums, const Resumed& resumed, const ddp::ProcessGroup& group) {
  const auto losses = values_of(resumed.state, "losses", group);
  if (losses.size() == 2) sums.losses = {losses[0], losses[1]};
  const auto totals = values_of(resumed.state, "totals", group);
  if (totals.empty()) return;
  try {
    sums.totals.set_sums(totals);
  } catch (const std::invalid_argument& error) {
    throw IoError(resumed.source(), error.what());
  }
}

CheckpointSaver::CheckpointSaver(const Run& run, ParallelModel& model, const Callbacks& callbacks,
                                 RunRecord* record)
    : run_(run), model_(model), callbacks_(callbacks), record_(record) {
  if (record_ == nullptr) return;
  const auto& checkpoint = run.options.checkpoint;
  last_path_ = record_->checkpoint_folder() / ("last" + checkpoint.extension);
  if (checkpoint.top_k == 0) return;
  const CheckpointPolicyOptions policy{.folder = record_->checkpoint_folder(),
                                       .filename = checkpoint.filename,
                                       .extension = checkpoint.extension,
                                       .monitor = run.monitor,
                                       .mode = run.mode,
                                       .save_top_k = checkpoint.top_k,
                                       .resumed_from = checkpoint.resume == "auto" ? "" : checkpoint.resume};
  policy_.emplace(policy, [&folder = record_->folder()](const fs::path& path) {
    return fs::exists(path) && !folder.is_foreign(path);
  });
}

void CheckpointSaver::resume(const Resumed& resumed) {
  const auto& state = resumed.state;
  if (resumed.path.empty() && run_.in_memory.parts)
    model_.load_part(state);
  else
    model_.load(state, resumed.source());
  if (static_cast<int>(state.generators.size()) == run_.group.size()) try {
      set_generator_state(state.generators[static_cast<std::size_t>(run_.group.rank())], run_.group.device());
    } catch (const std::invalid_argument& error) {
      throw IoError(resumed.source(), error.what());
    }
  const auto restore = [&](const std::string& name, const auto& load) {
    const auto kept = name.empty() ? c10::IValue() : callback_state(state, name, run_);
    if (!kept.isGenericDict()) return;
    try {
      load(kept.toGenericDict());
    } catch (const std::invalid_argument& error) {
      throw IoError(resumed.source(), name + ": " + error.what());
    }
  };
  for (const auto& callback : callbacks_)
    restore(callback->name(), [&](const auto& dict) { callback->load_state_dict(dict); });
  if (!policy_) return;
  resumed_ = state.identity;
  resumed_step_ = state.step;
  // In a copy of the run that was trained on, other files have the same names.
  const bool same_run =
      !resumed_.run.empty() && resumed_.run == run_.identity.run &&
      (resumed.path.empty() || resumed.is_newest || resumed.is_in(record_->folder().path()));
  restore(kPolicy, [&](const auto& dict) { policy_->load_state_dict(dict, same_run); });
  forget_others();
}

/// Someone removed or replaced them, a branch has used their names, or the disk was too full to write them.
void CheckpointSaver::forget_others() {
  const auto& folder = record_->folder();
  const auto is_kept = [&](const fs::path& path) {
    if (folder.branch_of(path) == run_.identity.branch) return fs::exists(path);
    const auto file = peek_state(path, folder);
    return file ? file->leads_to(resumed_, resumed_step_) : !folder.is_foreign(path);
  };
  for (const auto& path : policy_->forget_unless(is_kept))
    log_warning(path.string() +
                ": this best checkpoint no longer counts: it is gone, or another one has its name");
}

CheckpointWriter::Request CheckpointSaver::plan(const TrainState& state, Occasion occasion) {
  CheckpointWriter::Request request{.paths = {}, .asked_for = occasion == Occasion::kRequest};
  if (policy_) {
    const auto plan = policy_->plan(state.metrics, state.epoch, state.step, occasion);
    request.paths.push_back(plan.write);
    request.doomed.push_back(plan.remove);
  }
  if (run_.options.checkpoint.save_last || occasion == Occasion::kRequest || occasion == Occasion::kEnd)
    request.paths.push_back(last_path_);
  std::erase_if(request.paths, [](const auto& path) { return path.empty(); });
  return request;
}

TrainingState CheckpointSaver::begin_state(const TrainState& at, const Position& position) const {
  return {.epoch = at.epoch,
          .step = at.step,
          .config_json = run_.options.config_json,
          .position = position,
          .world_size = run_.group.size(),
          .prefix = run_.options.checkpoint.prefix,
          .identity = run_.identity};
}

void CheckpointSaver::add_callbacks(TrainingState& state) const {
  for (const auto& callback : callbacks_)
    if (!callback->name().empty()) state.callbacks[key_of(callback->name(), run_)] = callback->state_dict();
  if (policy_) state.callbacks[key_of(kPolicy, run_)] = policy_->state_dict();
}

void CheckpointSaver::add_trainer(c10::impl::GenericDict& own, const TrainState& at,
                                  const SoFar& so_far) const {
  own.insert(kExamples, run_.task.train_set->size());
  own.insert(kEvaluating, static_cast<std::int64_t>(at.evaluating));
  auto metrics = make_state();
  for (const auto& [name, value] : at.metrics) metrics.insert(name, value);
  own.insert(kMetrics, metrics);
  own.insert(kSeconds, so_far.seconds);
  auto spent = make_state();
  for (const auto& [name, part] : kLedgerParts) spent.insert(name, so_far.spent.*part);
  spent.insert(kTraining, so_far.training_seconds);
  own.insert(kSpent, spent);
  own.insert(kTrained, so_far.trained);
  own.insert(kLimits, limits_of(run_));
  if (so_far.stop_reason) own.insert(kStop, *so_far.stop_reason);
}

TrainingState CheckpointSaver::state_alone(const TrainState& at, const Position& position,
                                           const SoFar& so_far, const std::optional<EpochSums>& part) {
  TrainingState state = begin_state(at, position);
  part ? model_.save_part(state) : model_.save_alone(state);
  auto own = part ? sums_by_rank(run_.group, *part, /*alone=*/true) : make_state();
  if (part && record_ != nullptr) own.insert(kRows, record_->rows());
  add_trainer(own, at, so_far);
  state.callbacks[kTrainer] = own;
  add_callbacks(state);
  return state;
}

bool CheckpointSaver::save(const TrainState& at, const Position& position, const EpochSums& sums,
                           const SoFar& so_far, Occasion occasion, const std::filesystem::path& weights) {
  const SecondsAdded stall(stall_seconds_);
  TrainingState state = begin_state(at, position);
  auto shards = model_.save(state);
  const auto bare =
      weights.empty() ? c10::IValue() : model_.with_averages([this] { return model_.whole_weights(); });
  state.generators = gather_generator_states(run_.group);
  auto own = sums_by_rank(run_.group, sums, /*alone=*/false);
  add_trainer(own, at, so_far);
  state.callbacks[kTrainer] = own;
  if (record_ == nullptr) {
    CheckpointWriter::Request of_rank_0;
    if (shards) write_shards(state, std::move(*shards), of_rank_0);
    return false;
  }
  own.insert(kRows, record_->rows());
  const bool wrote_weights = !weights.empty() && record_->save_weights(weights, bare);
  record_->settle();  // the previous plan has been carried out or undone
  const auto before = policy_;
  auto request = plan(at, occasion);
  const bool is_due = !request.paths.empty();
  if (shards) write_shards(state, std::move(*shards), request);
  if (request.paths.empty()) {
    if (is_due) policy_ = before;
    return wrote_weights;
  }
  add_callbacks(state);
  record_->save(state, std::move(request), [this, before] { policy_ = before; });
  return wrote_weights;
}

/// Every rank calls it; rank 0's request says whether there is a checkpoint, and then waits for the shards.
void CheckpointSaver::write_shards(TrainingState& state, Shards shards, CheckpointWriter::Request& request) {
  std::string text;  // the new folder, and those of removed shards: a path may have any character
  if (!request.paths.empty())
    for (const auto& path : record_->begin_shards(request.paths.front(), state.step))
      text += (text.empty() ? "" : std::string(1, '\0')) + path.string();
  text = ddp::broadcast_from_rank_0(run_.group, text);
  if (text.empty()) return request.paths.clear();
  const auto folders = split(text, '\0');
  const fs::path folder = folders.front();
  // On a host with a disk of its own nobody else would remove these.
  for (std::size_t i = 1; i < folders.size() && record_ == nullptr; ++i) remove_shards(folders[i]);
  if (!shard_writer_) shard_writer_.emplace(run_.group);
  shard_writer_->write(folder, shards.tensors);
  shards.tensors.clear();
  shards.index.folder = folder.filename().string();
  state.shards = to_text(shards.index);
  request.finish_shards = [index = std::move(shards.index),
                           finished = shard_writer_->finished()](const auto& give_up) mutable {
    index.checksums = finished(give_up);
    return to_text(index);
  };
}

void CheckpointSaver::wait() {
  const SecondsAdded stall(stall_seconds_);
  if (record_ != nullptr) record_->flush();
}

std::filesystem::path CheckpointSaver::best_path() {
  std::string path;
  if (policy_) {
    wait();
    forget_others();
    path = policy_->best_path().string();
  }
  return ddp::broadcast_from_rank_0(run_.group, path);
}

std::filesystem::path CheckpointSaver::best_path_without(const std::filesystem::path& damaged,
                                                         const std::string& problem) {
  if (policy_) {
    log_warning(problem + "; this best checkpoint no longer counts: delete it, or put an intact copy there");
    policy_->forget_unless([&](const auto& path) { return path != damaged; });
  }
  return best_path();
}

}  // namespace ddprun::train
