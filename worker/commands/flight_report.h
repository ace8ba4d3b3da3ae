#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ddprun/flight/flight_dump.h>

namespace ddprun::worker {

/// What the flight records of a job's ranks say together.
struct FlightReport {
  std::vector<std::string> lines;  ///< for the user
  bool culprit = false;            ///< ranks part at a collective
};

/// Compares the ranks' records. Ranks without a record count as silent where others wait.
///
/// dumps  one a rank, in any order; of two of one rank the newer counts
FlightReport make_flight_report(std::vector<ddp::FlightDump> dumps);

/// Reads every flight_*.json under the folder, however deep, and prints the report to stdout; a line for each
/// file that cannot be read. Returns the exit code: 0 if all ranks agree, 1 if a culprit was found or nothing
/// could be read, 2 on wrong usage.
int run_flight_report(int argc, char** argv);

}  // namespace ddprun::worker
