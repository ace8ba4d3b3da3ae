#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace ddprun {

/// --nproc-per-node: a number, or what to count on this host.
struct WorkersWanted {
  enum class Kind { kCount, kCpu, kGpu, kAuto };
  Kind kind = Kind::kCount;
  int count = 1;  ///< only for kCount
};

/// What the user asked for. Everything here is checked; nothing was looked up on the host yet.
struct Options {
  WorkersWanted nproc_per_node;
  std::chrono::milliseconds shutdown_timeout{30'000};  ///< from asking the workers to end to SIGKILL
  std::string run_id;                                  ///< empty: a random one
  std::optional<int> master_port;                      ///< none: a free one
  bool help = false;                                   ///< show help_text() and do nothing else
  bool version = false;
  std::vector<std::string> program;  ///< program and arguments, byte for byte; never empty in a run
};

/// Most workers that one node may be asked for: a typing error must not fork until the machine gives up.
constexpr int kMaxWorkersPerNode = 4096;

/// Reads the command line without argv[0]. Our flags end at the first word that is none, or at "--"; from
/// there on everything is the program's. throws UsageError
Options parse_options(const std::vector<std::string>& arguments);

/// What --help prints.
std::string help_text();

}  // namespace ddprun
