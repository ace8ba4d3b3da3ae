#include "launcher/output/log_writer.h"

#include <sys/eventfd.h>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <system_error>
#include <utility>

#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>

namespace ddprun::launcher {
namespace asio = boost::asio;

/// What the loop and the thread share. The thread keeps it alive if a stalled disk outlives the job.
struct LogWriter::Queue {
  struct Piece {
    std::shared_ptr<LogFile> file;
    std::string bytes;
  };

  void tell_loop() const { ::eventfd_write(event.get(), 1); }

  UniqueFd event{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::mutex mutex;
  std::condition_variable wake_up;
  std::deque<Piece> pieces;
  std::size_t bytes = 0;  // of the pieces, including the one being written
  std::vector<std::string> warnings;
  bool loop_waits = false;  // for room, or for the end
  bool stop = false;
};

LogWriter::LogWriter(asio::io_context& io) : queue_(std::make_shared<Queue>()), news_(io), drained_(io) {
  if (!queue_->event) throw std::system_error(errno, std::generic_category(), "eventfd");
  news_.assign(UniqueFd(::dup(queue_->event.get())).release());
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the loop handles signals
  thread_ = std::thread([queue = queue_] { run(queue); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  wait_for_news();
}

LogWriter::~LogWriter() {
  const std::unique_lock lock(queue_->mutex);
  queue_->stop = true;
  queue_->wake_up.notify_one();
  thread_.detach();
}

void LogWriter::run(const std::shared_ptr<Queue>& queue) {
  std::unique_lock lock(queue->mutex);
  for (;;) {
    queue->wake_up.wait(lock, [&] { return queue->stop || !queue->pieces.empty(); });
    if (queue->pieces.empty()) return;
    Queue::Piece piece = std::move(queue->pieces.front());
    queue->pieces.pop_front();
    lock.unlock();
    piece.file->write(piece.bytes);
    const std::size_t written = piece.bytes.size();
    piece = {};
    lock.lock();
    queue->bytes -= written;
    if (queue->loop_waits && queue->bytes < kFull / 2) queue->tell_loop();
  }
}

std::shared_ptr<LogFile> LogWriter::open(const LogFolder& folder, const std::filesystem::path& path,
                                         std::size_t max_size) {
  return std::make_shared<LogFile>(folder, path, max_size,
                                   [queue = std::weak_ptr(queue_)](const std::string& text) {
                                     const auto shared = queue.lock();
                                     if (!shared) return;
                                     const std::lock_guard lock(shared->mutex);
                                     shared->warnings.push_back(text);
                                     shared->tell_loop();
                                   });
}

void LogWriter::write(std::shared_ptr<LogFile> file, std::string bytes) {
  const std::lock_guard lock(queue_->mutex);
  queue_->bytes += bytes.size();
  queue_->pieces.push_back({std::move(file), std::move(bytes)});
  queue_->wake_up.notify_one();
}

bool LogWriter::has_room() const {
  const std::lock_guard lock(queue_->mutex);
  return queue_->bytes < kFull;
}

void LogWriter::when_room(Writer writer, std::function<void()> callback) {
  waiters_.push_back({writer, std::move(callback)});
  const std::lock_guard lock(queue_->mutex);
  queue_->loop_waits = true;
  if (queue_->bytes < kFull / 2) queue_->tell_loop();  // written in the meantime
}

void LogWriter::forget(Writer writer) {
  std::erase_if(waiters_, [&](const Waiter& waiter) { return waiter.writer == writer; });
}

asio::awaitable<bool> LogWriter::drain(std::optional<Clock::time_point> deadline) {
  for (;;) {
    {
      const std::lock_guard lock(queue_->mutex);
      if (queue_->bytes == 0 && queue_->warnings.empty()) co_return true;
      queue_->loop_waits = true;
    }
    drained_.expires_at(deadline.value_or(Clock::time_point::max()));
    boost::system::error_code cancelled;
    co_await drained_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    if (!cancelled) co_return false;
  }
}

void LogWriter::wait_for_news() {
  news_.async_wait(news_.wait_read,
                   [this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
                     if (error || alive.expired()) return;
                     handle_news();
                     wait_for_news();
                   });
}

void LogWriter::handle_news() {
  eventfd_t ignored;
  ::eventfd_read(news_.native_handle(), &ignored);
  std::vector<std::string> warnings;
  bool room;
  {
    const std::lock_guard lock(queue_->mutex);
    warnings.swap(queue_->warnings);
    room = queue_->bytes < kFull / 2;
    if (room) queue_->loop_waits = queue_->bytes > 0;
  }
  for (const std::string& text : warnings) log_warning(text);
  if (room)
    for (const Waiter& waiter : std::exchange(waiters_, {})) waiter.callback();
  drained_.cancel();
}

}  // namespace ddprun::launcher
