#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/exit_status.h>
#include "launcher/events/job_clock.h"
#include "launcher/rendezvous/attempt_end.h"

namespace ddprun::launcher {

/// A worker as it is told to --result-json. Times are nanoseconds since the job's start (JobClock::ns).
struct WorkerRecord {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  std::optional<ExitStatus> status;  ///< none: it was never reaped
  std::int64_t start_ns = 0;
  std::optional<std::int64_t> end_ns;
  bool asked_to_end = false;
  std::string error_message;                ///< its error file's
  std::string out_of_memory;                ///< what is known of it, as in the failure report
  std::string core;                         ///< where its core file is
  std::vector<std::string> last_lines;      ///< of its stderr; of the root cause only
  std::vector<std::filesystem::path> logs;  ///< its log files
};

/// One start of all workers.
struct AttemptRecord {
  int number = 0;  ///< from 0, as in TORCHELASTIC_RESTART_COUNT
  int port = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  AttemptEnd outcome;
  std::optional<int> root_cause_rank;
  std::vector<WorkerRecord> workers;
};

/// All that --result-json says of a job.
struct JobRecord {
  std::string version;  ///< ddprun's
  std::string run_id;
  std::vector<std::string> program;  ///< with its arguments, redacted() by to_json
  int exit_code = 0;                 ///< ddprun's
  std::optional<int> ended_by;       ///< the signal of which ddprun dies
  AttemptEnd outcome;
  std::string message;  ///< ddprun's own last words, one line; empty if none
  int max_restarts = 0;
  int restarts = 0;  ///< that were made
  JobClock::Wall::time_point start;
  JobClock::Wall::time_point end;
  std::vector<AttemptRecord> attempts;
};

/// The record as one JSON object, in lines. Bytes that are not UTF-8 become U+FFFD.
std::string to_json(const JobRecord& record);

/// Writes it where --result-json says, readable for the user alone: in the place of what was there, at once,
/// or into a device or a pipe. throws IoError
void write_result_json(const std::filesystem::path& path, const JobRecord& record);

}  // namespace ddprun::launcher
