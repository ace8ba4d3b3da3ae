#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/rendezvous/attempt_end.h"

namespace ddprun::launcher {

/// --restart-on-codes: exit codes as a shell shows them, so SIGKILL is 137 and a hang 124. No ranges means
/// all codes.
struct RestartCodes {
  struct Range {
    int first = 0;
    int last = 0;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> ranges;

  bool contains(int code) const;
};

/// Reads "1,3-5,SIGKILL,137": codes from 1 to 255, ranges, and names of signals.
/// throws UsageError naming `flag`, the source of the text
RestartCodes parse_restart_codes(std::string_view text, const std::string& flag = "--restart-on-codes");

/// What the user allows.
struct RestartSettings {
  int max_restarts = 0;
  std::chrono::milliseconds backoff{0};  ///< before the first restart; doubles with each further one, up to
                                         ///< 60 s or the first delay, whichever is longer
  /// An attempt that runs this long resets budget and backoff. None: never.
  std::optional<std::chrono::milliseconds> window;
  RestartCodes codes;
};

/// What comes next: a restart, or the end of the job.
struct Decision {
  bool restart = false;
  std::chrono::milliseconds delay{0};  ///< before the restart
  int restarts_used = 0;               ///< of the budget, including this restart
  int exit_code = 0;                   ///< ddprun's, if the job ends here
  std::string reason;                  ///< one clause for the log: why the job restarts or ends
};

/// Restarts after a failed worker or a hang while the budget lasts; never after a signal of the user,
/// --timeout or a program that cannot start.
///
/// restarts_used   of the last Decision
/// lived           how long the attempt ran
Decision decide(const RestartSettings& settings, const AttemptEnd& end, int restarts_used,
                std::chrono::milliseconds lived);

}  // namespace ddprun::launcher
