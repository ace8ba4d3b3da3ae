#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::train {

/// Which training wrote a state.
struct RunIdentity {
  std::string run;  ///< 8 random hexadecimal digits; empty: from a version whose runs had none
  /// Counts from 1. A resume from any state but the newest begins the next one: what came after that state
  /// belongs to the earlier branch.
  std::int64_t branch = 0;

  bool operator==(const RunIdentity&) const = default;
};

/// A run folder and the list of the run's files, run.json, with the branch that wrote each last:
///
///   {"run": "5f0c91a2", "branch": 2, "files": {"checkpoints/last.pt": 2, "metrics.csv": 1},
///    "replaced": ["replaced-1b2c3d4e"]}
///
/// Only what is listed is ever replaced or removed. Only rank 0's process has one; its threads may share it.
/// All throw IoError.
class RunFolder {
 public:
  static constexpr const char* kMoving = ".run.json.moving";  ///< a file: where an --overwrite moves the run
  static constexpr const char* kNotOurs =
      "was not written by this run, which leaves it alone; move it, or use another --out";

  /// Reads the list, if there is one.
  explicit RunFolder(std::filesystem::path folder);

  const std::filesystem::path& path() const { return folder_; }
  std::filesystem::path checkpoints() const { return folder_ / "checkpoints"; }
  /// The newest branch. Without a list, run is empty.
  RunIdentity identity() const;
  /// The ddprun job that began or resumed it last; empty: none.
  const std::string& job() const { return job_; }
  /// 0: that was this command; npos: another one; else it has replaced this command's run in the same job.
  std::size_t age_of_this_command() const;
  /// 0: not listed.
  std::int64_t branch_of(const std::filesystem::path& file) const;
  std::vector<std::filesystem::path> files() const;
  /// The folder of the last run that this one replaces, until it has a checkpoint; empty: none.
  std::filesystem::path replaced() const { return replaced_.empty() ? "" : folder_ / replaced_.back(); }
  /// The limits within which a run without last.pt, which would say so, has ended; empty: it goes on.
  const std::string& ended_within() const { return ended_within_; }
  void end_within(const std::string& limits);
  /// Whether a checkpoint was found, when the run was resumed, that another run or program wrote.
  bool is_foreign(const std::filesystem::path& checkpoint) const;

  /// A file with one of these names that is not listed; or, unless the listed run goes on, the first sign of
  /// an earlier run. Empty: there is none.
  std::filesystem::path in_the_way(const std::vector<std::string>& names, bool goes_on) const;

  /// Begins a new run: what is listed, or in its way, moves to a folder replaced-RUN, from which
  /// remove_replaced() removes it. A run without any checkpoint, weights or summary begins again, under its
  /// identity; in another job it keeps a copy of its metrics.
  ///
  /// overwrites  false: what was listed, or an --overwrite replaced that was killed, is kept for good
  void begin(const std::vector<std::string>& names, bool overwrites = true);
  /// Continues the run, from a state of this identity. An older version's files with these names count as its
  /// own from now on. Its metrics must be readable.
  ///
  /// is_newest  whether no other state of the run is newer
  void resume(const RunIdentity& state, bool is_newest, const std::vector<std::string>& names);
  /// Continues it in a new process of the same job: lists, and finishes, what the lost one was writing.
  void go_on();

  /// Before the file is written: lists it. Of metrics, a summary or weights of an earlier branch, keeps a
  /// copy: metrics-branch=1.csv. throws  also if it exists and is not listed, or the folder was moved away
  void claim(const std::filesystem::path& file);

  /// Keeps a copy, or a second link, under another name: metrics-branch=1.csv
  void keep_earlier(const std::filesystem::path& file);

  // A checkpoint, which names its run itself, is listed once it is on disk.

  /// Before it is written: if a file of an earlier branch is there, or one that is not listed, keeps it
  /// beside it, as last-branch=1.pt or last-earlier.pt.
  ///
  /// doomed  what wrote() will be given: a run that is killed between the two removes them when it is resumed
  void make_way(const std::filesystem::path& checkpoint,
                const std::vector<std::filesystem::path>& doomed = {});
  /// Lists this checkpoint, which was written, and removes those of `doomed` that this branch wrote.
  void wrote(const std::filesystem::path& checkpoint, const std::vector<std::filesystem::path>& doomed);
  /// Lists a new folder for a checkpoint's shards, last-step=80-5f0c91a2-1b2c.shards, before it is written.
  ///
  /// returns  its path, and those of removed ones, which other hosts may still have on disks of their own
  std::vector<std::filesystem::path> begin_shards(const std::filesystem::path& checkpoint, std::int64_t step);
  /// Removes the listed shards that belong to no checkpoint here. None if a checkpoint there cannot be read,
  /// or they cannot be removed: then warns, once.
  void remove_unused_shards();
  /// Removes of these files what is listed.
  void remove(std::vector<std::filesystem::path> files, bool list_changed = false);
  void keep() { return std::exchange(set_aside_, false) ? save(true) : void(); }  ///< stays, though set aside
  /// The run has a checkpoint: removes the listed files of those that it replaced, unless one was resumed.
  void remove_replaced(bool keeps = false);  ///< keeps: nobody removes them any more

  /// Whether a temporary file is one that this run began to write.
  bool owns_temporary(const std::filesystem::path& file) const;

 private:
  std::string name_of(const std::filesystem::path& file) const;
  void check_still_here() const;
  void check_checkpoints_are_ours(const std::filesystem::path& next);
  bool is_of_this_branch(const std::filesystem::path& file) const;
  void restore_metrics(std::int64_t branch);
  void begin_branch(std::int64_t branch);
  void take_over(bool replaces);
  void find_states(bool list_is_lost);
  void save(bool required = false);
  std::filesystem::path set_aside(const std::vector<std::string>& names, bool overwrites);
  std::filesystem::path move_to(const std::string& run, std::set<std::filesystem::path> names);
  void remove_all();

  const std::filesystem::path folder_;
  const std::pair<dev_t, ino_t> place_;  // its device and inode when this was made, or 0
  std::pair<dev_t, ino_t> checkpoints_place_;
  mutable std::recursive_mutex mutex_;
  RunIdentity identity_;
  std::map<std::string, std::int64_t> files_;
  std::set<std::string> foreign_;  // checkpoints
  std::vector<std::string> replaced_;
  bool set_aside_ = false;  // and not resumed since
  std::string job_, ended_within_;
  std::string commands_;                         // of the job, whose runs were here, the newest first
  std::string writing_;                          // a checkpoint that is not listed yet
  std::vector<std::string> doomed_;              // by it
  std::set<std::filesystem::path> gone_shards_;  // listed until the next begin_shards()
  bool unsaved_ = false, warned_ = false;
};

}  // namespace ddprun::train
