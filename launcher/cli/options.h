#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>
#include "launcher/cli/node_options.h"
#include "launcher/cli/stream_selection.h"
#include "launcher/rendezvous/restart_policy.h"

namespace ddprun::launcher {

/// --nproc-per-node: a number, or what to count on this host.
struct WorkersWanted {
  enum class Kind { kCount, kCpu, kGpu, kAuto };
  Kind kind = Kind::kCount;
  int count = 1;  ///< only for kCount
};

/// --numa-binding, with torchrun's names.
enum class NumaBinding { kNode, kSocket, kExclusive, kCoreComplex };
inline constexpr std::array kNumaBindings{"node", "socket", "exclusive", "core-complex"};

/// What PROGRAM is, by torchrun's rules: -m, --no-python, or a name that ends in ".py".
enum class ProgramKind { kExecutable, kPythonScript, kPythonModule };

/// Where files go that need a place when no --log-dir is given.
inline constexpr char kDefaultLogDir[] = "ddprun_logs";

/// Where the workers' output goes, as in torchrun.
struct OutputOptions {
  std::filesystem::path log_dir;  ///< of the job's folder; empty: no files
  bool log_dir_given = false;     ///< by the user; else log_dir is a default
  StreamSelection redirects, tee;
  std::optional<std::set<int>> shown;  ///< local ranks whose output the console shows; none: all
  std::vector<std::string> stdout_filters, stderr_filters;
  std::optional<bool> prefix;  ///< none: on a terminal with several workers, and with --tee
  bool timestamps = false;
  std::size_t log_max_size = 0;  ///< bytes; 0: no limit
};

/// What the user asked for: checked, but nothing has been looked up on the host yet.
struct Options {
  WorkersWanted nproc_per_node;
  std::string role = "default";
  NodesOptions nodes;
  std::string run_id;              ///< empty: a random one
  std::optional<int> master_port;  ///< of the workers' store; none: a free port

  std::chrono::milliseconds shutdown_timeout{30'000};  ///< from SIGTERM to SIGKILL
  std::optional<std::chrono::milliseconds> timeout, hang_timeout;
  std::vector<int> ending_signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};  ///< end the job
  std::vector<int> forwarded_signals{SIGUSR1, SIGUSR2};               ///< only passed on

  RestartSettings restart;
  OutputOptions output;
  std::filesystem::path result_json, events_json;  ///< empty: none
  std::optional<NumaBinding> numa_binding;
  bool virtual_local_rank = false;
  bool dry_run = false;  ///< show what would be started, and exit

  bool help = false;  ///< show help_text() and exit
  bool version = false;
  std::vector<std::string> notes;  ///< for the user, one line each: flags without effect
  ProgramKind program_kind = ProgramKind::kExecutable;
  bool expand = false;               ///< replace ${local_rank} in the program's arguments
  std::vector<std::string> program;  ///< program and arguments, byte for byte; never empty in a run
};

/// Limit of --nproc-per-node: a typing error must not fork until the machine gives up.
constexpr int kMaxWorkersPerNode = 4096;

/// Reads the command line (without argv[0]), the variables and the --config file, see read_command_line().
/// throws UsageError, IoError for the --config file
Options parse_options(const std::vector<std::string>& arguments, const EnvLookup& environment = process_env);

/// What --help prints.
std::string help_text();

}  // namespace ddprun::launcher
