#include "launcher/workers/worker_pipes.h"

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <system_error>
#include <utility>

#include "launcher/events/timer.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::chrono::milliseconds kRest{100};
constexpr std::size_t kPipeSize = 1 << 16;

}  // namespace

/// Shared with handlers, one of which may still be queued when the workers are gone.
struct WorkerPipes::Pipe {
  Pipe(asio::io_context& io, std::size_t worker, std::shared_ptr<const OnBytes> callback)
      : index(worker), on_bytes(std::move(callback)), waiting(io), resting(io) {}
  /// Empties the pipe. False if no writer is left.
  bool drain() const {
    char bytes[kPipeSize];
    const ssize_t n = ::read(reading.get(), bytes, sizeof bytes);
    if (n > 0) (*on_bytes)(index, {bytes, static_cast<std::size_t>(n)});
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
  }
  std::size_t index;
  std::shared_ptr<const OnBytes> on_bytes;
  UniqueFd reading;                        ///< none: the workers are gone
  asio::posix::stream_descriptor waiting;  ///< the same descriptor, while bytes should wake us
  Timer resting;
};

WorkerPipes::WorkerPipes(asio::io_context& io, OnBytes on_bytes)
    : io_(io), on_bytes_(std::make_shared<const OnBytes>(std::move(on_bytes))) {}

WorkerPipes::~WorkerPipes() {
  for (const auto& pipe : pipes_)
    if (pipe) close(*pipe);
}

void WorkerPipes::close(Pipe& pipe) {
  if (pipe.waiting.is_open()) pipe.waiting.release();
  pipe.resting.cancel();
  pipe.reading.reset();
}

UniqueFd WorkerPipes::open(std::size_t index) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    throw std::system_error(errno, std::generic_category(), "pipe");
  UniqueFd writing(ends[1]);
  if (pipes_.size() <= index) pipes_.resize(index + 1);
  auto& pipe = pipes_[index];
  if (pipe) close(*pipe);
  pipe = std::make_shared<Pipe>(io_, index, on_bytes_);
  pipe->reading.reset(ends[0]);
  watch(pipe);
  return writing;
}

void WorkerPipes::read_now() {
  for (const auto& pipe : pipes_)
    if (pipe) pipe->drain();
}

void WorkerPipes::watch(const std::shared_ptr<Pipe>& pipe) {
  pipe->waiting.assign(pipe->reading.get());
  pipe->waiting.async_wait(asio::posix::stream_descriptor::wait_read,
                           [pipe](const boost::system::error_code& error) {
                             if (!error && pipe->reading) take_bytes(pipe);
                           });
}

void WorkerPipes::take_bytes(const std::shared_ptr<Pipe>& pipe) {
  const bool writers_left = pipe->drain();
  // Release it, or epoll would keep waking us for every byte.
  pipe->waiting.release();
  if (!writers_left) return;
  pipe->resting.expires_after(kRest);
  pipe->resting.async_wait([pipe](const boost::system::error_code& error) {
    if (!error && pipe->reading) watch(pipe);
  });
}

}  // namespace ddprun::launcher
