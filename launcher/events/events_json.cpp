#include "launcher/events/events_json.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

using json = nlohmann::ordered_json;

constexpr std::size_t kMostWaiting = std::size_t{1} << 20;  // bytes: thousands of events
constexpr std::chrono::seconds kPatience{1};

// By EventRecord::Kind.
constexpr std::array kNames{"started", "first_output", "exited",  "signal",    "stopping", "killed",
                            "restart", "hang",         "timeout", "straggler", "drained",  "finished"};

void add_if_known(json& object, const char* key, const auto& value) {
  if (value) object[key] = *value;
}

}  // namespace

json to_json(const ExitStatus& status) {
  if (status.kind == ExitStatus::Kind::kExited) return {{"exit_code", status.code}};
  return {{"signal", status.signal},
          {"signal_name", signal_name(status.signal)},
          {"core_dumped", status.core_dumped}};
}

std::string to_json_line(const EventRecord& event, const JobClock& clock) {
  json object = {{"t_ns", clock.ns(event.at)},
                 {"time", utc_iso(clock.date(event.at))},
                 {"event", kNames.at(static_cast<std::size_t>(event.kind))},
                 {"attempt", event.attempt}};
  add_if_known(object, "rank", event.rank);
  add_if_known(object, "local_rank", event.local_rank);
  add_if_known(object, "pid", event.pid);
  if (event.status) object.update(to_json(*event.status));
  if (event.signal) object.update({{"signal", *event.signal}, {"signal_name", signal_name(*event.signal)}});
  add_if_known(object, "exit_code", event.exit_code);
  if (event.delay) object["delay_s"] = std::chrono::duration<double>(*event.delay).count();
  add_if_known(object, "factor", event.factor);
  add_if_known(object, "since_step", event.since_step);
  add_if_known(object, "node", event.node);
  add_if_known(object, "cause", event.cause);
  return object.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

/// What the thread writes to, until an error.
class EventsJson::File : public WriteTarget {
 public:
  /// throws UsageError
  File(std::filesystem::path path, const std::string& source, WriterThread::Warn warn)
      : path_(std::move(path)),
        warn_(std::move(warn)),
        fd_(::open(path_.c_str(),
                   O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600)) {
    if (!fd_)
      throw UsageError(source + ": expected a file that can be written, got " +
                       single_quoted(path_.string()) + ": " + std::strerror(errno));
  }

  void write(std::string_view line) override {
    if (!fd_ || write_all(fd_.get(), line)) return;
    warn_(std::string("--events-json: ") + IoError(path_, "cannot write", errno).what() +
          ": events are no longer recorded");
    fd_.reset();
  }

 private:
  std::filesystem::path path_;
  WriterThread::Warn warn_;
  UniqueFd fd_;
};

EventsJson::EventsJson(asio::io_context& io, const std::optional<std::filesystem::path>& path,
                       const JobClock& clock, const std::string& source)
    : clock_(clock), thread_(io, kMostWaiting) {
  if (path) file_ = std::make_shared<File>(*path, source, thread_.warn());
}

EventsJson::~EventsJson() {
  thread_.finish(kPatience);
  if (missing_ > 0)
    log_warning("--events-json: " + std::to_string(missing_) +
                " events are missing, because the file could not be written in time");
}

void EventsJson::add(const EventRecord& event) {
  if (!file_) return;
  if (thread_.has_room())
    thread_.write(file_, to_json_line(event, clock_));
  else
    ++missing_;
}

}  // namespace ddprun::launcher
