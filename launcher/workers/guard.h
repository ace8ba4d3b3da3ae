#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include <ddprun/common/unique_fd.h>

namespace ddprun::launcher {

/// A tiny process that outlives ddprun for a moment if ddprun is killed: it then kills the job's process
/// groups, and what has left them, and removes the job's temporary folder. It holds the reading end of a
/// pipe; the end of the pipe is ddprun's death, however it came.
///
/// The kernel's parent-death signal ends each worker too, but not the worker's own children, and not a worker
/// that changed its user. The guard sits in a session of its own, blocks all signals and holds no descriptor
/// but the pipe, so that neither Ctrl-C nor a closed terminal ends it, and no reader of the job's output
/// waits for it.
class Guard {
 public:
  /// Forks; so make it early, while ddprun is small.
  /// folder  absolute; removed, with all it holds, if ddprun is killed; need not be there yet
  /// job_id  tells the job's processes: see job_processes.h
  /// throws  std::system_error
  Guard(const std::filesystem::path& folder, const std::string& job_id);
  /// The job is over: the guard is ended without doing anything.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// Where a process that is to lead a group writes its pid before it can start another: so there is no
  /// moment at which a group is not watched.
  int announce_fd() const { return pipe_.get(); }
  void forget(pid_t group);
  pid_t pid() const { return pid_; }

 private:
  UniqueFd pipe_;
  pid_t pid_ = -1;
};

}  // namespace ddprun::launcher
