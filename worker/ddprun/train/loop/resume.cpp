#include <ddprun/train/loop/resume.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/moved_files.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/group/collectives.h>
#include <ddprun/train/record/run_report.h>
#include <ddprun/train/state/shard_writer.h>

namespace ddprun::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRunList = "run.json";
constexpr auto kReadable = fs::directory_options::skip_permission_denied;

/// Where an --overwrite was moving the run that belongs here. Empty: there was none. throws IoError
fs::path half_replaced(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_regular_file(folder / RunFolder::kMoving, error) || !RunFolder(folder).identity().run.empty())
    return {};
  const auto name = read_file(folder / RunFolder::kMoving);
  const bool known = name.starts_with("replaced-") && fs::path(name).filename() == name;
  return known && fs::is_directory(folder / name, error) ? folder / name : fs::path();
}

/// All or nothing. throws IoError
void put_back(const fs::path& folder) {
  if (half_replaced(folder).empty()) return;
  auto lock = lock_folder(folder);
  for (int tries = 0; lock == nullptr && tries < 100; ++tries) {  // another process is just moving it
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    lock = lock_folder(folder);
    if (half_replaced(folder).empty()) return;
  }
  const auto aside = half_replaced(folder);
  if (aside.empty()) return;
  const auto refuse = [&](const fs::path& path, const std::string& why) {
    throw IoError(path, why + "; the run in " + folder.string() + " was moved to " + aside.string() +
                            " by an --overwrite that was interrupted, and cannot move back now");
  };
  put_back(aside);  // an --overwrite there may have been killed, too
  const auto other = lock == nullptr ? nullptr : lock_folder(aside);
  if (other == nullptr) refuse(lock == nullptr ? folder : aside, "is in use by another run");
  for (const auto& entry : fs::recursive_directory_iterator(aside, kReadable)) {
    const auto back = folder / entry.path().lexically_relative(aside);
    if (!entry.is_directory() && is_there(back) && !is_part_of(entry.path(), back) &&
        !is_part_of(back, entry.path()))
      refuse(back, "is there again: move it to another place");
  }
  if (!move_back(aside, folder, kRunList)) refuse(aside, "holds what could not be moved");
  remove_empty_folders(aside);
  try_remove(folder / RunFolder::kMoving);
  log_info("the run in " + folder.string() +
           " is back in its place: --overwrite was interrupted while it moved the run to " + aside.string());
}

/// Whether no file of the run that was being moved there is left behind. A list tells it.
bool is_whole(const fs::path& aside) {
  const auto files = RunFolder(aside).files();
  return !files.empty() && std::ranges::none_of(files, [&](const auto& file) {
    return is_there(aside.parent_path() / file.lexically_relative(aside));
  });
}

/// The folders of the run to which a path may belong; none if the working directory is gone.
std::vector<fs::path> possible_runs(const fs::path& path) {
  std::error_code error;
  auto whole = fs::absolute(path, error).lexically_normal();
  if (error) return {};
  if (!whole.has_filename()) whole = whole.parent_path();
  return {whole, whole.parent_path(), whole.parent_path().parent_path()};
}

/// throws  UsageError naming the setting that must not change
void check_same_run(const Run& run, const Resumed& resumed) {
  const auto was = nlohmann::json::parse(resumed.state.config_json);
  const auto is = nlohmann::json::parse(run.options.config_json);
  for (const char* key :
       {"task", "batch_size", "seed", "norm_weight_decay", "bias_weight_decay", "layer_decay"})
    if (was.contains(key) && is.contains(key) && was[key] != is[key])
      throw UsageError("--resume: " + resumed.path.string() + " was made with " + key + " " +
                       was[key].dump() + ", got " + is[key].dump());
  if (was.contains("task") && was["task"] != run.task.name)
    throw UsageError("--resume: " + resumed.path.string() + " is of the task " + was["task"].dump());
  const auto examples = examples_of(resumed.state);
  if (examples && *examples != run.task.train_set->size())
    throw UsageError("--resume: " + resumed.path.string() + " was made with " + std::to_string(*examples) +
                     " training examples, got " + std::to_string(run.task.train_set->size()) +
                     " (set by --data, --val-split and --limit-train)");
}

