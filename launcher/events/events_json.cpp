#include "launcher/events/events_json.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace {

using json = nlohmann::ordered_json;

// By EventRecord::Kind.
constexpr std::array kNames{"started", "first_output", "exited",  "signal",    "stopping", "killed",
                            "restart", "hang",         "timeout", "straggler", "finished"};

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
  add_if_known(object, "cause", event.cause);
  return object.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

EventsJson::EventsJson(const std::optional<std::filesystem::path>& path, const JobClock& clock)
    : clock_(clock) {
  if (!path) return;
  path_ = *path;
  fd_.reset(::open(path_.c_str(),
                   O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600));
  if (!fd_)
    throw UsageError("--events-json: expected a file that can be written, got " +
                     single_quoted(path_.string()) + ": " + std::strerror(errno));
}

void EventsJson::add(const EventRecord& event) {
  if (!fd_) return;
  const std::string line = to_json_line(event, clock_);
  ssize_t n = 0;
  do n = ::write(fd_.get(), line.data(), line.size());
  while (n < 0 && errno == EINTR);
  if (n < 0) return give_up("cannot write", errno);
  if (static_cast<std::size_t>(n) < line.size()) give_up("cannot write", ENOSPC);
}

void EventsJson::give_up(const std::string& what, int error) {
  log_warning(std::string("--events-json: ") + IoError(path_, what, error).what() +
              ": events are no longer recorded");
  fd_.reset();
}

}  // namespace ddprun::launcher
