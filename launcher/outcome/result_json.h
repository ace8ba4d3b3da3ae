#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/status.h>
#include "launcher/events/clock.h"
#include "launcher/events/restart_policy.h"
#include "launcher/outcome/failure_report.h"
#include "launcher/status/progress.h"

namespace ddprun::launcher {

/// One start of all workers.
struct AttemptRecord {
  int number = 0;  ///< from 0
  int port = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  AttemptEnd outcome;
  std::optional<int> root_cause_rank;
  std::vector<WorkerRecord> workers;
  std::vector<Straggler> stragglers = {};
  WorkerStatus said = {};  ///< last report of the worker on this node that accounts for most time
  std::optional<std::int64_t> first_step = {};
};

/// What --result-json says about a job.
struct JobRecord {
  std::string version;  ///< ddprun's
  std::string run_id;
  std::vector<std::string> program;  ///< with its arguments; to_json redacts them
  int exit_code = 0;                 ///< ddprun's
  std::optional<int> ended_by;       ///< the signal that will end ddprun
  AttemptEnd outcome;
  std::string message;  ///< ddprun's own error, one line
  int max_restarts = 0;
  int restarts = 0;
  JobClock::Wall::time_point start;
  JobClock::Wall::time_point end;
  std::vector<AttemptRecord> attempts;
};

/// The sum of all known seconds.
double total(const WorkerStatus::Seconds& seconds);

/// Where a job's time went, in seconds that sum up to "wall":
///   start       until the first batch
///   data, compute, communication, evaluation, checkpoint   as the workers report (docs/status.md)
///   restarts    from the end of an attempt to the first batch of the next
///   repeated    the part of compute spent on steps that an earlier attempt had done
///   other       everything else, such as the last attempt's end
/// null if no worker has reported anything.
nlohmann::ordered_json to_ledger(double wall, const std::vector<AttemptRecord>& attempts);

/// The record as a JSON object. Bytes that are not UTF-8 become U+FFFD.
std::string to_json(const JobRecord& record);

/// Checks, before a job runs, that its result can be written. throws UsageError naming --result-json
void check_result_json(const std::filesystem::path& path, const std::string& source);

/// Writes it, readable only by the user: replaces a file atomically, or writes to a device or pipe. throws
/// IoError
void write_result_json(const std::filesystem::path& path, const JobRecord& record);

}  // namespace ddprun::launcher