/// Lightning records neither ranks nor batch size: assumes the current ones.
void settle_position(TrainingState& state, const Run& run) {
  if (state.world_size != 0) return;
  state.world_size = run.group.size();
  const auto batches = std::min(state.position.samples, run.task.train_set->size());
  state.position.samples = batches * run.group.size() * run.options.batch_size;
}

struct Summary {
  std::int64_t epochs = 0, steps = -1;
  std::string stopped;
  bool diverged = false;
};

/// What the branch of this state, or without one the newest, has ended with. Without steps if it has not.
Summary read_summary(const Run& run, const Resumed* resumed) try {
  const auto path = run.options.out / "summary.json";
  const RunFolder folder(run.options.out);
  const auto branch = folder.branch_of(path);  // 0: of a version without branches, or the list is lost
  if (branch > 0 && branch != (resumed != nullptr ? resumed->state.identity : folder.identity()).branch)
    return {};
  const auto json = nlohmann::json::parse(text_if_any(path));
  return {json.at("epochs"), json.at("steps"), json.value("stopped", ""), json.value("diverged", false)};
} catch (const nlohmann::json::exception&) {
  return {};
}

/// A run that trains in the folder to which a killed --overwrite has moved it belongs there from now on:
/// nothing moves it back any more.
void stay_where_moved(const fs::path& folder) {
  std::error_code error;
  for (auto run : {fs::absolute(folder, error).lexically_normal(), fs::canonical(folder, error)}) {
    if (!run.has_filename()) run = run.parent_path();  // it ended with a slash
    const auto note = run.parent_path() / RunFolder::kMoving;
    if (!run.empty() && read_or_empty(note) == run.filename()) try_remove(note);
  }
}

std::unique_ptr<RunFolder> begun_on_rank_0(Run& run, const Resumed* resumed) {
  const auto& options = run.options;
  create_folders(options.out / "checkpoints");
  run.locks = lock_run_folder(options.out);
  auto folder = std::make_unique<RunFolder>(options.out);
  std::vector<std::string> names = {"metrics.csv", "metrics.jsonl", "summary.json"};
  if (!run.task.weights_file.empty()) names.push_back(run.task.weights_file);
  names.insert(names.end(), options.more_files.begin(), options.more_files.end());
  if (options.profile)
    for (auto& file : profile_files(run.group.size())) names.push_back(std::move(file));
  if (resumed != nullptr && (resumed->path.empty() || continues_in(options.out, *resumed))) {
    if (resumed->path.empty() && folder->identity() == resumed->state.identity) {
      folder->go_on();
      return folder;
    }
    if (const auto other = folder->in_the_way(names, /*goes_on=*/true);
        !other.empty() && !folder->identity().run.empty())
      throw IoError(other, RunFolder::kNotOurs);
    names.emplace_back("report.html");
    // Without last.pt a run that has ended goes on from a state before its end.
    const bool is_newest = resumed->is_newest && read_summary(run, resumed).steps <= resumed->state.step;
    if (!resumed->path.empty() && !resumed->is_newest && !resumed->is_in(options.out))
      log_warning(resumed->path.string() + ": is not in " + folder->checkpoints().string() +
                  ": metrics.csv keeps the rows that " + options.out.string() +
                  " has up to that checkpoint's step, which may come from another training");
    folder->resume(resumed->state.identity, is_newest, names);
    return folder;
  }
  const bool restarted =  // before it had a checkpoint
      folder->job() == process_env(kSharedJobIdVariable) &&
      (process_env("TORCHELASTIC_RESTART_COUNT") != "0" || process_env("DDPRUN_ROUND").value_or("0") != "0");
  const bool goes_on = options.checkpoint.resume == "auto" || run.in_memory.begun || restarted;
  const auto other = options.overwrite ? fs::path() : folder->in_the_way(names, goes_on);
  if (!other.empty()) {
    const bool is_run = !folder->identity().run.empty() || !state_files(*folder).empty();
    throw UsageError("--out: " + options.out.string() +
                     (is_run ? " already holds a run (" : " holds a file that a run would replace (") +
                     other.lexically_relative(options.out).string() + "); use another folder" +
                     (is_run && options.checkpoint.resume.empty() ? ", --resume" : "") + " or --overwrite" +
                     where_replaced(options.out));
  }
  if (resumed == nullptr && options.checkpoint.resume == "auto")
    log_info("--resume=auto: no checkpoint in " + folder->checkpoints().string() + "; starting from scratch" +
             where_replaced(options.out));
  if (resumed != nullptr && leads_into(resumed->path, options.out, "replaced-"))
    folder->remove_replaced(/*keeps=*/true);
  folder->begin(names, options.overwrite);
  run.locks = lock_run_folder(options.out);  // checkpoints/ may be a new one
  return folder;
}

