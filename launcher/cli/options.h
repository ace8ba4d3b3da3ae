#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ddprun/common/settings/command.h>
#include "launcher/cli/hosts.h"
#include "launcher/cli/node_options.h"
#include "launcher/events/restart_policy.h"

namespace ddprun::launcher {

/// --nproc-per-node: a number, or what to count on this host.
struct WorkersWanted {
  enum class Kind { kCount, kCpu, kGpu, kXpu, kAuto };
  Kind kind = Kind::kCount;
  int count = 1;  ///< only for kCount
};

/// --recover: what a restart starts again.
enum class Recover { kAll, kRank };

/// What ddprun itself can look at before a node joins (--preflight).
inline constexpr std::array kPreflightChecks{"disk", "shm", "clock", "gpus"};

/// --preflight: what must succeed on a node before it joins the job.
struct PreflightWanted {
  std::vector<std::string> checks;  ///< some of kPreflightChecks
  std::string command;              ///< for a shell; empty: only the checks
  bool any() const { return !checks.empty() || !command.empty(); }
  bool has(std::string_view check) const;
};

/// --numa-binding, with torchrun's names.
enum class NumaBinding { kNode, kSocket, kExclusive, kCoreComplex };
inline constexpr std::array kNumaBindings{"node", "socket", "exclusive", "core-complex"};

/// What PROGRAM is, by torchrun's rules: -m, --no-python, or a name that ends in ".py".
enum class ProgramKind { kExecutable, kPythonScript, kPythonModule };

/// None, one or both of a worker's output streams.
struct Streams {
  bool out = false;
  bool err = false;
  bool operator==(const Streams&) const = default;
};

/// The workers and streams that --redirects or --tee selects: of all workers, or of the listed ones only.
struct StreamSelection {
  Streams others;                       ///< for local ranks not listed
  std::map<int, Streams> by_rank = {};  ///< by local rank
  Streams of(int local_rank) const;
  /// Whether it selects any stream at all.
  bool any() const;
  bool operator==(const StreamSelection&) const = default;
};

/// Where log files go without --log-dir.
inline constexpr char kDefaultLogDir[] = "ddprun_logs";

/// Where the workers' output goes, as in torchrun.
struct OutputOptions {
  std::filesystem::path log_dir;                  ///< parent of the job's folder; empty: no files
  bool log_dir_given = false;                     ///< else log_dir is a default
  std::string log_dir_source = "the log folder";  ///< for messages: the flag, variable or key that names it
  StreamSelection redirects, tee;
  std::optional<std::set<int>> shown;  ///< local ranks whose output the console shows; none given: all
  std::vector<std::string> stdout_filters, stderr_filters;
  std::string prefix_template;  ///< --log-line-prefix-template; empty: kDefaultPrefixTemplate
  std::optional<bool> prefix;   ///< unset: on a terminal with several workers, and with --tee
  bool timestamps = false;
  bool other_hosts = false;      ///< the console also shows lines of other hosts' workers (--hosts)
  std::size_t log_max_size = 0;  ///< bytes; 0: no limit
};

/// What the user requested: checked, but not yet compared with the host.
struct Options {
  WorkersWanted nproc_per_node;
  std::string role = "default";
  NodesOptions nodes;
  HostsOptions hosts;
  std::vector<std::string> exclude;  ///< names and addresses of hosts that take no part in the job
  bool excluded = false;             ///< this one is among them: there is nothing to do
  std::string run_id;                ///< empty: a random one
  std::optional<int> master_port;    ///< of the workers' store; unset: a free port

  std::chrono::milliseconds shutdown_timeout{30'000};  ///< from SIGTERM to SIGKILL
  std::optional<std::chrono::milliseconds> timeout, hang_timeout;
  std::vector<int> ending_signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};  ///< end the job
  std::vector<int> forwarded_signals{SIGUSR1, SIGUSR2};               ///< only passed on
  bool signal_group = false;  ///< end all processes of a worker at once, not its own program first

