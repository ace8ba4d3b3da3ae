#include "launcher/output/attempt_output.h"

#include <fcntl.h>

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include "launcher/events/threads.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::size_t kFull = std::size_t{1} << 20;  // bytes of files that are not written yet
constexpr std::size_t kFullAtEnd = std::size_t{16} << 20;
constexpr std::chrono::seconds kFilesPatience{10};  // for a disk that makes files

bool any_unread(const std::vector<std::shared_ptr<OutputStream>>& streams) {
  return std::ranges::any_of(streams, [](const auto& stream) { return stream->unread(); });
}

}  // namespace

struct AttemptOutput::Worker {
  std::vector<std::shared_ptr<OutputStream>> streams;  // those that do not bypass ddprun
  OutputTail error_tail;
  RecentOutput recent;
  Clock::time_point last_output = Clock::now();
  bool has_written = false;
};

AttemptOutput::AttemptOutput(asio::io_context& io, Console& console, std::shared_ptr<const LogFolder> folder)
    : io_(io), console_(console), folder_(std::move(folder)), writer_(io, kFull), ended_(io) {}

AttemptOutput::~AttemptOutput() = default;

WorkerOutputs AttemptOutput::open(std::size_t index, const WorkerOutputPlan& plan) {
  workers_[index] = std::make_unique<Worker>();
  WorkerOutputs ends;
  ends.out = open_stream(index, plan.out, /*is_err=*/false);
  ends.err = open_stream(index, plan.err, /*is_err=*/true);
  return ends;
}

UniqueFd AttemptOutput::open_stream(std::size_t index, const StreamPlan& plan, bool is_err) {
  if (plan.inherit) return {};
  OutputTargets targets{plan};
  if (plan.console) targets.console = is_err ? console_.err() : console_.out();
  if (!plan.file.empty()) {
    targets.file = std::exchange(files_[plan.file], nullptr);
    if (!targets.file) targets.console = is_err ? console_.err() : console_.out();
  }
  if (!plan.filtered_file.empty()) {
    auto& file = filtered_files_[plan.filtered_file];
    if (!file) file = std::exchange(files_[plan.filtered_file], nullptr);
    targets.filtered = file;
  }
  if (targets.file || targets.filtered) targets.writer = &writer_;
  // Keeps the end of stderr for the failure report, wherever it goes.
  if (!targets.console && !targets.file && !targets.filtered && !plan.need_activity && !is_err)
    return open_dev_null(O_WRONLY);

  const bool terminal = targets.console && targets.console->is_terminal();
  OutputChannel channel =
      terminal ? open_output_terminal(targets.console->fd(), margin_of(plan)) : open_output_pipe();
  const auto stream = std::make_shared<OutputStream>(io_, std::move(channel.reading), std::move(targets));
  std::erase_if(streams_, [](const auto& earlier) { return !earlier->open(); });
  streams_.push_back(stream);
  workers_.at(index)->streams.push_back(stream);
  stream->start([this, index, is_err](std::string_view bytes) { note_output(index, bytes, is_err); },
                [this] { ended_.cancel(); });
  return std::move(channel.writing);
}

asio::awaitable<void> AttemptOutput::make_files(std::vector<WorkerOutputPlan> plans,
                                                std::function<bool()> give_up) {
  struct Made {
    std::map<std::filesystem::path, std::shared_ptr<LogFile>> files;
    std::string problem;
  };
  std::map<std::filesystem::path, std::size_t> sizes;
  for (const WorkerOutputPlan& plan : plans)
    for (const StreamPlan* stream : {&plan.out, &plan.err}) {
      if (!stream->file.empty()) sizes[stream->file] = stream->max_file_size;
      if (!stream->filtered_file.empty() && !filtered_files_[stream->filtered_file])
        sizes[stream->filtered_file] = stream->max_file_size;
    }
  if (sizes.empty()) co_return;
  ensure(folder_ != nullptr, "a log file has a log folder");
  const auto made = std::make_shared<Made>();
  const std::function<void()> make = [made, sizes, folder = folder_, warn = writer_.warn()] {
    for (const auto& [path, max_size] : sizes) try {
        made->files[path] = std::make_shared<LogFile>(*folder, path, max_size, warn);
      } catch (const IoError& error) {
        if (made->problem.empty()) made->problem = error.what();
      }
  };
  const AsideEnd end = co_await run_aside(make, LoopClock::now() + kFilesPatience, &give_up);
  std::string problem;
  if (end == AsideEnd::kLate) problem = IoError(folder_->path(), "the disk does not answer").what();
  if (end == AsideEnd::kDone) {
    files_ = std::move(made->files);
    problem = made->problem;
  }
  if (!problem.empty() && !std::exchange(lacks_files_, true))
    log_warning(problem + ": the output goes to the console instead; the job goes on");
}

void AttemptOutput::prefix_stacks() {
  for (const auto& stream : streams_) stream->prefix_stacks();
}

void AttemptOutput::unblock_workers() {
  console_.set_full(kFullAtEnd);
  writer_.set_full(kFullAtEnd);
}

void AttemptOutput::note_output(std::size_t index, std::string_view bytes, bool is_err) {
  Worker& worker = *workers_.at(index);
  worker.last_output = Clock::now();
  if (is_err) worker.error_tail.add(bytes);
  worker.recent.add(bytes);
  if (!std::exchange(worker.has_written, true) && on_first_output_) on_first_output_(index);
}

asio::awaitable<bool> AttemptOutput::wait_for_ends(std::optional<Clock::time_point> deadline) {
  while (std::ranges::any_of(streams_, [](const auto& stream) { return stream->open(); })) {
    ended_.expires_at(deadline.value_or(Clock::time_point::max()));
    boost::system::error_code cancelled;
    co_await ended_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    if (!cancelled) co_return false;
  }
  co_return true;
}

bool AttemptOutput::unread() const { return any_unread(streams_); }

void AttemptOutput::finish() {
  for (const auto& stream : streams_) stream->finish();
  console_.set_full(ConsoleSink::kFull);
}

asio::awaitable<bool> AttemptOutput::drain_files(std::optional<Clock::time_point> deadline) {
  co_return co_await writer_.drain(writer_.passed(), deadline);
}

std::vector<std::string> AttemptOutput::last_error_lines(std::size_t index) const {
  return workers_.at(index)->error_tail.lines();
}

const RecentOutput& AttemptOutput::recent(std::size_t index) const { return workers_.at(index)->recent; }

AttemptOutput::Clock::time_point AttemptOutput::last_output(std::size_t index) const {
  const Worker& worker = *workers_.at(index);
  return any_unread(worker.streams) ? Clock::now() : worker.last_output;
}

void AttemptOutput::update_window_size() {
  for (const auto& stream : streams_) stream->update_window_size();
}

}  // namespace ddprun::launcher
