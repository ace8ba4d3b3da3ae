// A power failure at any moment of a training, and then the same command with --resume=auto. What the
// training does to its folder is recorded (disk_log.cpp) and replayed up to each change; every folder that a
// disk may then be left with (crashed_disk.h) is looked at as a starting worker does, and the worker itself
// starts in some of them.
//
// $DDPRUN_POWER_FAILURES: after how many changes of each training, chosen by a seed [40]; all: after each
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/loop/resume.h>
#include <ddprun/train/record/run_record.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/run_folder.h>
#include <ddprun/train/state/shard_index.h>
#include "tests/integration/training_job.h"
#include "tests/support/crashed_disk.h"

namespace ddprun::test {
namespace {

using Branch = std::pair<std::string, std::int64_t>;  // of a run
using Saved = std::map<Branch, std::int64_t>;         // the most steps of its states

/// One of the trainings.
struct Training {
  std::vector<std::string> before;  ///< flags of a run that was there earlier; empty: none was
  std::vector<std::string> flags;   ///< of the recorded run
  int ranks = 0;
};

struct Found {
  std::string problem;  ///< why a worker would not continue here
  Branch branch;        ///< what it continues; of no run if it starts from scratch
  std::int64_t step = 0;
  Saved kept;  ///< the intact states
};

struct Breach {
  std::string what, where;
};

std::string without(const std::string& part, std::string text) {
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part)) text.erase(at, part.size());
  return text;
}

fs::path memory_folder() { return fs::is_directory("/dev/shm") ? "/dev/shm" : temp_folder(); }

Command command_of(const Training& training, const fs::path& out, std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--limit-train=64", "--batch-size=8", "--no-report", "--no-progress"});
  return test::training("linear", training.ranks, out, flags);
}

std::string run(const Command& command) {
  Child child(command);
  const auto status = child.wait(kTraining);
  const auto text = child.out() + child.err();
  CAPTURE(text);
  REQUIRE(status == ExitStatus::exited(0));
  REQUIRE(child.nothing_left());
  return text;
}

/// The states in a run folder that can be continued.
void add_intact(Saved& saved, const fs::path& run_folder) {
  for (const auto& path : train::checkpoint_files(run_folder / "checkpoints")) try {
      const auto state = train::read_checkpoint(path);
      if (!state.shards.empty()) train::ShardReader(path, state.shards).verify();
      auto& step = saved[{state.identity.run, state.identity.branch}];
      step = std::max(step, state.step);
    } catch (const IoError&) {
    }
}

/// As a worker that starts there with --resume=auto.
Found look_at(const fs::path& disk, bool overwrites) {
  const auto out = disk / "run";
  train::put_back_half_replaced(out);  // as a training does first
  Found found;
  for (const auto& entry : fs::directory_iterator(disk))
    for (const auto& inside : fs::directory_iterator(entry))
      if (inside.path().filename().string().starts_with("replaced-")) add_intact(found.kept, inside);
  add_intact(found.kept, out);
  const auto point = train::find_resume(out);
  if (point.found()) {
    found.branch = {point.state.identity.run, point.state.identity.branch};
    found.step = point.state.step;
  }
  fs::create_directories(out / "checkpoints");
  train::RunFolder folder(out);
  if (const auto run = folder.identity().run; point.found() && !run.empty() && run != found.branch.first)
    found.problem = "continues another run than run.json's";
  const std::vector<std::string> names = {"metrics.csv", "metrics.jsonl", "summary.json", "config.toml",
                                          "environment.json"};
  if (point.found()) {
    folder.resume(point.state.identity, point.skipped.empty(), names);
  } else {
    if (const auto other = folder.in_the_way(names, /*goes_on=*/true); !other.empty() && !overwrites)
      found.problem = "refuses because of " + other.filename().string();
    folder.begin(names);
  }
  for (const char* name : {"config.toml", "environment.json"}) folder.claim(out / name);
  train::RunRecord::Options options;
  if (point.found()) options.resumed_at = point.state.step;
  const train::RunRecord record(folder, options);
  if (const auto again = train::find_resume(out);
      again.path != point.path || again.state.step != point.state.step)
    found.problem = "what is left behind takes the state away that it continues from";
  const auto states = train::state_files(folder);
  for (const auto& shards : train::shard_folders(out / "checkpoints"))
    if (std::ranges::none_of(states, [&](const auto& state) { return state.shards == shards.filename(); }) &&
        folder.branch_of(shards) == 0)
      found.problem = "leaves shards that are nobody's";
  for (const auto& entry : fs::recursive_directory_iterator(out))
    if (entry.path().filename().string().find(".tmp.") != std::string::npos)
      found.problem = "leaves half-written files";
  return found;
}

std::size_t all_moments = 0;

