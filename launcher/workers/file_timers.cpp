#include "launcher/workers/worker_pipes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include "launcher/events/clock.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

constexpr double kNever = 8e9;                 // seconds; WallClock ends in the year 2262
constexpr std::size_t kMaxLine = 64 * 1024;    // torch's client writes at most PIPE_BUF
constexpr std::size_t kMaxTimers = 64 * 1024;  // a client that never releases must not fill the memory

struct Request {
  pid_t pid;
  std::string scope;
  double expires;  ///< seconds since 1970; negative: never again
  int signal;
};

std::optional<Request> parse_request(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto has = [&](const char* key, auto is_type) {
    return json.contains(key) && (json[key].*is_type)();
  };
  using Json = nlohmann::json;
  if (!json.is_object() || !has("pid", &Json::is_number_integer) || !has("scope_id", &Json::is_string) ||
      !has("expiration_time", &Json::is_number) || !has("signal", &Json::is_number_integer))
    return {};
  return Request{json["pid"], json["scope_id"], json["expiration_time"], json["signal"]};
}

}  // namespace

UniqueFd FileTimers::make_pipe(const std::filesystem::path& path) {
  constexpr char kCannotMake[] = "cannot create the pipe for file timers";
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISFIFO(info.st_mode) || info.st_uid != ::geteuid()) throw IoError(path, kCannotMake, EEXIST);
    ::unlink(path.c_str());
  }
  if (::mkfifo(path.c_str(), 0600) != 0) throw IoError(path, kCannotMake, errno);
  // Also opened for writing; otherwise, every client that closes it would cause an end of file.
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) throw IoError(path, kCannotMake, errno);
  return fd;
}

struct FileTimers::State : std::enable_shared_from_this<FileTimers::State> {
  State(asio::io_context& io, UniqueFd made, OnExpired callback)
      : on_expired(std::move(callback)), pipe(io, made.release()), timer(io) {}

  struct Timer {
    WallClock::time_point expires;
    int signal;
  };

  OnExpired on_expired;
  asio::posix::stream_descriptor pipe;
  WallTimer timer;
  std::array<char, 4096> bytes{};
  std::string unread;
  std::map<std::pair<pid_t, std::string>, Timer> timers;
  bool warned = false;

  void read() {
    pipe.async_read_some(asio::buffer(bytes), [self = shared_from_this()](const auto& error, std::size_t n) {
      if (error || !self->pipe.is_open()) return;
      self->take(n);
      self->wait();
      self->read();
    });
  }

  void take(std::size_t n) {
    unread.append(bytes.data(), n);
    for (std::size_t end; (end = unread.find('\n')) != std::string::npos; unread.erase(0, end + 1)) {
      if (const auto request = parse_request(unread.substr(0, end)))
        set(*request);
      else if (!std::exchange(warned, true))
        log_warning("not a request of a file timer: " +
                    single_quoted(unread.substr(0, std::min<std::size_t>(end, 200))));
    }
    if (unread.size() > kMaxLine) unread.clear();
  }

  void set(const Request& request) {
    const std::pair key(request.pid, request.scope);
    timers.erase(key);
    if (request.expires < 0 || request.expires > kNever || timers.size() >= kMaxTimers) return;
    const std::chrono::duration<double> since(request.expires);
    timers[key] = {WallClock::time_point(std::chrono::duration_cast<WallClock::duration>(since)),
                   request.signal};
  }

  /// Waits for the timer that expires first.
  void wait() {
    if (timers.empty()) {
      timer.cancel();
      return;
    }
    const auto first =
        std::ranges::min_element(timers, {}, [](const auto& entry) { return entry.second.expires; });
    timer.expires_at(first->second.expires);
    timer.async_wait([self = shared_from_this(), key = first->first](const auto& cancelled) {
      if (cancelled || !self->pipe.is_open()) return;
      self->expire(key);
      self->wait();
    });
  }

  void expire(const std::pair<pid_t, std::string>& key) {
    const auto found = timers.find(key);
    if (found == timers.end() || found->second.expires > WallClock::now()) return;
    const int signal = found->second.signal;
    timers.erase(found);
    if (signal <= 0 || signal >= NSIG) return;  // torch's way to request no signal
    std::erase_if(timers, [&](const auto& entry) { return entry.first.first == key.first; });
    on_expired({key.first, key.second, signal});
  }
};

FileTimers::FileTimers(asio::io_context& io, UniqueFd pipe, OnExpired on_expired)
    : state_(std::make_shared<State>(io, std::move(pipe), std::move(on_expired))) {
  state_->read();
}

FileTimers::~FileTimers() {
  state_->pipe.close();
  state_->timer.cancel();
}

}  // namespace ddprun::launcher
