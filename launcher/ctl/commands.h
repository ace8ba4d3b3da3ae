#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "launcher/ctl/job_screen.h"
#include "launcher/ctl/jobs.h"

namespace ddprun::launcher {

/// The command line of `ddpctl`.
struct CtlOptions {
  std::string command, job;
  std::optional<int> rank;
  bool follow = false, once = false;
  double interval = 2;
  bool help = false, version = false;
};

/// throws UsageError
CtlOptions parse_ctl_options(const std::vector<std::string>& words);

std::string ctl_help();

/// The stacks of one rank, or of all, as text.
std::string stacks_text(JobConnection& job, std::optional<int> rank);

/// Runs any command except top. returns the exit code
int run_command(const CtlOptions& options);

/// Shows a job until the user leaves or the job ends: one screen, refreshed every `interval` seconds. returns
/// the exit code
int show_top(const std::string& job, double interval);

}  // namespace ddprun::launcher