  RestartSettings restart;
  Recover recover = Recover::kAll;
  int standby = 0;  ///< processes that wait to replace a worker
  PreflightWanted preflight;
  std::chrono::milliseconds preflight_timeout{120'000};
  std::vector<std::string> preload;  ///< modules and files that workers have imported when they start
  OutputOptions output;
  std::filesystem::path result_json, events_json;  ///< empty: none
  /// For messages: the flag, variable or key that names them.
  std::string result_json_source = "--result-json", events_json_source = "--events-json";
  std::optional<Endpoint> metrics;  ///< --metrics-port: an address; port 0 means a free one
  std::string metrics_token;        ///< required by it; empty: none
  std::optional<NumaBinding> numa_binding;
  std::vector<std::string> gpus;  ///< --gpus, without ranges; empty: all that are visible
  bool virtual_local_rank = false;
  bool dry_run = false;     ///< show what would start, then exit
  bool show_ranks = false;  ///< a line for each worker that starts

  bool help = false;  ///< show help_text(), then exit
  bool version = false;
  std::string completion;          ///< --print-completion: show this script, then exit
  std::vector<std::string> notes;  ///< for the user, one per line: flags without effect
  std::string misplaced_flag;      ///< one of ddprun's with which the script's arguments begin; empty: none
  ProgramKind program_kind = ProgramKind::kExecutable;
  bool expand = false;               ///< replace ${local_rank} in the program's arguments
  std::vector<std::string> program;  ///< program and arguments, unchanged bytes; never empty in a run
};

/// The limit for --nproc-per-node: a typo must not fork the machine to death.
constexpr int kMaxWorkersPerNode = 4096;

/// Reads the command line (without argv[0]), see read_command_line(). throws UsageError, IoError
///
/// order  if the ddprun of another host has started this one
Options parse_options(const std::vector<std::string>& arguments, const EnvLookup& environment = process_env,
                      const StartOrder* order = nullptr);

/// What --help prints.
std::string help_text();

/// What --print-completion prints: a file of completions/. nullopt for a shell that has none.
std::optional<std::string> completion_script(const std::string& shell);

// Parsers of flag values; nullopt if the text is invalid.

inline constexpr char kStreamSelections[] =
    "0 (none), 1 (stdout), 2 (stderr) or 3 (both) for all workers, or a list such as 0:3,1:1 of local ranks, "
    "each once";
std::optional<StreamSelection> parse_stream_selection(const std::string& text);

/// The expected value of --local-ranks-filter: "0,2".
inline constexpr char kLocalRanks[] = "local ranks separated by commas, such as 0,2";
std::optional<std::set<int>> parse_local_ranks(const std::string& text);

/// Reads --preflight: "disk,shm" are checks, and what is not a list of plain words is a shell command.
/// nullopt for a list that has words other than checks, and for one word that resembles a check.
std::optional<PreflightWanted> parse_preflight(const std::string& text);

/// The texts of --duplicate-stdout-filters, separated by commas; ",," stands for a comma in a text. Accepts
/// any text.
std::optional<std::vector<std::string>> parse_line_filters(const std::string& text);

/// Every flag of ddprun. Those whose meaning does not depend on others set the options, which must outlive
/// the result.
settings::Command make_command(Options& options);

/// The variables of this environment ("NAME=value") that look like ddprun's but are not. None inside a job,
/// whose ddprun has already named them.
std::vector<std::string> unknown_variables(const std::vector<std::string>& environment);

/// The variables of this environment that give flags: DDPRUN_<FLAG>, and torchrun's PET_<FLAG>.
std::vector<std::string> variables_of_flags(const std::vector<std::string>& environment);

/// The values from command line, variables and --config file, including "program". Flags end at the first
/// word that is not one, or at "--". The command line wins over DDPRUN_<FLAG>, which wins over PET_<FLAG>
/// (torchrun's flags only), which wins over the file. throws UsageError; IoError if the file cannot be read
settings::Values read_command_line(const std::vector<std::string>& words, const EnvLookup& environment,
                                   const settings::Command& command);

}  // namespace ddprun::launcher
