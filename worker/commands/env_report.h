#pragma once

#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>
#include <ddprun/group/process_group.h>

namespace ddprun::worker {

/// What one rank finds around it.
struct EnvReport {
  struct Line {
    std::string section;  ///< "variables", "this rank", "libraries"
    std::string name;
    std::string value;
  };
  std::vector<Line> lines;
  std::vector<std::string> problems;  ///< one line each: what is wrong, what was expected, what was got
  WorkerEnv env;                      ///< as far as it could be read
  bool can_meet = false;              ///< nothing is wrong that keeps it from the other ranks
};

/// Looks at this process's environment and host, and asks nobody else.
EnvReport inspect_environment(const EnvLookup& lookup, const ddp::ProcessGroup::Options& options);

/// What one rank tells the others.
struct RankRow {
  std::vector<std::string> cells;     ///< as kRankColumns
  std::vector<std::string> problems;  ///< of that rank
};
inline const std::vector<std::string> kRankColumns = {"rank",    "host",    "local rank", "device",
                                                      "backend", "address", "torch"};

/// Meets the other ranks, if it can. What goes wrong is added to the problems.
///
/// returns  every rank's row, by rank; this rank's alone if they did not meet
std::vector<RankRow> meet_ranks(EnvReport& report, const ddp::ProcessGroup::Options& options);

/// The report as text: sections, the table of ranks, and at the end what is wrong or "all is fine".
std::string to_text(const EnvReport& report, const std::vector<RankRow>& ranks);

}  // namespace ddprun::worker
