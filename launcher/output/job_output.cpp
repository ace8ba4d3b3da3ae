#include "launcher/output/job_output.h"

#include <unistd.h>

#include <ddprun/common/logging.h>
#include <ddprun/common/worker_env.h>

namespace ddprun::launcher {
namespace {

std::string attempt_name(int attempt) { return "attempt_" + std::to_string(attempt); }

}  // namespace
JobOutput::JobOutput(boost::asio::io_context& io, const Options& options, const std::string& run_id,
                     const std::string& job_id, const std::filesystem::path& temp_folder)
    : options_(options),
      job_name_(run_id == job_id ? job_id : folder_name(run_id) + "_" + job_id.substr(0, 8)),
      temp_folder_(temp_folder),
      console_(io) {
  before_logging([this] { console_.make_way(); });
}

JobOutput::~JobOutput() { before_logging(nullptr); }

std::filesystem::path JobOutput::attempt_folder(int attempt) const {
  return (options_.output.log_dir.empty() ? temp_folder_ : job_folder(options_.output.log_dir)) /
         attempt_name(attempt);
}

std::filesystem::path JobOutput::job_folder(const std::filesystem::path& log_dir) const {
  return std::filesystem::absolute(log_dir) / job_name_;
}

std::filesystem::path JobOutput::make_attempt_folder(int attempt, int workers) {
  if (!options_.output.log_dir.empty() && !log_folder_) {
    LogFolder(std::filesystem::absolute(options_.output.log_dir))
        .open_below(job_name_);  // refuses one that others may change
    log_folder_.emplace(job_folder(options_.output.log_dir));
    if (!options_.output.log_dir_given) log_info("log files: " + log_folder_->path().string());
  }
  const LogFolder folder(attempt_folder(attempt));
  for (int i = 0; i < workers; ++i) folder.open_below(std::to_string(i));
  return folder.path();
}

std::filesystem::path JobOutput::lasting_folder(int attempt) const {
  const auto log_dir = options_.output.log_dir.empty() ? kDefaultLogDir : options_.output.log_dir;
  return LogFolder(job_folder(log_dir) / attempt_name(attempt)).path();
}

std::vector<WorkerOutputPlan> JobOutput::plan(int attempt, const std::vector<WorkerSpec>& specs) const {
  OutputPlace place;
  place.out_is_terminal = ::isatty(STDOUT_FILENO) == 1;
  place.err_is_terminal = ::isatty(STDERR_FILENO) == 1;
  place.need_activity = options_.hang_timeout.has_value();
  place.role = options_.role;
  place.prefix_template =
      process_env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or(kDefaultPrefixTemplate);
  place.attempt_folder = attempt_folder(attempt);
  return plan_outputs(options_.output, place, specs[0].rank, static_cast<int>(specs.size()));
}

std::vector<std::filesystem::path> JobOutput::files(const WorkerOutputPlan& plan) {
  std::vector<std::filesystem::path> list;
  for (const StreamPlan* stream : {&plan.out, &plan.err})
    for (const auto& path : {stream->file, stream->filtered_file})
      if (!path.empty()) list.push_back(path);
  return list;
}

}  // namespace ddprun::launcher
