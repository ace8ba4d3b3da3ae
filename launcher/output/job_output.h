#pragma once

#include <boost/asio/awaitable.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/cli/options.h"
#include "launcher/output/attempt_output.h"
#include "launcher/plan/launch_plan.h"

namespace ddprun::launcher {

/// What the output options depend on.
struct OutputPlace {
  bool out_is_terminal = false, err_is_terminal = false;
  bool need_activity = false;  ///< ddprun has to notice when workers write
  std::string role;
  std::string host;                      ///< this host's name
  std::filesystem::path attempt_folder;  ///< of this attempt's files
  bool folder_missing = false;           ///< it could not be made: what would go to files goes to the console
};

/// Plans the output of all workers of a node, by local rank. A single worker without output flags keeps
/// ddprun's own streams; otherwise all output passes through ddprun, line by line, or goes to files.
std::vector<WorkerOutputPlan> plan_outputs(const OutputOptions& options, const OutputPlace& place,
                                           int first_rank, int workers);

/// How many descriptors ddprun keeps for a worker's output.
std::size_t descriptors_for(const WorkerOutputPlan& plan);

/// The run id as part of a folder's name: replaces all but letters, digits and "._-" with "_"; at most 64
/// characters; never only dots.
std::string folder_name(const std::string& run_id);

/// Where a job's workers write: ddprun's console, and the job's folder
///   LOG_DIR/RUN_ID_XXXXXXXX/attempt_N/LOCAL_RANK/{stdout.log, stderr.log, error.json}
/// in torchrun's layout, with the time in place of a run id that nobody chose. Without a log folder, the
/// error files are side by side in the job's temporary folder: on a disk that discards freed blocks each
/// folder made and removed costs milliseconds.
class JobOutput {
 public:
  /// job_id       its first characters make the folder's name unique
  /// temp_folder  absolute
  JobOutput(Console& console, const Options& options, const std::string& run_id, const std::string& job_id,
            const std::filesystem::path& temp_folder);
  JobOutput(const JobOutput&) = delete;
  JobOutput& operator=(const JobOutput&) = delete;

  /// The job's own folder, which ends with it.
  const std::filesystem::path& job_folder() const { return temp_folder_; }

  /// Where each worker of an attempt reports its error.
  std::vector<std::filesystem::path> error_files(int attempt, int workers) const;

  /// Makes the job's folder of log files, if it is to have one and has none yet.
  ///
  /// give_up  whether to wait no longer: nothing will be started
  /// throws   IoError if it cannot be made
  boost::asio::awaitable<void> make_folder(std::function<bool()> give_up);

  /// The same, and the folders of an attempt's files. If that fails, or a disk stalls, once the job's own
  /// folder is there, warns, and the attempt has no files.
  boost::asio::awaitable<void> make_folders(int attempt, int workers, std::function<bool()> give_up);

  /// The folder for the stacks of a hanging attempt: its own if it outlives the job, else a new one, if need
  /// be beside the temporary folder. Warns where it cannot be made; empty: nowhere.
  boost::asio::awaitable<std::filesystem::path> lasting_folder(int attempt,
                                                               std::function<bool()> give_up) const;

  std::vector<WorkerOutputPlan> plan(int attempt, const std::vector<WorkerSpec>& specs) const;
  Console& console() { return console_; }
  const std::shared_ptr<const LogFolder>& log_folder() const { return log_folder_; }

  /// The files of a worker.
  static std::vector<std::filesystem::path> files(const WorkerOutputPlan& plan);

 private:
  std::filesystem::path job_folder(const std::filesystem::path& log_dir) const;
  std::filesystem::path attempt_folder(int attempt) const;  ///< with a log folder

  const Options& options_;
  std::string job_name_;
  std::filesystem::path temp_folder_, started_in_;
  Console& console_;
  std::shared_ptr<const LogFolder> log_folder_;  ///< the job's, once made
  bool linked_ = false;                          ///< DIR/latest leads to it
  bool folder_missing_ = false;                  ///< the last attempt's
};

}  // namespace ddprun::launcher
