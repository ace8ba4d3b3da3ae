#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "launcher/cli/options.h"

namespace ddprun::launcher {

/// Where one of a worker's two output streams goes. With neither console nor file it goes nowhere.
struct StreamPlan {
  bool inherit = false;             ///< the worker writes to ddprun's own stream itself; the rest is ignored
  bool console = true;              ///< its lines appear on ddprun's stream of the same name,
  bool timestamps = false;          ///< with the time
  std::string prefix = {};          ///< and this before each
  std::filesystem::path file = {};  ///< every byte, below the log folder; empty: no file
  std::filesystem::path filtered_file = {};  ///< the lines that hold one of the filters; workers may share it
  std::string filtered_prefix = {};          ///< before each of those
  std::vector<std::string> filters = {};
  std::size_t max_file_size = 0;  ///< of a file before it is rotated; 0: no limit
  bool need_activity = false;     ///< ddprun has to see when the worker writes
};

struct WorkerOutputPlan {
  StreamPlan out, err;
};

/// What the options meet.
struct OutputPlace {
  bool out_is_terminal = false, err_is_terminal = false;
  bool need_activity = false;  ///< ddprun has to see when workers write
  std::string role;
  std::string prefix_template;
  std::filesystem::path attempt_folder;  ///< of this attempt's files
};

/// The plans of all workers of a node, by local rank. A single worker of which nothing is asked keeps
/// ddprun's own streams; else all output passes through ddprun, a line at a time, or goes to files.
std::vector<WorkerOutputPlan> plan_outputs(const OutputOptions& options, const OutputPlace& place,
                                           int first_rank, int workers);

/// What of a run id may be part of a folder's name: all but letters, digits and "._-" becomes "_", no more
/// than 64 characters, and never a name of dots.
std::string folder_name(const std::string& run_id);

}  // namespace ddprun::launcher
