#include "worker/commands/env_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <optional>

#include "worker/commands/env_report.h"
#include "worker/config/flags.h"

namespace ddprun::worker {
namespace {

/// Nothing if only help was asked for.
std::optional<ddp::ProcessGroup::Options> parse_env_flags(int argc, char** argv) {
  CLI::App app("Prints what a training finds here, and what is wrong. Exit status 1 if something is.",
               "worker env");
  std::string device = "auto", backend = "auto";
  double seconds = 10;
  app.add_option("--device", device, "auto, cpu or cuda")->capture_default_str();
  app.add_option("--backend", backend, "auto, gloo or nccl")->capture_default_str();
  app.add_option("--timeout", seconds, "seconds to wait for the other ranks")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  if (!parse_or_help(app, argc, argv)) return std::nullopt;
  ddp::ProcessGroup::Options options;
  options.device = ddp::parse_device_choice("--device", device);
  options.backend = ddp::parse_backend_choice("--backend", backend);
  options.timeout = options.connect_timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
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