/// A recorded training, and what may be left of it.
class PowerFailures {
 public:
  explicit PowerFailures(const Training& training)
      : training_(training), work_(TempDir::at(memory_folder() / ("power-" + std::to_string(::getpid())))) {
    fs::create_directory(disk());
    if (!training_.before.empty()) ::ddprun::test::run(command_of(training_, out(), training_.before));
    if (!overwrites() && fs::exists(out() / "metrics.csv")) metrics_ = read_file(out() / "metrics.csv");
    before_ = std::make_unique<CrashedDisk>(disk());
    auto recorded = command_of(training_, out(), with_run(training_.flags));
    recorded.env = {{"LD_PRELOAD", DISK_LOG},
                    {"DDPRUN_TEST_DISK_FOLDER", disk().string()},
                    {"DDPRUN_TEST_DISK_LOG", log().string()}};
    ::ddprun::test::run(recorded);
    changes_ = read_disk_log(log(), disk());
  }

  void check() {
    const auto changes = changes_.size();
    std::vector<bool> chosen(changes, true);
    const char* wanted = std::getenv("DDPRUN_POWER_FAILURES");
    if (const std::string number = wanted == nullptr ? "40" : wanted; number != "all") {
      std::fill(chosen.begin() + std::min(std::stol(number), static_cast<long>(changes)), chosen.end(),
                false);
      std::shuffle(chosen.begin(), chosen.end(), random_);
    }
    auto& disk_now = *before_;
    note_saved(disk_now);
    for (std::size_t i = 0; i < changes; ++i) {
      disk_now.apply(changes_[i]);
      if (changes_[i].kind == DiskChange::kSync) note_saved(disk_now);
      if (!chosen[i]) continue;
      ++moments_;
      for (const auto& tree : disk_now.after_power_failure(random_)) check(tree, i);
    }
    // The log has everything, or the replay is of no use.
    CHECK(hash_of(disk_now.now()) == hash_of(read_tree(disk())));
    for (const auto& [what, number] : breaches_) FAIL_CHECK(what << ": " << number << " times");
    std::cout << moments_ << " of " << changes << " moments, " << trees_ << " folders, " << found_.size()
              << " of them different" << std::endl;
    for (int i = 0; i < 6 && !samples_.empty(); ++i) continue_really();
    all_moments += moments_;
  }

 private:
  fs::path disk() const { return work_.path() / "disk"; }
  fs::path out() const { return disk() / "run"; }
  fs::path log() const { return work_.path() / "log"; }

  std::vector<std::string> with_run(std::vector<std::string> flags) const {
    for (auto& flag : flags)
      if (flag.starts_with("--resume="))
        flag = "--resume=" + (out() / "checkpoints" / flag.substr(9)).string();
    return flags;
  }
  bool overwrites() const { return std::ranges::count(training_.flags, "--overwrite") > 0; }

  /// What a save that is complete has promised.
  void note_saved(const CrashedDisk& disk_now) {
    Tree files;
    try {
      files = disk_now.synced("run/checkpoints");
    } catch (const std::runtime_error&) {  // is not there yet
      return;
    }
    for (const auto& [name, bytes] : files) {
      if (!name.ends_with(".pt") || name.starts_with('.')) continue;
      if (!states_.contains(bytes->hash)) {
        const auto file = work_.path() / "state.pt";
        write_tree({{"state.pt", bytes}}, work_.path());
        const auto state = train::to_training_state(serialize::peek_pt(file), file);
        states_[bytes->hash] = {{state.identity.run, state.identity.branch}, state.step};
        if (std::ranges::count(runs_, state.identity.run) == 0) runs_.push_back(state.identity.run);
      }
      const auto& [branch, step] = states_.at(bytes->hash);
      auto& most = saved_[branch];
      most = std::max(most, step);
      newest_ = std::max(newest_, std::tuple(number_of(branch.first), branch.second, most));
    }
  }

  /// Runs count from 0; one that has saved nothing yet is the next.
  std::ptrdiff_t number_of(const std::string& run) const {
    return std::ranges::find(runs_, run) - runs_.begin();
  }

  void check(const Tree& tree, std::size_t at) {
    ++trees_;
    const auto hash = hash_of(tree);
    auto known = found_.find(hash);
    if (known == found_.end()) {
      const auto copy = TempDir::at(work_.path() / "copy");
      write_tree(tree, copy.path());
      Found found;
      try {
        found = look_at(copy.path(), overwrites());
      } catch (const IoError& error) {
        found.problem = "refuses: " + without(copy.path().string() + "/", error.what());
      }
      known = found_.emplace(hash, found).first;
      if (random_() % ++different_ == 0 || samples_.size() < 6) {
        if (samples_.size() == 6) samples_.erase(samples_.begin() + random_() % 6);
        samples_.push_back(tree);
      }
    }
    const bool has_metrics = metrics_.empty() || std::ranges::any_of(tree, [&](const auto& file) {
                               return file.second && file.second->bytes == metrics_;
                             });
    const auto breach = has_metrics ? breach_of(known->second) : "has lost the earlier branch's metrics";
    if (!breach.empty() && breaches_[breach]++ < 3)
      std::cout << breach << "\n  after " << at << ": " << description(changes_[at]) << "\n";
  }

