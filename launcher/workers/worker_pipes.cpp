#include "launcher/workers/worker_pipes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <utility>

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::chrono::milliseconds kRest{100};
constexpr std::size_t kPipeSize = 1 << 16;

using TimePoint = HangClock::time_point;

TimePoint sign_of(const SignsOfLife& worker, TimePoint since) {
  return std::max({since, worker.last_output.value_or(since), worker.last_beat.value_or(since)});
}

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

TimePoint latest_sign(const std::vector<SignsOfLife>& workers, TimePoint since) {
  TimePoint latest = since;
  for (const SignsOfLife& worker : workers) latest = std::max(latest, sign_of(worker, since));
  return latest;
}

std::variant<LookAgain, Hung> judge_hang(const std::vector<SignsOfLife>& workers, TimePoint since,
                                         std::chrono::milliseconds timeout, TimePoint now,
                                         const KnownSigns& job) {
  const TimePoint latest_of_all = std::max(latest_sign(workers, since), job.latest);
  TimePoint look_again = TimePoint::max();
  std::vector<std::size_t> hung;
  bool all_nodes = false;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (!workers[i].running) continue;
    const bool alone = workers[i].last_beat.has_value();
    const TimePoint end = (alone ? sign_of(workers[i], since) : latest_of_all) + timeout;
    if (now < end) {
      look_again = std::min(look_again, end);
    } else if (alone || job.until >= end) {
      hung.push_back(i);
      all_nodes |= !alone;
    }
  }
  if (hung.empty()) return LookAgain{look_again};
  std::ranges::stable_sort(hung, {}, [&](std::size_t i) { return sign_of(workers[i], since); });
  return Hung{hung, all_nodes};
}

}  // namespace ddprun::launcher
