#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <ddprun/common/exit_status.h>
#include <ddprun/common/unique_fd.h>
#include "launcher/events/job_clock.h"

namespace ddprun::launcher {

/// Something that happened to a job, for --events-json. Fields that an event has no use for stay unset.
struct EventRecord {
  enum class Kind {
    kStarted,      ///< "started": a worker
    kFirstOutput,  ///< "first_output" of a worker
    kExited,       ///< "exited": a worker, with its status
    kSignal,       ///< "signal" that ddprun received
    kStopping,     ///< "stopping": the workers are sent a signal to end
    kKilled,       ///< "killed": those left are sent SIGKILL
    kRestart,      ///< "restart" after a delay
    kHang,         ///< "hang" was noticed
    kTimeout,      ///< "timeout" of the job
    kFinished,     ///< "finished": ddprun ends, with its exit code
  };
  Kind kind = Kind::kStarted;
  JobClock::Monotonic::time_point at;  ///< when it happened
  int attempt = 0;
  std::optional<int> rank = std::nullopt;
  std::optional<int> local_rank = std::nullopt;
  std::optional<pid_t> pid = std::nullopt;
  std::optional<ExitStatus> status = std::nullopt;
  std::optional<int> signal = std::nullopt;
  std::optional<int> exit_code = std::nullopt;
  std::optional<std::chrono::milliseconds> delay = std::nullopt;
};

/// The event as one line of JSON, with its '\n'.
std::string to_json_line(const EventRecord& event, const JobClock& clock);

/// The file that --events-json names: one line an event, each written at once. An error is one warning, after
/// which nothing more is written: the job goes on.
class EventsJson {
 public:
  /// Does nothing at all without a path. The file is appended to; a new one is the user's alone.
  EventsJson(const std::optional<std::filesystem::path>& path, const JobClock& clock);

  void add(const EventRecord& event);

 private:
  void give_up(const std::string& what, int error);

  std::filesystem::path path_;
  JobClock clock_;
  UniqueFd fd_;
};

}  // namespace ddprun::launcher
