#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/rendezvous/attempt_end.h"

namespace ddprun::launcher {

/// --restart-on-codes: exit codes as a shell shows them, so that a worker killed by SIGKILL has code 137 and
/// a hang 124. Without ranges it stands for every code.
struct RestartCodes {
  struct Range {
    int first = 0;
    int last = 0;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> ranges;

  bool contains(int code) const;
};

/// Reads "1,3-5,SIGKILL,137": codes from 1 to 255, ranges of them, and names of signals.
/// throws UsageError naming the flag, or where else it was said
RestartCodes parse_restart_codes(std::string_view text, const std::string& flag = "--restart-on-codes");

/// What the user allows.
struct RestartSettings {
  int max_restarts = 0;
  std::chrono::milliseconds backoff{0};  ///< before the first restart; doubles with each further one, up to
                                         ///< kMaxBackoff, or the first delay if that is longer
  /// An attempt that lived so long makes the budget and the backoff new. None: they never are.
  std::optional<std::chrono::milliseconds> window;
  RestartCodes codes;
};

constexpr std::chrono::milliseconds kMaxBackoff{60'000};

/// What comes next: the job ends with this code, or is tried again.
struct Decision {
  bool restart = false;
  std::chrono::milliseconds delay{0};  ///< until the restart
  int restarts_used = 0;               ///< of the budget, this restart included
  int exit_code = 0;                   ///< ddprun's, if the job ends here
  std::string reason;                  ///< one clause for the log: why it is, or is not, tried again
};

/// Decides. A failed worker or a hang is tried again while the budget lasts; a signal of the user, --timeout
/// and a program that cannot be started never are.
///
/// restarts_used   of the budget so far, as the last Decision had it
/// lived           how long the attempt ran
Decision decide(const RestartSettings& settings, const AttemptEnd& end, int restarts_used,
                std::chrono::milliseconds lived);

}  // namespace ddprun::launcher
