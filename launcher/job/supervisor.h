#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/error_file.h>
#include "launcher/cli/options.h"

namespace ddprun::launcher {

struct RunResult {
  int exit_code = 0;
  std::optional<int> ended_by;  ///< the user's signal that ended the job: ddprun must die by it too

  static RunResult by_signal(int signal) { return {exit_code_of_signal(signal), signal}; }
};

/// Runs one job, leaving no processes or files behind. Logs why it failed.
///
/// environment   ddprun's own, "NAME=value"
RunResult run_job(const Options& options, const std::vector<std::string>& environment);

}  // namespace ddprun::launcher
