#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ddprun/train/model/task.h>
#include "worker/config/config.h"

namespace ddprun::worker {

/// A task as the program knows it.
struct TaskEntry {
  std::string name;
  std::string description;  ///< one line, for the help
  std::string footer;       ///< of the task's own help
  /// Settings given without a flag, and their names in the help.
  std::vector<std::pair<std::string, std::string>> positionals;
  /// Sets the task's defaults, which may depend on other settings.
  void (*set_defaults)(Config&);
  train::Task (*make)(const Config&);
};

/// Parses the worker's command line and the file that its --config names. --help, --version and
/// --print-config print to stdout and end the program with 0.
///
/// throws  UsageError: one line that names the flag, or the file's line, what was expected and what was got;
///         IoError for a file that cannot be read
Config parse_config(int argc, const char* const* argv, const std::vector<TaskEntry>& tasks);

}  // namespace ddprun::worker
