#include "launcher/workers/heartbeat.h"

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <system_error>

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::chrono::milliseconds kRest{100};

enum class Drained { kBeats, kNothing, kEnd };

/// Empties the pipe, so that no old beat is mistaken for a new one.
Drained drain(int fd) {
  char bytes[1 << 16];
  const ssize_t n = ::read(fd, bytes, sizeof bytes);
  if (n > 0) return Drained::kBeats;
  return n < 0 && (errno == EAGAIN || errno == EINTR) ? Drained::kNothing : Drained::kEnd;
}

}  // namespace

/// Shared with handlers, one of which may be queued when the workers are gone.
struct Heartbeats::Pipe {
  explicit Pipe(asio::io_context& io) : waiting(io), resting(io) {}
  UniqueFd reading;                        ///< none: the workers are gone
  asio::posix::stream_descriptor waiting;  ///< the same descriptor, while a beat would wake us
  asio::steady_timer resting;
  std::optional<Clock::time_point> last_beat;
};

Heartbeats::~Heartbeats() {
  for (const auto& pipe : pipes_) {
    if (pipe->waiting.is_open()) pipe->waiting.release();
    pipe->resting.cancel();
    pipe->reading.reset();
  }
}

UniqueFd Heartbeats::add() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    throw std::system_error(errno, std::generic_category(), "pipe");
  UniqueFd writing(ends[1]);
  const auto& pipe = pipes_.emplace_back(std::make_shared<Pipe>(io_));
  pipe->reading.reset(ends[0]);
  watch(pipe);
  return writing;
}

std::optional<Heartbeats::Clock::time_point> Heartbeats::last_beat(std::size_t index) const {
  return pipes_.at(index)->last_beat;
}

void Heartbeats::watch(const std::shared_ptr<Pipe>& pipe) {
  pipe->waiting.assign(pipe->reading.get());
  pipe->waiting.async_wait(asio::posix::stream_descriptor::wait_read,
                           [pipe](const boost::system::error_code& error) {
                             if (!error && pipe->reading) take_beats(pipe);
                           });
}

void Heartbeats::take_beats(const std::shared_ptr<Pipe>& pipe) {
  const Drained drained = drain(pipe->reading.get());
  if (drained == Drained::kBeats) pipe->last_beat = Clock::now();
  // Release it, or epoll would keep waking us for every byte.
  pipe->waiting.release();
  if (drained == Drained::kEnd) return;  // no writer is left
  pipe->resting.expires_after(kRest);
  pipe->resting.async_wait([pipe](const boost::system::error_code& error) {
    if (!error && pipe->reading) watch(pipe);
  });
}

}  // namespace ddprun::launcher
