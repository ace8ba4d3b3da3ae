#include <ddprun/train/state/checkpoint.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/serialize/safetensors.h>
#include <ddprun/train/state/shard_index.h>

namespace ddprun::train {
namespace {

namespace fs = std::filesystem;
using c10::IValue;

constexpr std::int64_t kFormat = 1;
constexpr std::int64_t kMostBatches = 1 << 22;  // in a step
constexpr std::int64_t kShardedFormat = 2;      // of an index, which older workers cannot resume

IValue to_value(const std::vector<GeneratorState>& generators) {
  auto list = make_list();
  for (const auto& of_rank : generators) {
    auto dict = make_state();
    if (of_rank.cpu.defined()) dict.insert("cpu", of_rank.cpu);
    if (of_rank.cuda.defined()) dict.insert("cuda", of_rank.cuda);
    list.push_back(dict);
  }
  return list;
}

std::vector<GeneratorState> read_generators(const DictReader& root) {
  std::vector<GeneratorState> generators;
  for (const IValue& of_rank : root.list("generators")) {
    const DictReader devices(of_rank, "generators");
    GeneratorState state;
    for (const auto& [key, bytes] : {std::pair{"cpu", &state.cpu}, {"cuda", &state.cuda}}) {
      if (!devices.has(key)) continue;
      *bytes = devices.tensor(key);
      if (bytes->scalar_type() != at::kByte || bytes->dim() != 1)
        root.fail("'generators': expected bytes for each device");
    }
    generators.push_back(state);
  }
  return generators;
}

std::int64_t count(const DictReader& reader, const char* key) {
  const auto value = reader.integer(key);
  if (value < 0 || value > kMostCounted)
    reader.fail(std::string("'") + key + "': expected an integer >= 0, and at most " +
                std::to_string(kMostCounted) + ", got " + std::to_string(value));
  return value;
}

/// throws  std::invalid_argument naming the key that is missing or has the wrong type
TrainingState read_state(const IValue& value) {
  const DictReader root(value, "the run");
  if (!root.has("format"))
    root.fail(
        "expected 'format', got none; a run's checkpoints are in its folder checkpoints/ (for weights "
        "alone, use --init-weights)");
  if (const auto format = count(root, "format"); format != kFormat && format != kShardedFormat)
    root.fail("'format': expected 1 or 2, got " + std::to_string(format));
  TrainingState state;
  state.model = root.dict("model");
  (void)DictReader(root.dict("model"), "the run's model").names();  // else it throws
  state.optimizer = root.dict("optimizer");
  for (const auto& [key, part] :
       {std::pair{"lr_schedule", &state.lr_schedule}, {"scaler", &state.scaler}, {"ema", &state.ema}})
    if (root.has(key)) *part = root.dict(key);
  if (root.has("model_config")) state.model_config = root.text("model_config");
  if (root.has("shards")) state.shards = root.text("shards");
  if (root.has("run")) {
    const DictReader run(root.dict("run"), "the run's identity");
    state.identity = {run.text("id"), count(run, "branch")};
  }
  state.epoch = count(root, "epoch");
  state.step = count(root, "step");
  const DictReader position(root.dict("position"), "the run's position");
  state.position = {count(position, "epoch"), count(position, "samples")};
  state.world_size = count(root, "world_size");
  state.generators = read_generators(root);
  for (const auto& item : root.dict("callbacks"))
    if (item.key().isString()) state.callbacks.emplace(item.key().toStringRef(), item.value());
  const DictReader config(root.dict("config"), "the run's config");
  for (const char* key : {"accumulate", "batch_size"})
    if (root.dict("config").contains(key)) (void)config.positive(key);
  if (config.has("accumulate") && config.integer("accumulate") > kMostBatches)
    config.fail("'accumulate': expected at most " + std::to_string(kMostBatches));
  try {
    const auto json = to_json(root.dict("config"));
    state.config_json = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } catch (const std::invalid_argument& error) {
    root.fail(std::string("'config': ") + error.what());
  }
  return state;
}

bool is_state(const c10::IValue& value) {
  if (!value.isGenericDict()) return false;
  const auto dict = value.toGenericDict();
  return (dict.contains("format") && dict.contains("step")) ||
         (is_lightning(value) && dict.contains("optimizer_states") && dict.contains("loops"));
}

/// A state without identity, or of another run, is no part of the run's branches.
///
/// run  empty: there is no list, and the newest file with an identity says which run it is
void sort_newest_first(std::vector<StateFile>& files, std::string run) {
  std::ranges::sort(files, std::greater(), &StateFile::written);
  const auto newest =
      std::ranges::find_if(files, [](const auto& file) { return !file.identity.run.empty(); });
  const bool guessed = run.empty() && newest != files.end();
  if (guessed) run = newest->identity.run;
  std::int64_t last_branch = 0;
  for (auto& file : files) {
    if (file.identity.run != run) file.identity.branch = 0;
    last_branch = std::max(last_branch, file.identity.branch);
  }
  // It may be all that is left of a later branch.
  if (guessed && !files.front().problem.empty()) files.front().identity = {run, last_branch + 1};
  std::ranges::sort(files, std::greater(), [](const StateFile& file) {
    return std::tuple(file.identity.branch, !file.problem.empty(), file.step, file.position.epoch,
                      file.position.samples, file.written);
  });
}

constexpr const char* kAdvice =
    "; nothing here can be resumed and nothing was changed; give a file that can be read, or use "
    "--overwrite without --resume to start from scratch";

/// branch   the newest of which there is a state; 0: there is none at all
/// skipped  gets the newest state of that branch, if it is gone
/// throws   IoError if the list names states that are gone, of a later branch
void check_none_gone(const RunFolder& folder, std::int64_t branch, std::vector<std::string>& skipped) {
  for (const auto& file : folder.files()) {
    if (file.parent_path().filename() != "checkpoints" || !is_checkpoint_name(file)) continue;
    const std::string why =
        fs::exists(file) ? "is not the checkpoint that run.json lists" : "is gone, though run.json lists it";
    const bool was_newest = file.stem() == "last" && !fs::exists(file);  // the run itself never removes it
    if (branch == 0) throw IoError(file, why + kAdvice);
    if (was_newest && folder.branch_of(file) > branch)
      throw IoError(
          file, why + "; nothing was changed; --resume with another checkpoint continues that one's branch");
    if (was_newest) skipped.emplace_back(IoError(file, why).what());
  }
}

/// What to do if the newest branch cannot be continued. Of its files, none can be read.
std::string advice(const std::vector<StateFile>& files, const VerifyShards& verify) {
  for (const auto& file : files) try {
      if (file.is_beside(files.front()) || file.identity.branch == 0 || !file.problem.empty()) continue;
      read_and_verify(file.path, verify);
      return "; nothing was changed; --resume " + file.path.string() + " continues an earlier branch";
    } catch (const IoError&) {
    }
  return kAdvice;
}

}  // namespace

IValue to_value(const TrainingState& state) {
  const auto text = [](const std::string& value) { return value.empty() ? IValue() : IValue(value); };
  auto callbacks = make_state();
  for (const auto& [name, callback] : state.callbacks) callbacks.insert(name, callback);
  auto root = make_state(
      {{"format", state.shards.empty() ? kFormat : kShardedFormat},
       {"model", state.model},
       {"optimizer", state.optimizer},
       {"lr_schedule", state.lr_schedule},
       {"scaler", state.scaler},
       {"ema", state.ema},
       {"shards", text(state.shards)},
       {"model_config", text(state.model_config)},
       {"run", state.identity.run.empty()
                   ? IValue()
                   : IValue(make_state({{"id", state.identity.run}, {"branch", state.identity.branch}}))},
       {"epoch", state.epoch},
       {"step", state.step},
       {"position", make_state({{"epoch", state.position.epoch}, {"samples", state.position.samples}})},
       {"world_size", state.world_size},
       {"generators", to_value(state.generators)},
       {"callbacks", callbacks},
       {"config", to_value(nlohmann::json::parse(state.config_json))}});
  for (const char* key : {"lr_schedule", "scaler", "ema", "shards", "model_config", "run"})
    if (root.at(key).isNone()) (void)root.erase(key);
  return root;
}

IValue to_file_value(const TrainingState& state, const fs::path& path) {
  return path.extension() == ".ckpt" && state.shards.empty() ? to_lightning(state) : to_value(state);
}

TrainingState to_training_state(const IValue& value, const std::filesystem::path& source) try {
  return read_state(from_lightning(value));
} catch (const std::invalid_argument& error) {
  throw IoError(source, std::string("cannot be resumed: ") + error.what());
}

void save_checkpoint(const std::filesystem::path& path, const TrainingState& state) {
  create_folders(path.parent_path());
  serialize::write_pt(path, to_file_value(state, path));
}

TrainingState read_checkpoint(const std::filesystem::path& path) {
  return to_training_state(serialize::read_pt(path), path);
}

std::optional<TrainingState> read_if_checkpoint(const std::filesystem::path& path, bool with_tensors) {
  if (serialize::is_safetensors(path)) return std::nullopt;
  const auto value = with_tensors ? serialize::read_pt(path) : serialize::peek_pt(path);
  return is_state(value) ? std::optional(to_training_state(value, path)) : std::nullopt;
}

TrainingState read_and_verify(const std::filesystem::path& path, const VerifyShards& verify) {
  auto state = read_checkpoint(path);
  if (!state.shards.empty()) verify ? verify(path, state.shards) : ShardReader(path, state.shards).verify();
  return state;
}

TrainingState read_weights_of_checkpoint(const std::filesystem::path& path) {
  auto state = to_training_state(serialize::read_pt(path, {"model", "ema", "state_dict", "ddprun"}), path);
  gather_shards(state, path, {"model", "ema"});
  return state;
}

bool is_checkpoint_name(const fs::path& file) {
  const auto extension = file.extension();
  return (extension == ".pt" || extension == ".ckpt") && !file.filename().string().starts_with('.');
}

std::vector<fs::path> checkpoint_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (is_checkpoint_name(entry->path()) && !fs::is_directory(entry->path(), ignored))
      files.push_back(entry->path());
  }
  if (error && error != std::errc::no_such_file_or_directory)
    throw IoError(folder, "cannot be searched for checkpoints", error.value());
  return files;
}

