#include "worker/config/kept_checkpoints.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/loop/resume.h>

namespace ddprun::worker {

namespace fs = std::filesystem;

namespace {

/// Whether ddprun has written it, perhaps a newer version.
bool is_ours(const fs::path& file) try {
  const auto root = serialize::peek_pt(file);
  return root.isGenericDict() && (root.toGenericDict().contains("format") || train::is_our_lightning(root));
} catch (const std::exception&) {  // an older format of torch's
  return false;
}

}  // namespace

bool is_run_folder(const fs::path& folder) {
  std::error_code error;
  return std::ranges::any_of(std::initializer_list<const char*>{"run.json", "metrics.csv", "checkpoints"},
                             [&](const char* name) { return fs::exists(folder / name, error); });
}

std::vector<fs::path> runs_in(const fs::path& folder) {
  std::vector<fs::path> runs;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (is_run_folder(entry->path())) runs.push_back(entry->path());
  if (error) throw IoError(folder, "cannot be listed", error.value());
  if (runs.empty()) throw IoError(folder, "holds no run");
  std::ranges::sort(runs);
  return runs;
}

BestCheckpoints best_checkpoints(const std::vector<train::StateFile>& states) {
  BestCheckpoints best;
  const auto newest = std::ranges::find_if(states, [](const auto& file) { return file.problem.empty(); });
  if (newest == states.end()) return best;
  const auto state = train::to_training_state(
      serialize::read_pt(newest->path, {"callbacks", "ddprun", "state_dict"}), newest->path);
  for (const auto& [name, value] : state.callbacks) try {
      if (!name.starts_with("ModelCheckpoint") || !value.isGenericDict()) continue;
      const train::DictReader policy(value, name);
      if (!policy.has("best_k_models")) continue;  // Lightning's, before 1.6
      if (policy.has("monitor")) best.monitor = policy.text("monitor");
      const auto models = policy.dict("best_k_models");
      const train::DictReader scores(models, "best_k_models");
      for (const auto& item : models) {
        if (!item.key().isString()) scores.fail("expected paths as keys, got " + item.key().tagKind());
        best.scores.emplace_back(fs::path(item.key().toStringRef()).filename(),
                                 scores.number(item.key().toStringRef()));
      }
      const auto first = fs::path(policy.text("best_model_path")).filename().string();
      const auto top = std::ranges::find(best.scores, first, [](const auto& each) { return each.first; });
      if (top != best.scores.end()) {
        const double score = top->second;
        std::ranges::sort(best.scores, {}, [&](const auto& each) { return std::abs(each.second - score); });
      }
      std::erase_if(best.scores, [&](const auto& each) {
        const auto file = std::ranges::find(states, each.first,
                                            [](const auto& kept) { return kept.path.filename().string(); });
        return file == states.end() || !file->leads_to(newest->identity, newest->step);
      });
      if (!best.scores.empty() && best.scores.front().first != first) best.missing = first;
    } catch (const std::invalid_argument& error) {
      throw IoError(newest->path, error.what());
    }
  return best;
}

std::optional<train::TrainingState> run_of_weights(const fs::path& file) try {
  return train::read_if_checkpoint(file, /*with_tensors=*/false);
} catch (const IoError&) {
  if (is_ours(file)) throw;
  return std::nullopt;
}

void check_not_of_a_run(const fs::path& file, const std::string& what) {
  std::error_code unreadable;
  const auto typed = fs::absolute(file).lexically_normal(), real = fs::weakly_canonical(typed, unreadable);
  for (const auto& path : {typed, unreadable ? typed : real})
    for (const auto& run : {path.parent_path(), path.parent_path().parent_path()}) try {
        if (train::RunFolder(run).branch_of(path) > 0)
          throw UsageError(what + " to be a file that does not belong to the run in " + run.string() +
                           ", which would lose it, got '" + file.string() + "'");
      } catch (const IoError&) {  // nothing there is known to be a run's
      }
}

fs::path checkpoint_of(const fs::path& path, const std::string& flag, Kept kept) {
  std::error_code error;
  train::put_back_half_replaced(path);
  if (!fs::is_directory(path, error)) return path;
  if (!is_run_folder(path))
    throw IoError(path, "is a folder, but not the folder of a run; expected a file or a run's folder" +
                            one_line(train::where_replaced(path)));
  const train::RunFolder run(path);
  const bool logs = process_env("RANK").value_or("0") == "0";
  const auto found = [&](const fs::path& file, const std::string& why,
                         const std::vector<std::string>& skipped) {
    for (const auto& line : skipped)
      if (logs) log_warning(line);
    if (logs) log_info(flag + one_line(file.string()) + ", " + why + " of this run");
    return file;
  };
  if (kept == Kept::kNewest) {  // with shards, which may be on other nodes, that one is checked later
    const auto newest = train::find_resume(path, [](const auto&, const auto&) {});
    if (newest.found()) return found(newest.path, "the newest checkpoint", newest.skipped);
  }
  std::vector<std::string> skipped;
  const auto states = train::own_states(run, skipped);
  if (states.empty()) throw IoError(path, "has no checkpoint" + one_line(train::where_replaced(path)));
  for (auto file = states.begin(); file != states.end() && file->is_beside(states.front()); ++file) {
    BestCheckpoints best;
    auto problem = file->problem;
    if (problem.empty()) try {
        best = best_checkpoints({file, states.end()});
      } catch (const IoError& damage) {
        problem = damage.what();
      }
    if (!problem.empty()) {
      skipped.push_back(problem);
      continue;
    }
    if (best.scores.empty()) return found(file->path, "the newest checkpoint", skipped);
    if (!best.missing.empty())
      skipped.push_back((run.checkpoints() / best.missing).string() +
                        ": the run's best checkpoint is gone or damaged, or another one has its name");
    const auto& [name, score] = best.scores.front();
    return found(run.checkpoints() / name,
                 "the best checkpoint (" + best.monitor + formatted(" %.4g)", score), skipped);
  }
  throw IoError(path, "has no checkpoint of its newest branch that can be read: " + skipped.front());
}

}  // namespace ddprun::worker
