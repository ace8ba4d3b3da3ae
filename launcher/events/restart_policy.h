#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ddprun/common/error_file.h>
#include "launcher/events/signals.h"

namespace ddprun::launcher {

struct AllSucceeded {
  bool operator==(const AllSucceeded&) const = default;
};
struct WorkerFailed {
  ExitStatus status;
  std::size_t index = 0;  ///< of the first worker that failed, on its node
  bool operator==(const WorkerFailed&) const = default;
};
/// A worker, or ddprun itself, could not start.
struct StartFailed {
  int exit_code = 0;  ///< LaunchError's
  std::string message = {};
  bool operator==(const StartFailed&) const = default;
};
struct TimedOut {
  bool operator==(const TimedOut&) const = default;
};
/// These workers hang, by index on their node: the one that has been silent longest comes first, as the most
/// likely culprit.
struct Hung {
  std::vector<std::size_t> workers = {};
  bool all_nodes = false;  ///< no rank of the job shows a sign of life, on other nodes either
  bool operator==(const Hung&) const = default;
};
/// The job's other nodes ended the attempt.
struct EndedByPeers {
  std::string reason = {};
  bool dump_stacks = false;             ///< workers somewhere hang, or take too long
  std::optional<int> user_signal = {};  ///< that ended one of them: the workers end with it, too
  bool drained = false;                 ///< this node leaves the job (ddpctl drain)
  bool replaced = false;                ///< and others have its ranks: its workers have nothing to save
  bool operator==(const EndedByPeers&) const = default;
};

/// How an attempt, or the whole job, ended.
using AttemptEnd =
    std::variant<AllSucceeded, WorkerFailed, StartFailed, TimedOut, Hung, SignalReceived, EndedByPeers>;

/// Whether the workers' stacks explain it.
inline bool is_stuck(const AttemptEnd& end) {
  return std::holds_alternative<TimedOut>(end) || std::holds_alternative<Hung>(end);
}

/// The user's signal that it was, if it was one.
inline std::optional<int> signal_of(const AttemptEnd& end) {
  const auto* received = std::get_if<SignalReceived>(&end);
  return received != nullptr ? std::optional(received->signal) : std::nullopt;
}

/// ddprun's exit code for it; 0 if the other nodes ended it, since the coordinator knows the code.
int to_exit_code(const AttemptEnd& end);

/// "reason" in --result-json, which distinguishes a worker's exit code 2, or 124 to 127, from ddprun's own:
/// "succeeded", "failed", "signal", "timeout", "hang", "other-node", "drained", or for ddprun's own failures
/// "own-failure", "not-executable", "not-found", "usage".
std::string reason_of(const AttemptEnd& end);

/// --restart-on-codes: exit codes as a shell shows them, so SIGKILL is 137 and a hang 124. Empty means all.
using RestartCodes = std::set<int>;

/// Reads "1,3-5,SIGKILL,137": codes from 1 to 255, ranges, and names of signals.
/// throws UsageError naming `flag`, the source of the text
RestartCodes parse_restart_codes(std::string_view text, const std::string& flag = "--restart-on-codes");

/// What the user allows.
struct RestartSettings {
  int max_restarts = 0;
  std::chrono::milliseconds backoff{0};  ///< before the first restart; doubles each time, up to 60 s or the
                                         ///< first delay, whichever is longer
  /// An attempt that runs this long resets budget and backoff. None: never.
  std::optional<std::chrono::milliseconds> window;
  RestartCodes codes;
  int max_stalled = 0;  ///< --max-stalled-restarts; 0: no limit
};

/// How far an attempt's workers have come, as they have reported (docs/status.md).
struct Reached {
  std::int64_t epoch = 0, step = -1;  ///< -1: none
  bool starts_over = false;           ///< steps were counted anew in the same epoch: they do not tell how far
  bool operator==(const Reached&) const = default;
};
Reached furthest(const Reached& a, const Reached& b);

/// --max-stalled-restarts: restarts in a row that have brought no new step. Programs that report no steps, or
/// count them anew, are not judged.
class StallWatch {
 public:
  /// A failed attempt, and what it died of, in one clause.
  void add(int attempt, const Reached& reached, const std::string& end);
  bool ends_job(const RestartSettings& settings) const;
  /// "2 restarts in a row made no progress after step 41 (--max-stalled-restarts)"
  std::string reason() const;
  /// What each of these attempts died of: "attempt 0, which reached step 41: rank 0 failed: exit code 3".
  std::vector<std::string> report() const;

 private:
  Reached best_;
  std::vector<std::string> ends_;  ///< of the attempt that came furthest, and of those after it
};

/// What happens next: a restart, or the end of the job.
struct Decision {
  bool restart = false;
  std::chrono::milliseconds delay{0};  ///< before the restart
  int restarts_used = 0;               ///< of the budget, including this restart
  int exit_code = 0;                   ///< ddprun's, if the job ends here
  std::string reason;                  ///< one clause for the log: why the job restarts or ends
};

/// Restarts after a failed worker or a hang while the budget lasts; never after a signal from the user,
/// --timeout, or a program that cannot start.
///
/// restarts_used   of the last Decision
/// lived           how long the attempt ran
Decision decide(const RestartSettings& settings, const AttemptEnd& end, int restarts_used,
                std::chrono::steady_clock::duration lived);

}  // namespace ddprun::launcher