/// Empty if there is something left to train.
std::string why_ended(const Run& run, const std::string& stop_reason, std::int64_t epoch, std::int64_t step) {
  const auto& options = run.options;
  if (!stop_reason.empty()) return stop_reason;
  if (epoch >= options.epochs)
    return "epochs done: " + std::to_string(epoch) + ", --epochs=" + std::to_string(options.epochs);
  if (options.max_steps > 0 && step >= options.max_steps)
    return "steps done: " + std::to_string(step) + ", --max-steps=" + std::to_string(options.max_steps);
  return "";
}

}  // namespace

std::vector<FolderLock> lock_run_folder(const fs::path& folder) {
  std::vector<FolderLock> locks = {lock_folder(folder)};
  if (const auto checkpoints = folder / "checkpoints"; fs::exists(checkpoints))
    locks.push_back(lock_folder(checkpoints));  // it may be a link, which several runs have
  if (std::ranges::count(locks, nullptr) > 0)
    throw UsageError("--out: another run is using " + folder.string() + " now; use another folder");
  return locks;
}

std::shared_ptr<void> only_training_in(const fs::path& folder) {
  static std::mutex mutex;
  static std::set<fs::path> busy;
  if (folder.empty()) return nullptr;
  const auto path = fs::weakly_canonical(folder);
  const std::lock_guard guard(mutex);
  if (!busy.insert(path).second)
    throw UsageError("--out: this program is already training in " + folder.string() +
                     "; use another folder");
  return {nullptr, [path](void*) {
            const std::lock_guard end(mutex);
            busy.erase(path);
          }};
}

void put_back_half_replaced(const fs::path& path) {
  if (path.empty()) return;
  auto runs = possible_runs(path);
  std::error_code error;
  for (auto& real : possible_runs(fs::weakly_canonical(path, error))) runs.push_back(std::move(real));
  for (const auto& run : runs) {
    const auto aside = half_replaced(run);
    if (aside.empty()) continue;
    const bool is_used_there = std::ranges::find(runs, aside) != runs.end();
    if (is_used_there && is_whole(aside)) continue;  // it stays there
    put_back(run);
    if (is_used_there && !is_there(aside))
      throw IoError(path, "was only a part of the run in " + run.string() + ", where the whole run is now");
  }
}

std::string where_replaced(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> runs;
  for (const auto& path : folder_entries(folder))
    for (const char* name : {kRunList, "checkpoints", "metrics.csv"})
      if (path.filename().string().starts_with("replaced-") && fs::exists(path / name, error)) {
        runs.push_back(path.string());
        break;
      }
  std::ranges::sort(runs);
  return runs.empty() ? "" : "; earlier runs, which were set aside, are in " + joined(runs, ", ");
}

bool continues_in(const fs::path& run_folder, const Resumed& from) {
  const auto run = RunFolder(run_folder).identity().run;
  if (!run.empty() && !from.state.identity.run.empty()) return run == from.state.identity.run;
  return from.is_in(run_folder);
}

