#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/common/text.h>
#include <ddprun/train/loop/resume.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/run_folder.h>
#include <ddprun/train/state/shard_index.h>
#include "worker/commands/commands.h"
#include "worker/config/config.h"
#include "worker/config/kept_checkpoints.h"

namespace ddprun::worker {
namespace {

namespace fs = std::filesystem;
using train::RunFolder;
using train::StateFile;

std::uintmax_t size_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const auto bytes = fs::file_size(path, error);
    return error ? 0 : bytes;
  }
  std::uintmax_t bytes = 0;
  for (fs::recursive_directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error))
    if (entry->is_regular_file(error)) bytes += entry->file_size(error);
  return bytes;
}

std::string size_text(std::uintmax_t bytes) {
  constexpr double kKiB = 1024;
  const auto size = static_cast<double>(bytes);
  if (size < kKiB * kKiB) return formatted("%.1f KiB", size / kKiB);
  if (size < kKiB * kKiB * kKiB) return formatted("%.1f MiB", size / kKiB / kKiB);
  return formatted("%.1f GiB", size / kKiB / kKiB / kKiB);
}

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

/// For a list, which has the others where a file that tells the scores is damaged.
BestCheckpoints best_if_known(const std::vector<StateFile>& states) {
  for (auto state = states.begin(); state != states.end(); ++state)
    if (state->problem.empty()) try {
        return best_checkpoints({state, states.end()});
      } catch (const IoError& error) {
        log_warning(error.what());
      }
  return {};
}

/// The runs in a folder, one line each.
void list_runs(const fs::path& folder) {
  std::vector<std::vector<std::string>> rows = {
      {"FOLDER", "RUN", "BRANCH", "EPOCHS", "STEP", "BEST", "SIZE"}};
  for (const auto& path : runs_in(folder)) try {
      train::put_back_half_replaced(path);
      const RunFolder run(path);
      const auto states = state_files(run);
      const auto best = best_if_known(states);
      const auto& [id, branch] = run.identity();
      if (id.empty() && states.empty() && !fs::exists(path / "metrics.csv")) continue;  // of an evaluation
      const bool any = !states.empty() && states.front().problem.empty();
      rows.push_back({path.string(), or_dash(id), id.empty() ? "-" : std::to_string(branch),
                      any ? std::to_string(states.front().position.epoch) : "-",
                      any ? std::to_string(states.front().step) : "-",
                      best.scores.empty() ? "-" : best.monitor + formatted(" %.4g", best.scores[0].second),
                      size_text(size_of(path))});
    } catch (const IoError& unreadable) {
      log_warning(unreadable.what());
    }
  std::cout << in_columns(rows);
}

/// The states in one run's folder.
void list_states(const fs::path& path) {
  train::put_back_half_replaced(path);
  const RunFolder run(path);
  const auto states = state_files(run);
  const auto best = best_if_known(states);
  const auto& [id, branch] = run.identity();
  std::cout << "run " << or_dash(id) << ", branch " << branch << ", " << size_text(size_of(path)) << " in "
            << one_line(path.string()) << "\n";
  std::vector<std::vector<std::string>> rows = {
      {"CHECKPOINT", "BRANCH", "EPOCHS", "STEP", best.scores.empty() ? "SCORE" : best.monitor, "SIZE"}};
  for (const auto& state : states) {
    const auto score = std::ranges::find(best.scores, state.path.filename().string(),
                                         [](const auto& each) { return each.first; });
    const auto shards = state.shards.empty() ? 0 : size_of(run.checkpoints() / state.shards);
    const bool known = state.problem.empty();
    rows.push_back({state.path.filename().string(),
                    state.identity.branch == 0 ? "-" : std::to_string(state.identity.branch),
                    known ? std::to_string(state.position.epoch) : "-",
                    known ? std::to_string(state.step) : "-",
                    score == best.scores.end() ? "-" : formatted("%.4g", score->second),
                    known ? size_text(size_of(state.path) + shards) : "damaged"});
  }
  std::cout << in_columns(rows);
}

/// What a pruned run keeps.
struct Rule {
  std::int64_t best = 1, last = 1;
};

