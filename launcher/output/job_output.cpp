#include "launcher/output/job_output.h"

#include <unistd.h>

#include <cctype>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/worker_env.h>

namespace ddprun::launcher {
namespace {

std::string attempt_name(int attempt) { return "attempt_" + std::to_string(attempt); }

StreamPlan plan_stream(const OutputOptions& options, const OutputPlace& place, bool is_err,
                       const LineSource& source, int workers) {
  const char* name = is_err ? "stderr" : "stdout";
  const Streams redirects = options.redirects.of(source.local_rank), tees = options.tee.of(source.local_rank);
  const bool redirected = is_err ? redirects.err : redirects.out, teed = is_err ? tees.err : tees.out;
  const bool is_terminal = is_err ? place.err_is_terminal : place.out_is_terminal;
  const auto& filters = is_err ? options.stderr_filters : options.stdout_filters;
  const bool has_folder = !options.log_dir.empty();
  const bool shown = !options.shown || options.shown->count(source.local_rank) > 0;
  const std::string prefix = line_prefix(place.prefix_template, source);
  StreamPlan plan;
  plan.timestamps = options.timestamps;
  plan.max_file_size = options.log_max_size;
  plan.need_activity = place.need_activity;
  plan.console = shown && (!redirected || teed);
  if (options.prefix.value_or(teed || (is_terminal && workers > 1))) plan.prefix = prefix;
  if (options.prefix.value_or(is_err && workers > 1)) plan.stack_prefix = prefix;
  if (has_folder && (redirected || teed))
    plan.file = place.attempt_folder / std::to_string(source.local_rank) / (std::string(name) + ".log");
  if (has_folder && !filters.empty()) {
    plan.filtered_file = place.attempt_folder / (std::string("filtered_") + name + ".log");
    plan.filtered_prefix = prefix;
    plan.filters = filters;
  }
  const bool untouched = plan.console && plan.prefix.empty() && plan.file.empty() &&
                         plan.filtered_file.empty() && !options.timestamps && !place.need_activity;
  plan.inherit = workers == 1 && untouched;
  return plan;
}

}  // namespace

std::vector<WorkerOutputPlan> plan_outputs(const OutputOptions& options, const OutputPlace& place,
                                           int first_rank, int workers) {
  std::vector<WorkerOutputPlan> plans;
  for (int local_rank = 0; local_rank < workers; ++local_rank) {
    const LineSource source{place.role, local_rank, first_rank + local_rank};
    plans.push_back({plan_stream(options, place, /*is_err=*/false, source, workers),
                     plan_stream(options, place, /*is_err=*/true, source, workers)});
  }
  return plans;
}

std::string folder_name(const std::string& run_id) {
  constexpr std::size_t kMaxLength = 64;
  std::string name = run_id.substr(0, kMaxLength);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') c = '_';
  if (name.find_first_not_of('.') == std::string::npos) name += "_";
  return name;
}

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
  return job_folder(options_.output.log_dir) / attempt_name(attempt);
}

std::vector<std::filesystem::path> JobOutput::error_files(int attempt, int workers) const {
  std::vector<std::filesystem::path> files;
  for (int i = 0; i < workers; ++i)
    files.push_back(options_.output.log_dir.empty() || (log_folder_ && !log_folder_->is_safe())
                        ? temp_folder_ / (attempt_name(attempt) + "_" + std::to_string(i) + "_error.json")
                        : attempt_folder(attempt) / std::to_string(i) / "error.json");
  return files;
}

std::filesystem::path JobOutput::job_folder(const std::filesystem::path& log_dir) const {
  return std::filesystem::absolute(log_dir) / job_name_;
}

void JobOutput::make_folders(int attempt, int workers) {
  if (options_.output.log_dir.empty()) return;
  if (!log_folder_) {
    for_flag("--log-dir", [&] { log_folder_.emplace(job_folder(options_.output.log_dir)); });
    if (!options_.output.log_dir_given) log_info("log files: " + log_folder_->path().string());
    if (!log_folder_->is_safe())
      log_warning(
          "--log-dir: " + log_folder_->path().string() +
          ": others may be able to read and replace the files here, for the file system does not keep "
          "owners and modes");
  }
  const std::filesystem::path folder = attempt_name(attempt);
  for (int i = 0; i < workers; ++i) log_folder_->open_below(folder / std::to_string(i));
}

std::filesystem::path JobOutput::lasting_folder(int attempt) const {
  if (log_folder_) {
    log_folder_->open_below(attempt_name(attempt));
    return attempt_folder(attempt);
  }
  return LogFolder(job_folder(kDefaultLogDir) / attempt_name(attempt)).path();
}

std::vector<WorkerOutputPlan> JobOutput::plan(int attempt, const std::vector<WorkerSpec>& specs) const {
  OutputPlace place;
  place.out_is_terminal = ::isatty(STDOUT_FILENO) == 1;
  place.err_is_terminal = ::isatty(STDERR_FILENO) == 1;
  place.need_activity = options_.hang_timeout.has_value();
  place.role = options_.role;
  place.prefix_template =
      process_env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or(kDefaultPrefixTemplate);
  if (!options_.output.log_dir.empty()) place.attempt_folder = attempt_folder(attempt);
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