std::optional<StateFile> peek_state(const fs::path& path, const RunFolder& folder) {
  StateFile file;
  file.path = path;
  if (const auto branch = folder.branch_of(path); branch > 0) file.identity = {folder.identity().run, branch};
  std::error_code ignored;
  file.written = fs::last_write_time(path, ignored);
  try {
    const auto value = serialize::peek_pt(path);
    if (!is_state(value)) return std::nullopt;
    const auto state = to_training_state(value, path);
    file.identity = state.identity;
    file.step = state.step;
    file.position = state.position;
    if (!state.shards.empty()) file.shards = ShardReader(path, state.shards).index().folder;
  } catch (const IoError& error) {
    file.problem = error.what();
  }
  return file;
}

std::vector<StateFile> state_files(const RunFolder& folder) {
  std::vector<StateFile> files;
  for (const auto& path : checkpoint_files(folder.checkpoints()))
    if (auto file = peek_state(path, folder)) files.push_back(*std::move(file));
  sort_newest_first(files, folder.identity().run);
  return files;
}

bool is_newest_state(const fs::path& run_folder, const fs::path& file) {
  const auto files = state_files(RunFolder(run_folder));
  if (files.empty() || fs::equivalent(file, files.front().path)) return true;
  std::ifstream one(file, std::ios::binary), other(files.front().path, std::ios::binary);
  using Bytes = std::istreambuf_iterator<char>;
  return std::equal(Bytes(one), Bytes(), Bytes(other), Bytes());
}

