#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/cli/options.h"
#include "launcher/cli/stream_selection.h"

namespace ddprun::launcher {

/// Where one of a worker's two output streams goes. With neither console nor file it goes nowhere.
struct StreamPlan {
  bool inherit = false;        ///< the worker writes to ddprun's own stream itself; nothing else here counts
  bool console = true;         ///< its lines appear on ddprun's stream of the same name,
  std::string prefix;          ///< with this before each
  std::filesystem::path file;  ///< every byte, below the log folder; empty: no file
  std::filesystem::path filtered_file;  ///< the lines that hold one of the filters; workers may share it
  std::string filtered_prefix;          ///< before each of those
  std::vector<std::string> filters;
};

struct WorkerLogPlan {
  StreamPlan out, err;
};

/// The user's wishes for the workers' output, understood.
struct OutputWishes {
  StreamSelection redirects, tee;
  std::optional<std::set<int>> shown;  ///< local ranks; none: all
  std::vector<std::string> stdout_filters, stderr_filters;
  std::optional<bool> prefix;
  bool timestamps = false;
  std::filesystem::path log_dir;  ///< where the job's folder is made; empty: no files are wanted
};

/// throws UsageError
OutputWishes read_output_wishes(const OutputOptions& options);

/// Where files go that need a place when no --log-dir is given.
inline constexpr char kDefaultLogDir[] = "ddprun_logs";

/// What the wishes meet.
struct OutputPlace {
  bool out_is_terminal = false, err_is_terminal = false;
  bool need_activity = false;  ///< ddprun has to see when workers write
  std::string role;
  std::string prefix_template;
  std::filesystem::path attempt_folder;  ///< of this attempt's files
};

/// The plans of all workers of a node, by local rank. A single worker of which nothing is asked keeps
/// ddprun's own streams; else all output passes through ddprun, a line at a time, or goes to files.
std::vector<WorkerLogPlan> plan_outputs(const OutputWishes& wishes, const OutputPlace& place, int first_rank,
                                        int workers);

/// What of a run id may be part of a folder's name: all but letters, digits and "._-" becomes "_", no more
/// than 64 characters, and never a name of dots.
std::string folder_name(const std::string& run_id);

}  // namespace ddprun::launcher
