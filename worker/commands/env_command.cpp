#include "worker/commands/commands.h"

#include <algorithm>
#include <iostream>
#include <optional>

#include <ddprun/common/settings/command.h>
#include "worker/commands/env_report.h"
#include "worker/config/settings.h"

namespace ddprun::worker {
namespace {

/// nullopt if only help was asked for.
std::optional<ddp::ProcessGroup::Options> parse_env_flags(int argc, char** argv) {
  ddp::ProcessGroup::Options options;
  options.timeout = std::chrono::seconds(10);
  settings::Command command;
  command.name = "worker env";
  command.description = "prints what a training finds here, and what is wrong. Exit status 1 if anything is.";
  command.settings = {
      settings::help_flag(),
      device_setting(options.device),
      backend_setting(options.backend),
      seconds("timeout", options.timeout, "how long to wait for the other ranks"),
  };
  if (!apply_words({argv + 1, argv + argc}, command)) return std::nullopt;
  options.connect_timeout = options.timeout;
  return options;
}

}  // namespace

int run_env_command(int argc, char** argv) {
  const auto options = parse_env_flags(argc, argv);
  if (!options) return 0;
  EnvReport report = inspect_environment(process_env, *options);
  const auto ranks = meet_ranks(report, *options);
  if (ranks.size() == 1 || report.env.rank == 0) std::cout << to_text(report, ranks) << std::flush;
  const bool fine =
      report.problems.empty() &&
      std::all_of(ranks.begin(), ranks.end(), [](const RankRow& rank) { return rank.problems.empty(); });
  return fine ? 0 : 1;
}

}  // namespace ddprun::worker
