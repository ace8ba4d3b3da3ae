#include "launcher/output/attempt_output.h"

#include <fcntl.h>

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "launcher/output/output_channel.h"

namespace ddprun::launcher {
namespace asio = boost::asio;

struct AttemptOutput::Worker {
  std::shared_ptr<OutputStream> out, err;  // null: not read by us
  OutputTail error_tail;
  Clock::time_point last_output = Clock::now();
  bool has_written = false;
};

AttemptOutput::AttemptOutput(asio::io_context& io, Console& console, const LogFolder* folder)
    : io_(io), console_(console), folder_(folder), ended_(io) {}

AttemptOutput::~AttemptOutput() = default;

WorkerOutputs AttemptOutput::open(std::size_t index, const WorkerOutputPlan& plan) {
  auto& worker = workers_[index];
  ensure(worker == nullptr, "a worker's streams are opened once");
  worker = std::make_unique<Worker>();
  WorkerOutputs ends;
  ends.out = open_stream(index, plan.out, /*is_err=*/false);
  ends.err = open_stream(index, plan.err, /*is_err=*/true);
  return ends;
}

UniqueFd AttemptOutput::open_stream(std::size_t index, const StreamPlan& plan, bool is_err) {
  if (plan.inherit) return {};
  OutputTargets targets = targets_of(plan, is_err);
  const bool looked_at = targets.console || targets.file || targets.filtered || plan.need_activity;
  // Of stderr the end is kept for the failure report, wherever it goes.
  if (!looked_at && !is_err) return open_dev_null(O_WRONLY);
  return read_stream(index, std::move(targets), is_err);
}

OutputTargets AttemptOutput::targets_of(const StreamPlan& plan, bool is_err) {
  OutputTargets targets{plan};
  if (plan.console) targets.console = is_err ? console_.err() : console_.out();
  if (!plan.file.empty()) targets.file = open_file(plan.file, plan.max_file_size);
  if (!plan.filtered_file.empty()) {
    auto& file = filtered_files_[plan.filtered_file];
    if (!file) file = open_file(plan.filtered_file, plan.max_file_size);
    targets.filtered = file;
  }
  return targets;
}

UniqueFd AttemptOutput::read_stream(std::size_t index, OutputTargets targets, bool is_err) {
  const bool terminal = targets.console && targets.console->is_terminal();
  OutputChannel channel =
      terminal ? open_output_terminal(is_err ? console_.err_fd() : console_.out_fd()) : open_output_pipe();
  auto& output = is_err ? workers_.at(index)->err : workers_.at(index)->out;
  output = std::make_shared<OutputStream>(io_, std::move(channel.reading), std::move(targets));
  output->start([this, index, is_err](std::string_view bytes) { note_output(index, bytes, is_err); },
                [this] { ended_.cancel(); });
  return std::move(channel.writing);
}

std::shared_ptr<LogFile> AttemptOutput::open_file(const std::filesystem::path& path, std::size_t max_size) {
  ensure(folder_ != nullptr, "a log file has a log folder");
  return std::make_shared<LogFile>(*folder_, path, max_size);
}

void AttemptOutput::note_output(std::size_t index, std::string_view bytes, bool is_err) {
  Worker& worker = *workers_.at(index);
  worker.last_output = Clock::now();
  if (is_err) worker.error_tail.add(bytes);
  if (!std::exchange(worker.has_written, true) && on_first_output_) on_first_output_(index);
}

asio::awaitable<bool> AttemptOutput::wait_for_ends(std::optional<Clock::time_point> deadline) {
  while (!all_ended()) {
    ended_.expires_at(deadline.value_or(Clock::time_point::max()));
    boost::system::error_code cancelled;
    co_await ended_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    if (!cancelled) co_return false;
  }
  co_return true;
}

void AttemptOutput::finish() {
  for (auto& [index, worker] : workers_) {
    if (worker->out) worker->out->finish();
    if (worker->err) worker->err->finish();
  }
}

std::vector<std::string> AttemptOutput::last_error_lines(std::size_t index) const {
  return at(index).error_tail.lines();
}

AttemptOutput::Clock::time_point AttemptOutput::last_output(std::size_t index) const {
  const Worker& worker = at(index);
  const bool held_up = (worker.out && worker.out->held_up()) || (worker.err && worker.err->held_up());
  return held_up ? Clock::now() : worker.last_output;
}

void AttemptOutput::update_window_size() {
  for (auto& [index, worker] : workers_) {
    if (worker->out && !worker->out->ended()) copy_window_size(console_.out_fd(), worker->out->descriptor());
    if (worker->err && !worker->err->ended()) copy_window_size(console_.err_fd(), worker->err->descriptor());
  }
}

bool AttemptOutput::all_ended() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const auto& entry) {
    const Worker& worker = *entry.second;
    return (!worker.out || worker.out->ended()) && (!worker.err || worker.err->ended());
  });
}

const AttemptOutput::Worker& AttemptOutput::at(std::size_t index) const { return *workers_.at(index); }

}  // namespace ddprun::launcher
