#include "launcher/output/job_output.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <ctime>
#include <optional>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include "launcher/events/clock.h"
#include "launcher/events/threads.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

// A disk that needs longer for a few folders has stalled.
constexpr std::chrono::seconds kDiskPatience{10};
constexpr int kFewFolders = 16;
constexpr const char* kStalled = "the disk does not answer";

/// Runs work on files aside. returns why it is not done, empty if it is; nullopt: given up
asio::awaitable<std::optional<std::string>> problem_of(std::function<void()> work, std::filesystem::path path,
                                                       const std::function<bool()>* give_up) {
  try {
    const AsideEnd end = co_await run_aside(work, LoopClock::now() + kDiskPatience, give_up);
    if (end == AsideEnd::kGivenUp) co_return std::nullopt;
    co_return end == AsideEnd::kDone ? "" : IoError(path, kStalled).what();
  } catch (const std::exception& error) {
    co_return error.what();
  }
}

std::string attempt_name(int attempt) { return "attempt_" + std::to_string(attempt); }

StreamPlan plan_stream(const OutputOptions& options, const OutputPlace& place, bool is_err,
                       const LineSource& source, int workers) {
  const char* name = is_err ? "stderr" : "stdout";
  const Streams redirects = options.redirects.of(source.local_rank), tees = options.tee.of(source.local_rank);
  const bool redirected = is_err ? redirects.err : redirects.out, teed = is_err ? tees.err : tees.out;
  const bool is_terminal = is_err ? place.err_is_terminal : place.out_is_terminal;
  const auto& filters = is_err ? options.stderr_filters : options.stdout_filters;
  const bool has_folder = !options.log_dir.empty() && !place.folder_missing;
  const bool instead_of_file = place.folder_missing && (redirected || teed);
  const bool shown = !options.shown || options.shown->count(source.local_rank) > 0;
  const std::string& given = options.prefix_template;
  const std::string prefix = line_prefix(given.empty() ? kDefaultPrefixTemplate : given, source);
  StreamPlan plan;
  plan.timestamps = options.timestamps;
  plan.max_file_size = options.log_max_size;
  plan.need_activity = place.need_activity;
  plan.console = instead_of_file || (shown && (!redirected || teed));
  if (options.prefix.value_or(teed || instead_of_file || (is_terminal && workers > 1))) plan.prefix = prefix;
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
  plan.inherit = workers == 1 && untouched && !options.other_hosts;
  return plan;
}

}  // namespace

std::vector<WorkerOutputPlan> plan_outputs(const OutputOptions& options, const OutputPlace& place,
                                           int first_rank, int workers) {
  std::vector<WorkerOutputPlan> plans;
  for (int local_rank = 0; local_rank < workers; ++local_rank) {
    const LineSource source{place.role, local_rank, first_rank + local_rank, place.host};
    plans.push_back({plan_stream(options, place, /*is_err=*/false, source, workers),
                     plan_stream(options, place, /*is_err=*/true, source, workers)});
  }
  return plans;
}

std::size_t descriptors_for(const WorkerOutputPlan& plan) {
  std::size_t count = 0;
  for (const StreamPlan* stream : {&plan.out, &plan.err}) {
    const bool dropped = !stream->console && stream->file.empty() && stream->filtered_file.empty() &&
                         !stream->need_activity && stream != &plan.err;
    if (!stream->inherit && !dropped) ++count;
    if (!stream->file.empty()) count += stream->max_file_size == 0 ? 1 : 2;
  }
  return count;
}

std::string folder_name(const std::string& run_id) {
  constexpr std::size_t kMaxLength = 64;
  std::string name = run_id.substr(0, kMaxLength);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') c = '_';
  if (name.find_first_not_of('.') == std::string::npos) name += "_";
  return name;
}

JobOutput::JobOutput(Console& console, const Options& options, const std::string& run_id,
                     const std::string& job_id, const std::filesystem::path& temp_folder)
    : options_(options),
      job_name_((run_id == job_id || run_id == kDefaultRunId ? utc_text(std::time(nullptr), "%Y%m%d-%H%M%S")
                                                             : folder_name(run_id)) +
                "_" + job_id.substr(0, 8)),
      temp_folder_(temp_folder),
      started_in_(std::filesystem::current_path()),
      console_(console) {}

std::filesystem::path JobOutput::attempt_folder(int attempt) const {
  return job_folder(options_.output.log_dir) / attempt_name(attempt);
}