/// The states to remove: listed ones, without the newest ones and the best. Those that it keeps are read
/// whole: a damaged one stays, and does not count.
std::vector<fs::path> doomed_by(const Rule& rule, const RunFolder& run,
                                const std::vector<StateFile>& states) {
  std::map<std::string, bool> kept;  // and whether it is intact
  const auto keep = [&](const std::string& name) {
    const auto [file, is_new] = kept.try_emplace(name, false);
    if (is_new) try {
        train::read_and_verify(run.checkpoints() / name);
        file->second = true;
      } catch (const IoError& error) {
        log_warning(std::string(error.what()) + "; it is kept, but does not count");
      }
    return file->second;
  };
  const auto is_own = [&](const StateFile& state) {
    return state.problem.empty() && state.identity.run == run.identity().run;
  };
  std::int64_t last = 0;
  std::optional<std::pair<std::int64_t, std::int64_t>> before;
  for (const auto& state : states) {
    if (!is_own(state)) continue;
    // The best is often the last, too: equal states count once.
    const std::pair now(state.identity.branch, state.step);
    if (now != before && last == rule.last) break;
    if (!keep(state.path.filename())) continue;
    if (now != before) ++last;
    before = now;
  }
  std::map<std::int64_t, std::int64_t> best;  // how many of each branch
  for (auto state = states.begin(); state != states.end() && rule.best > 0; ++state) {
    if (!is_own(*state) || best[state->identity.branch] > 0) continue;  // a newer one has told
    try {
      for (const auto& [name, score] : best_checkpoints({state, states.end()}).scores)
        if (best[state->identity.branch] < rule.best && keep(name)) ++best[state->identity.branch];
    } catch (const IoError&) {
      keep(state->path.filename());  // warns
    }
  }
  std::vector<fs::path> doomed;
  for (const auto& state : states)
    if (is_own(state) && run.branch_of(state.path) > 0 && !kept.contains(state.path.filename()))
      doomed.push_back(state.path);
  return doomed;
}

}  // namespace

int run_runs_command(int argc, char** argv) {
  std::vector<std::string> folders;
  settings::Command command;
  command.name = "worker runs";
  command.description = "lists the runs in a folder, or the checkpoints of one run.";
  command.positionals = {{"folders", "FOLDER..."}};
  command.settings = {settings::help_flag(),
                      settings::list("folders", folders, "a run, or a folder of runs").not_a_flag()};
  if (!apply_words({argv + 1, argv + argc}, command)) return 0;
  for (const fs::path folder : folders) is_run_folder(folder) ? list_states(folder) : list_runs(folder);
  return 0;
}

int run_prune_command(int argc, char** argv) {
  fs::path folder;
  Rule rule;
  bool dry_run = false;
  settings::Command command;
  command.name = "worker prune";
  command.description =
      "removes all checkpoints of a run but the newest one and the best one of each branch. Removes "
      "only what the run has listed in run.json.";
  command.positionals = {{"folder", "RUN"}};
  command.settings = {
      settings::help_flag(), settings::path("folder", folder, "its folder").not_a_flag(),
      settings::integer("keep-last", rule.last, 1, settings::kMaxInt, "how many of the newest to keep"),
      settings::integer("keep-best", rule.best, 0, settings::kMaxInt,
                        "how many of the best of each branch to keep"),
      settings::boolean("dry-run", dry_run, "only say what would be removed")};
  if (!apply_words({argv + 1, argv + argc}, command)) return 0;
  train::put_back_half_replaced(folder);
  if (!is_run_folder(folder)) throw IoError(folder, "is not the folder of a run");
  lock_run_folder(folder);
  RunFolder run(folder);
  if (run.identity().run.empty())
    throw IoError(
        folder,
        "has no run.json; a run of an older version is not pruned, because it has no list of its files");
  const auto doomed = doomed_by(rule, run, state_files(run));
  const auto before = size_of(folder);
  for (const auto& path : doomed) {
    if (!dry_run) run.remove({path});
    std::cout << (dry_run ? "would remove " : "removed ") << one_line(path.string()) << "\n";
  }
  if (doomed.empty()) std::cout << "nothing to remove\n";
  if (dry_run) return 0;
  run.remove_unused_shards();
  std::cout << size_text(before - size_of(folder)) << " freed\n";
  return 0;
}

}  // namespace ddprun::worker
