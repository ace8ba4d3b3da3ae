#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddprun/common/error_file.h>
#include "launcher/status/progress.h"

namespace ddprun::launcher {

/// A worker in the failure report and in --result-json.
struct WorkerRecord {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  std::optional<ExitStatus> status;            ///< nullopt: it was never reaped
  std::chrono::system_clock::time_point time;  ///< when it ended
  ErrorFileContent error;                      ///< its error file
  bool asked_to_end = false;                   ///< it ended after ddprun began to end the job
  std::int64_t start_ns = 0;                   ///< since the job's start (JobClock::ns)
  std::optional<std::int64_t> end_ns = {};
  std::vector<std::filesystem::path> logs = {};  ///< its log files

  // Only for the root cause.
  std::string out_of_memory = {};            ///< describe(OomFinding)
  std::string core = {};                     ///< core_place(); empty: no core file
  std::vector<std::string> last_lines = {};  ///< of its stderr, raw
  bool err_shown = false;                    ///< its stderr is on the console
  bool err_read = true;                      ///< through ddprun
};

/// Why a job failed.
struct FailureReport {
  std::string program;
  std::string host;
  WorkerRecord root_cause;  ///< the first that failed, by its error file or its exit, or was silent longest
  std::vector<std::string> hang = {};  ///< in place of its end, in lines: no sign of life
  std::filesystem::path stacks = {};   ///< of the root cause
  std::string misplaced_flag = {};     ///< Options::misplaced_flag
  /// That had reported an error before, and had not exited until ddprun ended them, in rank order.
  std::vector<WorkerRecord> not_exited = {};
  std::vector<WorkerRecord> others;  ///< that also failed on their own, in rank order
  std::vector<int> ended_by_us;      ///< ranks that ended because ddprun stopped them, in order
  std::vector<int> succeeded = {};   ///< ranks that had ended before it, in order: it may have waited for one
  int attempt = 0;                   ///< from 0
  int max_restarts = 0;
  std::vector<Straggler> stragglers = {};
};

/// True if a worker that ddprun sent these signals ended because of them: successfully, killed by one, or
/// with the exit code for one.
bool ended_as_told(const ExitStatus& status, const std::vector<int>& signals);

/// The report for the user. A worker's text in it cannot drive the terminal.
std::string describe(const FailureReport& report);

/// The usual cause of an end that ddprun did not request: a sentence without its full stop; empty if there is
/// nothing to add.
std::string end_hint(const ExitStatus& status);

/// Describes for the user where a process's core is: the handler that the kernel passed it to, or the path
/// that core_pattern(5) names, with its specifiers unexpanded.
///
/// pattern  the content of /proc/sys/kernel/core_pattern; empty: the result is empty
/// cwd      where the process was started, for a relative pattern
std::string core_place(std::string_view pattern, pid_t pid, const std::filesystem::path& cwd);

/// core_place() with this host's pattern and the current folder.
std::string core_place(pid_t pid);

/// The error for a launcher above ddprun, as in torchrun: the root cause's own error, or how it ended if it
/// wrote none, with its exit code, or minus its signal, as errorCode.
WorkerError error_for_parent(const FailureReport& report);

/// Writes it to ddprun's own TORCHELASTIC_ERROR_FILE, given here. returns why not; empty: it did
std::string pass_error_to_parent(const FailureReport& report, const std::string& error_file);

}  // namespace ddprun::launcher
