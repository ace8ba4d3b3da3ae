#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ddprun/train/model/task.h>
#include "worker/config/config.h"

namespace ddprun::worker {

/// A task as known to the program.
struct TaskEntry {
  std::string name;
  std::string description;  ///< one line, for the help
  std::string footer;       ///< for the task's own help
  /// Settings given without a flag, and their names in the help.
  std::vector<std::pair<std::string, std::string>> positionals = {};
  bool leaves_unused = false;  ///< no step uses some of the model's parameters
  /// Sets the task's defaults, which may depend on other settings.
  void (*set_defaults)(Config&);
  train::Task (*make)(const Config&);
};

/// A command of the program, apart from the tasks.
struct CommandEntry {
  std::string name;
  std::string usage;  ///< its arguments, for the help
  std::string description;
  int (*run)(int argc, char** argv);  ///< argv[0] is the command's name
};

/// Parses the worker's command line and the file that its --config names. --help, --version and
/// --print-config print to stdout and end the program with 0.
///
/// commands  for help and messages
/// throws    UsageError: one line that names the flag, or the file's line, what was expected and what was
/// got;
///           IoError for a file that cannot be read
Config parse_config(int argc, const char* const* argv, const std::vector<TaskEntry>& tasks,
                    const std::vector<CommandEntry>& commands);

/// Drops defaults that contradict stated settings. throws  UsageError for settings that exclude each other
void settle(Config& config, const TaskEntry& task);

}  // namespace ddprun::worker