std::vector<StateFile> own_states(const RunFolder& folder, std::vector<std::string>& skipped) {
  auto files = state_files(folder);
  if (const auto run = folder.identity().run; !run.empty()) {
    const auto is_own = [&](const StateFile& file) { return file.identity.run == run; };
    const auto newest = std::ranges::find_if(files, is_own);
    check_none_gone(folder, newest == files.end() ? 0 : newest->identity.branch, skipped);
    std::erase_if(files, [&](const auto& file) { return !file.identity.run.empty() && !is_own(file); });
    return files;
  }
  for (const auto& file : files)
    if (!file.identity.run.empty() && file.identity.run != files.front().identity.run)
      throw IoError(folder.path(), "has no run.json, and checkpoints of two runs, " +
                                       files.front().path.string() + " and " + file.path.string() +
                                       "; give one of these files instead");
  return files;
}

ResumePoint find_resume(const fs::path& run_folder, const VerifyShards& verify, const RunIdentity& since) {
  const RunFolder folder(run_folder);
  ResumePoint result;
  auto files = since.run.empty() ? own_states(folder, result.skipped) : state_files(folder);
  if (!since.run.empty())
    std::erase_if(files, [&](const StateFile& file) {
      return file.identity.run != since.run || file.identity.branch < since.branch;
    });
  for (const auto& file : files) try {
      if (!file.is_beside(files.front())) break;
      if (!file.problem.empty()) {
        result.skipped.push_back(file.problem);
        continue;
      }
      result.state = read_and_verify(file.path, verify);
      result.path = file.path;
      return result;
    } catch (const IoError& error) {
      result.skipped.emplace_back(error.what());
    }
  if (!result.skipped.empty()) throw IoError(run_folder, result.skipped.front() + advice(files, verify));
  return result;
}

CheckpointWriter::~CheckpointWriter() {
  ending_ = true;
  wait();
}

void CheckpointWriter::write(const TrainingState& state, Request request) {
  flush();
  staged_ =
      serialize::stage(to_file_value(state, request.paths.empty() ? "" : request.paths.front()), memory_);
  writing_ = std::async(std::launch::async, [this, request = std::move(request)] { carry_out(request); });
}

void CheckpointWriter::wait() const {
  if (writing_.valid()) writing_.wait();
}

bool CheckpointWriter::busy() const {
  return writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void CheckpointWriter::flush() {
  if (writing_.valid()) writing_.get();
}

void CheckpointWriter::release_memory() {
  wait();
  staged_ = {};
  memory_ = {};
}

void CheckpointWriter::carry_out(const Request& request) {
  wrote_first_ = false;
  if (request.finish_shards)
    staged_.toGenericDict().insert_or_assign("shards",
                                             request.finish_shards([this] { return ending_.load(); }));
  auto doomed = request.doomed;  // once the first is there: the next may need the space
  std::erase_if(doomed, [&](const auto& file) {
    return std::ranges::find(request.paths, file) != request.paths.end();
  });
  for (const auto& path : request.paths) {
    folder_.make_way(path, doomed);
    serialize::write_pt(path, staged_);  // and verified
    wrote_first_ = true;
    folder_.wrote(path, std::exchange(doomed, {}));
  }
  if (request.paths.empty()) return;
  folder_.remove_unused_shards();
  if (!request.asked_for) folder_.remove_replaced();
}

}  // namespace ddprun::train