std::optional<Resumed> find_resumed(const Run& run) {
  const auto& wanted = run.options.checkpoint.resume;
  if (wanted.empty()) return std::nullopt;
  const auto folder = wanted == "auto" ? run.options.out / "checkpoints" : fs::path(wanted).parent_path();
  const auto holders = find_shards(run.group, folder);
  const auto verify = [&](const fs::path& checkpoint, const std::string& shards) {
    return verify_shards(run.group, checkpoint, shards, holders);
  };
  Resumed resumed;
  if (!run.on_rank_0())
    while (verify({}, {})) continue;
  else if (wanted == "auto") {
    auto found = find_resume(run.options.out, verify);
    for (const auto& line : found.skipped) log_warning(line);
    resumed = {found.path, std::move(found.state), found.skipped.empty()};
  } else {
    resumed = {wanted, read_checkpoint(wanted)};
    resumed.is_newest = !continues_in(run.options.out, resumed) || is_newest_state(run.options.out, wanted);
    if (!resumed.state.shards.empty()) verify(resumed.path, resumed.state.shards);
  }
  if (run.on_rank_0()) verify({}, {});
  resumed.path = ddp::broadcast_from_rank_0(run.group, resumed.path.string());
  if (resumed.path.empty()) return std::nullopt;
  if (run.group.size() > 1)  // the others may not see rank 0's disk
    resumed.state = broadcast_state(run.group, std::move(resumed.state));
  if (const auto& shards = resumed.state.shards; !shards.empty())
    check_holders(run.group, resumed.path, ShardReader(resumed.path, shards).index(), holders,
                  /*all=*/!run.options.parallel.fsdp);
  check_kept(resumed, run);
  settle_position(resumed.state, run);
  check_same_run(run, resumed);
  return resumed;
}

std::unique_ptr<RunFolder> begin_folder(Run& run, const Resumed* resumed) {
  (void)ddp::any_rank_true(run.group, false);  // no rank still reads weights of a run that is set aside
  std::unique_ptr<RunFolder> folder;
  if (run.on_rank_0()) {
    folder = begun_on_rank_0(run, resumed);
    stay_where_moved(run.options.out);
    if (run.options.on_folder) run.options.on_folder(*folder);
    run.identity = folder->identity();
  }
  run.folder = folder.get();
  auto& [id, branch] = run.identity;
  id = ddp::broadcast_from_rank_0(run.group, id);
  branch = std::stoll(ddp::broadcast_from_rank_0(run.group, std::to_string(branch)));
  return folder;
}

std::optional<Ending> has_ended(const Run& run, const Resumed* resumed) {
  const auto& options = run.options;
  const bool finds = options.checkpoint.resume == "auto";
  if (resumed == nullptr ? !finds : resumed->path.empty()) return std::nullopt;
  std::string why;
  Summary summary;
  if (run.on_rank_0()) {
    summary = read_summary(run, resumed);
    const RunFolder folder(options.out);
    const auto& newest = folder.identity();
    const bool continues = resumed != nullptr && continues_in(options.out, *resumed);
    // A branch that was killed before its first checkpoint: its rows are to be taken back first.
    const bool was_left = continues && !newest.run.empty() && newest.branch != resumed->state.identity.branch;
    if (continues && !was_left && summary.steps == resumed->state.step)
      why = why_ended(run, before_resume(resumed->state, run).stop_reason.value_or(""),
                      resumed->state.position.epoch, summary.steps);
    // Without last.pt the newest checkpoint is of an earlier step, or there is none.
    if (!was_left && why.empty() && finds && summary.steps >= 0 &&
        (resumed == nullptr || resumed->is_newest) && folder.ended_within() == limits_of(run))
      why = why_ended(run, summary.stopped, summary.epochs, summary.steps);
  }
  if (!ddp::any_rank_true(run.group, !why.empty())) return std::nullopt;
  if (run.on_rank_0())
    log_info("--resume: the run in " + options.out.string() + " has ended, at step " +
             std::to_string(summary.steps) + ": " + why +
             "; to continue it, raise --epochs, --max-steps, --max-time or --patience");
  return ddp::any_rank_true(run.group, summary.diverged) && !options.allow_nan ? Ending::kDiverged
                                                                               : Ending::kComplete;
}

}  // namespace ddprun::train
