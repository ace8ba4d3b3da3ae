#pragma once

#include <string>
#include <vector>

#include <ddprun/flight/flight_recorder.h>

namespace ddprun::worker {

/// What the flight records of a job's ranks show together.
struct FlightReport {
  std::vector<std::string> lines;  ///< for the user
  bool culprit = false;            ///< whether ranks diverge at a collective
};

/// Compares the ranks' records. A rank without a record counts as missing where others wait.
///
/// dumps  in any order; if a rank has several, the newest counts
FlightReport make_flight_report(std::vector<ddp::FlightDump> dumps);

/// worker flight FOLDER: reads every flight_*.json below the folder and prints the report to stdout, with a
/// line for each unreadable file. Returns 0 if all ranks agree, 1 if a culprit was found or nothing could be
/// read. throws UsageError
int run_flight_report(int argc, char** argv);

}  // namespace ddprun::worker