  /// Empty: it is as promised.
  std::string breach_of(const Found& found) const {
    if (!found.problem.empty()) return found.problem;
    if (saved_.empty()) return "";
    const auto [newest_run, newest_branch, newest_step] = newest_;
    // An earlier run is replaced once the new one has a state.
    const bool replacing = overwrites() && newest_run == 0;
    for (const auto& [branch, step] : saved_) {
      const auto kept = found.kept.find(branch);
      if (number_of(branch.first) == newest_run && (kept == found.kept.end() || kept->second < step))
        return "has lost the newest state of branch " + std::to_string(branch.second) +
               (replacing ? " while it is replaced" : "");
    }
    if (found.branch.first.empty()) return replacing ? "" : "starts from scratch";
    if (std::tuple(number_of(found.branch.first), found.branch.second, found.step) < newest_)
      return "continues an earlier state than the newest one";
    return "";
  }

  void continue_really() {
    const auto tree = samples_.back();
    samples_.pop_back();
    const auto& found = found_.at(hash_of(tree));
    if (!found.problem.empty()) return;
    const auto copy = TempDir::at(work_.path() / "copy");
    write_tree(tree, copy.path());
    auto flags = training_.flags;
    std::erase_if(flags, [](const auto& flag) { return flag.starts_with("--resume="); });
    flags.emplace_back("--resume=auto");
    const auto text = ::ddprun::test::run(command_of(training_, copy.path() / "run", flags));
    CAPTURE(text, found.branch.first, found.step);
    const bool ended = text.find("has ended") != std::string::npos;
    CHECK((ended || found.branch.first.empty() == (text.find("resumed from ") == std::string::npos)));
    if (!found.branch.first.empty() && !ended)
      CHECK_THAT(text, ContainsSubstring(" at step " + std::to_string(found.step)));
  }

  Training training_;
  TempDir work_;
  std::unique_ptr<CrashedDisk> before_;
  std::vector<LoggedChange> changes_;
  std::string metrics_;  // of an earlier branch
  std::mt19937 random_{0};
  Saved saved_;
  std::vector<std::string> runs_;
  std::tuple<std::ptrdiff_t, std::int64_t, std::int64_t> newest_{-1, 0, 0};
  std::map<std::size_t, std::pair<Branch, std::int64_t>> states_;  // by the file's hash
  std::map<std::size_t, Found> found_;                             // by the tree's hash
  std::map<std::string, int> breaches_;
  std::vector<Tree> samples_;
  std::size_t moments_ = 0, trees_ = 0, different_ = 0;
};

}  // namespace

TEST_CASE("after a power failure --resume=auto continues a state that was promised", "[power_failure]") {
  PowerFailures({.before = {},
                 .flags = {"--epochs=8", "--checkpoint-every-steps=3", "--val-split=0.25", "--save-top-k=2"}})
      .check();
}

TEST_CASE("after a power failure a sharded training continues a state that was promised", "[power_failure]") {
  PowerFailures(
      {.before = {},
       .flags = {"--epochs=8", "--checkpoint-every-steps=2", "--fsdp", "--val-split=0.25", "--save-top-k=1"},
       .ranks = 2})
      .check();
}

TEST_CASE("after a power failure a branch that was begun does not take the earlier one's states",
          "[power_failure]") {
  PowerFailures(
      {.before = {"--epochs=4", "--save-top-k=1", "--mode=max"},
       .flags = {"--resume=epoch=0-step=8.pt", "--epochs=9", "--lr=0.5", "--save-top-k=1", "--mode=max"}})
      .check();
}

TEST_CASE("after a power failure a sharded branch does not take the earlier one's states",
          "[power_failure]") {
  PowerFailures({.before = {"--epochs=4", "--fsdp", "--save-top-k=1", "--mode=max"},
                 .flags = {"--resume=epoch=0-step=4.pt", "--epochs=8", "--fsdp", "--lr=0.5", "--save-top-k=1",
                           "--mode=max"},
                 .ranks = 2})
      .check();
}

TEST_CASE("after a power failure a run that was being replaced is whole", "[power_failure]") {
  PowerFailures(
      {.before = {"--epochs=4", "--save-top-k=2"}, .flags = {"--overwrite", "--epochs=6", "--save-top-k=2"}})
      .check();
}

TEST_CASE("after a power failure a sharded run that was being replaced is whole", "[power_failure]") {
  PowerFailures({.before = {"--epochs=4", "--fsdp", "--save-top-k=2"},
                 .flags = {"--overwrite", "--epochs=6", "--fsdp", "--save-top-k=2"},
                 .ranks = 2})
      .check();
}

TEST_CASE("power failures are looked at after at least 2,000 changes", "[power_failure]") {
  if (const char* wanted = std::getenv("DDPRUN_POWER_FAILURES");
      wanted == nullptr || std::string(wanted) != "all")
    skip("only with DDPRUN_POWER_FAILURES=all");
  CHECK(all_moments >= 2000);  // of the trainings above
}

}  // namespace ddprun::test
