#pragma once

#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

/// What a worker reports about its training. Unset members are not reported.
struct WorkerStatus {
  std::optional<std::int64_t> step = {}, steps = {};    ///< done since step 0, and the total
  std::optional<std::int64_t> epoch = {}, epochs = {};  ///< done, and the total
  std::optional<std::string> phase = {};                ///< such as "train" or "evaluate"
  std::optional<std::string> report = {};  ///< path of a page about the training, for --metrics-port
  std::optional<double> loss = {};
  std::optional<std::int64_t> samples = {};  ///< of this rank since the process started

  /// Since the process started.
  struct Seconds {
    std::optional<double> data = {};           ///< waiting for input
    std::optional<double> compute = {};        ///< this rank's own work, without waiting for other ranks
    std::optional<double> communication = {};  ///< waiting for other ranks
    std::optional<double> evaluation = {}, checkpoint = {}, start = {};
    bool operator==(const Seconds&) const = default;
  } seconds = {};

  /// Bytes.
  struct Memory {
    std::optional<std::int64_t> resident = {}, device = {};
    bool operator==(const Memory&) const = default;
  } memory = {};

  bool operator==(const WorkerStatus&) const = default;
};

/// The status as one line of JSON with its '\n', such as
///   {"step":1200,"steps":9380,"phase":"train","loss":0.12,"seconds":{"data":1.2,"compute":30.1}}
/// Leaves out seconds that are not finite; such a loss is null.
std::string to_json_line(const WorkerStatus& status);

/// Reads such a line from an untrusted program: `before`, updated by the line. Ignores unknown members and
/// null, except that a null loss means NaN. nullopt: not a JSON object, or an invalid member (counts and
/// seconds are not negative).
std::optional<WorkerStatus> parse_status(std::string_view line, const WorkerStatus& before = {});

/// A line is at most this long (PIPE_BUF: it is written in one piece or not at all).
inline constexpr std::size_t kMaxStatusLine = 4096;

/// The worker's side of the status channel, which ddprun shows and measures (ddpctl, --metrics-port).
///
///   StatusChannel channel(from_env().status_fd);   once, early
///   channel.send(status);                          every step, or every few
///
/// Does not own the descriptor: copies are equal, and any thread may send.
class StatusChannel {
 public:
  StatusChannel() = default;  ///< goes nowhere
  /// fd  DDPRUN_STATUS_FD. Goes nowhere unless it is the writing end of a pipe, as in Heartbeat.
  explicit StatusChannel(std::optional<int> fd);

  /// Never waits and never fails: if the pipe is full, the line is dropped.
  void send(const WorkerStatus& status) const;

  bool connected() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

int pipe_to_write_to(std::optional<int> fd);  // in files.h

/// The worker's side of ddprun's --hang-timeout: a beat whenever the training makes progress.
///
///   Heartbeat heartbeat(from_env().heartbeat_fd);   once, early
///   heartbeat.beat();                               every step
///
/// Once a worker has sent a beat, it counts as hung when its beats and its output stop, whatever the other
/// workers do. Does not own the descriptor: copies are equal, and any thread may beat.
class Heartbeat {
 public:
  Heartbeat() = default;  ///< beats go nowhere
  /// fd  DDPRUN_HEARTBEAT_FD. Beats go nowhere unless it is the writing end of a pipe: the variable may be
  ///     left over from an outer process.
  explicit Heartbeat(std::optional<int> fd) : fd_(pipe_to_write_to(fd)) {}

  /// Never waits and never fails: if the pipe is full, a beat is already queued.
  void beat() const {
    if (fd_ >= 0) [[maybe_unused]]
      const ssize_t ignored = ::write(fd_, ".", 1);
  }

  bool connected() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace ddprun
