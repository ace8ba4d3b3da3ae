#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include <ddprun/common/error_file.h>
#include <ddprun/common/files.h>
#include "launcher/events/clock.h"
#include "launcher/events/threads.h"

namespace ddprun::launcher {

/// Something that happened to a job, for --events-json. Fields that do not apply stay unset.
struct EventRecord {
  enum class Kind {
    kStarted,      ///< "started": a worker
    kFirstOutput,  ///< "first_output" of a worker
    kExited,       ///< "exited": a worker, with its status
    kSignal,       ///< "signal": ddprun received one
    kStopping,     ///< "stopping": ddprun sends the workers a signal to end
    kKilled,       ///< "killed": ddprun sends SIGKILL to the rest
    kRestart,      ///< "restart" after a delay
    kHang,         ///< "hang"
    kTimeout,      ///< "timeout" of the job
    kStraggler,    ///< "straggler": a rank has been slow for a while
    kDrained,      ///< "drained": a node leaves the job (ddpctl drain)
    kFinished,     ///< "finished": ddprun exits with its exit code
  };
  Kind kind = Kind::kStarted;
  JobClock::Monotonic::time_point at;
  int attempt = 0;
  std::optional<int> rank = std::nullopt;
  std::optional<int> local_rank = std::nullopt;
  std::optional<pid_t> pid = std::nullopt;
  std::optional<ExitStatus> status = std::nullopt;
  std::optional<int> signal = std::nullopt;
  std::optional<int> exit_code = std::nullopt;
  std::optional<std::chrono::milliseconds> delay = std::nullopt;
  std::optional<double> factor = std::nullopt;  ///< for a straggler
  std::optional<std::int64_t> since_step = std::nullopt;
  std::optional<std::string> cause = std::nullopt;
  std::optional<std::string> node =
      std::nullopt;  ///< that is drained; the cause says what becomes of its ranks
};

/// {"exit_code": 1} or {"signal": 9, "signal_name": "SIGKILL", "core_dumped": false}
nlohmann::ordered_json to_json(const ExitStatus& status);

/// The event as one line of JSON, including '\n'.
std::string to_json_line(const EventRecord& event, const JobClock& clock);

/// The file of --events-json: one line per event, written at once, by a thread. An error while writing is
/// logged as a warning and stops the recording; the job continues.
class EventsJson {
 public:
  /// Appends to the file; a new one gets mode 0600. Without a path, records nothing.
  ///
  /// source  the flag, variable or key that names it
  /// throws  UsageError
  EventsJson(boost::asio::io_context& io, const std::optional<std::filesystem::path>& path,
             const JobClock& clock, const std::string& source = "--events-json");
  /// Waits a second at most for a stalled disk.
  ~EventsJson();
  EventsJson(const EventsJson&) = delete;
  EventsJson& operator=(const EventsJson&) = delete;

  void add(const EventRecord& event);

 private:
  class File;

  JobClock clock_;
  WriterThread thread_;
  std::shared_ptr<File> file_;  // null: not wanted
  std::size_t missing_ = 0;     // events that found the queue full
};

}  // namespace ddprun::launcher
