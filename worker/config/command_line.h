#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "worker/config/setting.h"

namespace ddprun::worker {

/// A task as the command line sees it.
struct TaskHelp {
  std::string name;
  std::string description;
  std::string footer;
  /// Settings that may be given by position: name and what the help calls it.
  std::vector<std::pair<std::string, std::string>> positionals;
};

/// What the user typed, not yet applied.
struct CommandLine {
  std::string task;
  std::filesystem::path config_file;  ///< of --config; empty: none
  bool print_config = false;
  bool overwrite = false;
  /// Setting and the text of its value, in no particular order, each setting once.
  std::vector<std::pair<const Setting*, std::string>> given;
};

/// The first argument names the task, or is --config with a file that does. --help and --version print to
/// stdout and end the program with 0.
///
/// settings  of all tasks, with the named task's defaults: the help shows them
/// throws    UsageError: one line that names what is unknown or missing
CommandLine parse_command_line(const std::vector<std::string>& words, const std::vector<TaskHelp>& tasks,
                               const std::vector<Setting>& settings);

/// The task that the words name, themselves or by --config FILE as the first of them; empty if none does.
std::string task_of_words(const std::vector<std::string>& words);

}  // namespace ddprun::worker
