#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <ddprun/common/error_file.h>
#include <ddprun/common/exit_status.h>

namespace ddprun::launcher {

/// A worker that failed.
struct FailedWorker {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  ExitStatus status;
  std::chrono::system_clock::time_point time;
  ErrorFileContent error;     ///< what the worker wrote about it
  bool asked_to_end = false;  ///< after ddprun had begun to end the job, in a way of its own

  // What is only looked for, and shown, of the root cause.
  std::string out_of_memory = {};                ///< describe(OomFinding); empty: nothing is known of it
  std::string core = {};                         ///< core_place(); empty: none
  std::vector<std::string> last_lines = {};      ///< of its stderr, as they came; the last ones are shown
  std::vector<std::filesystem::path> logs = {};  ///< its log files
};

/// What the user is told when a job fails.
struct FailureReport {
  std::string program;
  std::string host;
  FailedWorker root_cause;           ///< the first that failed
  std::vector<FailedWorker> others;  ///< that failed by themselves too, in rank order
  std::vector<int> ended_by_us;      ///< ranks that ended because ddprun told them to, in order
  int attempt = 0;                   ///< from 0
  int max_restarts = 0;
};

/// Lines of a worker's stderr that are shown, and so have to be kept.
constexpr std::size_t kLastLines = 20;

/// True if a worker that was told to end by these signals ended because of them: with success, killed by one,
/// or with the exit code by which programs say so.
bool ended_as_told(const ExitStatus& status, const std::vector<int>& signals);

/// The summary, several lines. What came out of a worker cannot drive the terminal.
std::string describe(const FailureReport& report);

/// What usually causes such an end that ddprun did not ask for: a sentence without its full stop; empty if
/// there is nothing to add.
std::string end_hint(const ExitStatus& status);

}  // namespace ddprun::launcher
