#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>
#include <ddprun/flight/flight_dump.h>
#include <ddprun/group/process_group.h>

namespace ddprun::worker {

// The commands; argv[0] is the command's name. All throw UsageError for unknown arguments.

/// worker env: prints what a training would find here (variables, ranks, devices, backend, addresses,
/// versions) and what is wrong: rank 0 for all ranks or, if they cannot meet, each rank for itself. Returns 0
/// if all is fine, else 1.
int run_env_command(int argc, char** argv);

/// worker export CHECKPOINT OUT [--ema]: writes a model's weights alone from any file that
/// train::read_weights() reads: as a bare state_dict (OUT ends in .pt), as .safetensors, or for SAM as a
/// folder. Returns 0; throws IoError too.
int run_export_command(int argc, char** argv);

/// What the flight records of a job's ranks show together.
struct FlightReport {
  std::vector<std::string> lines;  ///< for the user
  bool culprit = false;            ///< ranks diverge at a collective
};

/// Compares the ranks' records. A rank without a record counts as missing where others wait.
///
/// dumps  in any order; if a rank has several, the newest counts
FlightReport make_flight_report(std::vector<ddp::FlightDump> dumps);

/// worker flight FOLDER: reads every flight_*.json below the folder and prints the report to stdout, with a
/// line for each unreadable file. Returns 0 if all ranks agree, 1 if a culprit was found or nothing could be
/// read. throws UsageError
int run_flight_report(int argc, char** argv);

/// What one rank finds out about its environment.
struct EnvReport {
  struct Line {
    std::string section;  ///< "variables", "this rank", "libraries"
    std::string name;
    std::string value;
  };
  std::vector<Line> lines;
  std::vector<std::string> problems;  ///< one line each: what is wrong, what was expected and found
  WorkerEnv env;                      ///< as far as the variables could be read
  std::string address = "-";          ///< where other ranks reach this one
  bool can_meet = false;              ///< nothing stops it from connecting to the other ranks
};

/// Inspects this process's environment and host without contacting other ranks.
EnvReport inspect_environment(const EnvLookup& lookup, const ddp::ProcessGroup::Options& options);

/// One rank's row in the table of ranks.
struct RankRow {
  std::vector<std::string> cells;     ///< as kRankColumns
  std::vector<std::string> problems;  ///< of that rank
};
inline const std::vector<std::string> kRankColumns = {"rank",    "host",    "local rank", "device",
                                                      "backend", "address", "torch"};

/// Connects to the other ranks if it can, and adds failures to the problems.
///
/// returns  every rank's row, by rank; only this rank's if they could not connect
std::vector<RankRow> meet_ranks(EnvReport& report, const ddp::ProcessGroup::Options& options);

/// The report as text: sections, the table of ranks, and at the end the problems or "all is fine".
std::string to_text(const EnvReport& report, const std::vector<RankRow>& ranks);

}  // namespace ddprun::worker
