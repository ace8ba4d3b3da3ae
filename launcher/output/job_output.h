#pragma once

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/output/attempt_output.h"
#include "launcher/output/console.h"
#include "launcher/output/log_file.h"
#include "launcher/output/output_plan.h"
#include "launcher/plan/launch_plan.h"

namespace ddprun::launcher {

/// Where a job's workers write: ddprun's console, and the job's folder
///   LOG_DIR/RUN_ID_XXXXXXXX/attempt_N/LOCAL_RANK/{stdout.log, stderr.log, error.json}
/// in torchrun's layout. Without a log folder the error files lie in the job's temporary folder.
class JobOutput {
 public:
  /// job_id       its beginning makes the folder's name unique
  /// temp_folder  absolute
  JobOutput(boost::asio::io_context& io, const Options& options, const std::string& run_id,
            const std::string& job_id, const std::filesystem::path& temp_folder);
  ~JobOutput();
  JobOutput(const JobOutput&) = delete;
  JobOutput& operator=(const JobOutput&) = delete;

  std::filesystem::path attempt_folder(int attempt) const;

  /// Makes the folders of an attempt, one a worker. returns the attempt's. throws IoError
  std::filesystem::path make_attempt_folder(int attempt, int workers);

  /// Where to put the stacks of an attempt that hangs: its folder if it lasts, else one made for them.
  std::filesystem::path lasting_folder(int attempt) const;

  std::vector<WorkerOutputPlan> plan(int attempt, const std::vector<WorkerSpec>& specs) const;
  Console& console() { return console_; }
  const LogFolder* log_folder() const { return log_folder_ ? &*log_folder_ : nullptr; }

  /// The files of a worker.
  static std::vector<std::filesystem::path> files(const WorkerOutputPlan& plan);

 private:
  std::filesystem::path job_folder(const std::filesystem::path& log_dir) const;

  const Options& options_;
  std::string job_name_;
  std::filesystem::path temp_folder_;
  Console console_;
  std::optional<LogFolder> log_folder_;  ///< the job's, once it is made
};

}  // namespace ddprun::launcher
