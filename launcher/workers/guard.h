#pragma once

#include <sys/types.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <ddprun/common/files.h>

namespace ddprun::launcher {

/// The name of a job's temporary folder: its id and the start of this machine.
std::string temp_name(const std::string& job_id);

/// Holds a job's temporary folder for as long as the result is open, also against systemd-tmpfiles.
UniqueFd hold(const std::filesystem::path& temp_folder);

/// Removes from the folder for temporary files those of jobs whose ddprun was killed together with its guard:
/// of this user, made since this machine was started, and held by nobody.
void remove_leftovers(const std::filesystem::path& folder);

/// Kills these process groups and all processes of the job, also those that left their groups, like daemons.
void kill_job(const std::vector<pid_t>& groups, const std::string& job_id);

/// A tiny process that cleans up if ddprun is killed: it kills the job's process groups and processes that
/// left them, and removes the job's temporary folder. It reads a pipe whose end-of-file means that ddprun
/// died, for whatever reason.
///
/// The kernel's parent-death signal ends workers too, but not their children, nor a worker that changed its
/// user. The guard has its own session, blocks all signals and holds only the pipe: neither Ctrl-C nor a
/// closed terminal ends it, and no reader of the job's output waits for it.
class Guard {
 public:
  /// Forks, so create it early, while ddprun is small.
  /// folder  absolute; removed with its contents if ddprun is killed; need not exist yet
  /// job_id  identifies the job's processes, see job_processes.h
  /// throws  std::system_error
  Guard(const std::filesystem::path& folder, const std::string& job_id);
  /// Ends the guard without a clean-up.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// Where a new group leader writes its pid before it can start processes, so no group is ever unwatched.
  int announce_fd() const { return pipe_.get(); }
  void watch(pid_t group);
  void forget(pid_t group);

  /// A child of ddprun that is no worker, and not of one, until it ends.
  ///
  /// leaves_orphans  it may start processes that outlive it, such as ssh's for a connection that it shares
  void set_apart(pid_t child, bool leaves_orphans = false) {
    earlier_.insert(child);
    has_strangers_ = has_strangers_ || leaves_orphans;
  }
  void has_ended(pid_t child) { earlier_.erase(child); }

  /// True for an orphan of a worker that became ddprun's child; false for the guard, and for processes that
  /// the shell started before it became ddprun (`sshd -D & exec ddprun ...`), their children and their
  /// orphans, and for those of a child that was set apart: if there can be such processes, an orphan must
  /// have the job's id in its environment.
  bool is_of_job(pid_t child) const;

 private:
  UniqueFd pipe_;
  pid_t pid_ = -1;
  std::set<pid_t> earlier_;  ///< children from before, and those that were set apart
  const std::string job_id_;
  bool has_strangers_ = false;  ///< an orphan may be of none of the job's processes
};

}  // namespace ddprun::launcher
