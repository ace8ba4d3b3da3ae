#pragma once

#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>
#include <ddprun/group/process_group.h>

namespace ddprun::worker {

/// What one rank finds out about its environment.
struct EnvReport {
  struct Line {
    std::string section;  ///< "variables", "this rank", "libraries"
    std::string name;
    std::string value;
  };
  std::vector<Line> lines;            ///< those of a section follow each other
  std::vector<std::string> problems;  ///< one line each: what is wrong, what was expected and found
  WorkerEnv env;                      ///< as far as the variables could be read
  std::string address = "-";          ///< where other ranks can reach this one
  bool can_meet = false;              ///< nothing prevents it from connecting to the other ranks
};

/// Inspects this process's environment and host without contacting other ranks.
EnvReport inspect_environment(const EnvLookup& lookup, const ddp::ProcessGroup::Options& options);

/// One rank's row in the table of ranks.
struct RankRow {
  std::vector<std::string> cells;     ///< as in kRankColumns
  std::vector<std::string> problems;  ///< of that rank
};
inline const std::vector<std::string> kRankColumns = {"rank",    "host",    "local rank", "device",
                                                      "backend", "address", "torch"};

/// Connects to the other ranks if it can, and adds failures to the problems.
///
/// returns  every rank's row, by rank; only this rank's if they could not connect
std::vector<RankRow> meet_ranks(EnvReport& report, const ddp::ProcessGroup::Options& options);

/// The report as text: sections, the table of ranks, then the problems or "all is fine".
std::string to_text(const EnvReport& report, const std::vector<RankRow>& ranks);

}  // namespace ddprun::worker