std::vector<std::filesystem::path> JobOutput::error_files(int attempt, int workers) const {
  std::vector<std::filesystem::path> files;
  for (int i = 0; i < workers; ++i)
    files.push_back(options_.output.log_dir.empty() || folder_missing_ ||
                            (log_folder_ && !log_folder_->is_safe())
                        ? temp_folder_ / (attempt_name(attempt) + "_" + std::to_string(i) + "_error.json")
                        : attempt_folder(attempt) / std::to_string(i) / "error.json");
  return files;
}

std::filesystem::path JobOutput::job_folder(const std::filesystem::path& log_dir) const {
  return started_in_ / log_dir / job_name_;
}

asio::awaitable<void> JobOutput::make_folder(std::function<bool()> give_up) {
  if (options_.output.log_dir.empty() || log_folder_) co_return;
  const auto made = std::make_shared<std::shared_ptr<const LogFolder>>();
  const auto path = job_folder(options_.output.log_dir);
  const std::string source = options_.output.log_dir_source;
  const std::function<void()> make = [made, path, source] {
    for_flag(source, [&] { *made = std::make_shared<const LogFolder>(path); });
  };
  const AsideEnd end = co_await run_aside(make, LoopClock::now() + kDiskPatience, &give_up);
  if (end == AsideEnd::kGivenUp) co_return;
  if (end == AsideEnd::kLate) throw IoError(source, IoError(path, kStalled));
  log_folder_ = *made;
  if (!options_.output.log_dir_given) log_info("log files: " + log_folder_->path().string());
  if (!log_folder_->is_safe())
    log_warning(source + ": " + log_folder_->path().string() +
                ": others may be able to read and replace the files here, because the file system does not "
                "keep owners and modes");
}

asio::awaitable<void> JobOutput::make_folders(int attempt, int workers, std::function<bool()> give_up) {
  if (options_.output.log_dir.empty()) co_return;
  folder_missing_ = true;
  co_await make_folder(give_up);
  if (!log_folder_) co_return;
  for (int first = 0; first < workers; first += kFewFolders) {
    const std::function<void()> make =
        [folder = log_folder_, first, end = std::min(first + kFewFolders, workers),
         name = std::filesystem::path(attempt_name(attempt)), link = first == 0 && !linked_] {
          for (int i = first; i < end; ++i) folder->open_below(name / std::to_string(i));
          if (link) link_latest(folder->path());
        };
    const auto problem = co_await problem_of(make, attempt_folder(attempt), &give_up);
    if (!problem) co_return;
    if (!problem->empty()) {
      log_warning(*problem + ": the output goes to the console instead; the job goes on");
      co_return;
    }
    linked_ = true;
  }
  folder_missing_ = false;
}

asio::awaitable<std::filesystem::path> JobOutput::lasting_folder(int attempt,
                                                                 std::function<bool()> give_up) const {
  const OutputOptions& output = options_.output;
  const bool no_files = output.log_dir_given && output.log_dir.empty();  // --log-dir=/dev/null
  const auto log_dir = log_folder_ ? output.log_dir : std::filesystem::path(kDefaultLogDir);
  for (const auto& folder : {job_folder(log_dir), std::filesystem::path(temp_folder_.string() + "-stacks")}) {
    const std::string name = attempt_name(attempt);
    const bool lasts = folder == job_folder(log_dir);
    if (lasts && no_files) continue;
    const std::function<void()> make = [shared = lasts ? log_folder_ : nullptr, folder, name, lasts] {
      if (shared) return void(shared->open_below(name));
      LogFolder(folder / name);
      if (lasts) link_latest(folder);
    };
    const auto problem = co_await problem_of(make, folder, &give_up);
    if (!problem) break;
    if (problem->empty()) co_return folder / name;
    log_warning(*problem + ": no stacks there");
  }
  co_return std::filesystem::path();
}

std::vector<WorkerOutputPlan> JobOutput::plan(int attempt, const std::vector<WorkerSpec>& specs) const {
  OutputPlace place;
  place.out_is_terminal = ::isatty(STDOUT_FILENO) == 1;
  place.err_is_terminal = ::isatty(STDERR_FILENO) == 1;
  place.need_activity = options_.hang_timeout.has_value();
  place.role = options_.role;
  place.host = options_.hosts.own ? options_.hosts.all[*options_.hosts.own].name() : host_name();
  if (!options_.output.log_dir.empty()) place.attempt_folder = attempt_folder(attempt);
  place.folder_missing = folder_missing_;
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
