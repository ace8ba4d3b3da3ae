#include "launcher/events/threads.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <ddprun/common/files.h>
#include <ddprun/common/invariant.h>
#include <ddprun/common/logging.h>

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::chrono::milliseconds kLook{100};

struct Aside {
  std::function<void()> work;
  std::exception_ptr thrown;
  UniqueFd done{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  void run() {
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
    ::eventfd_write(done.get(), 1);
  }
};

}  // namespace

bool start_thread(std::function<void()> work) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the loop handles signals
  bool started = true;
  try {
    std::thread(std::move(work)).detach();
  } catch (const std::system_error&) {
    started = false;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

asio::awaitable<AsideEnd> run_aside(std::function<void()> work,
                                    std::optional<std::chrono::steady_clock::time_point> deadline,
                                    const std::function<bool()>* give_up) {
  const auto aside = std::make_shared<Aside>();
  aside->work = std::move(work);
  const auto executor = co_await asio::this_coro::executor;
  asio::posix::stream_descriptor done(executor);
  const int fd = ::fcntl(aside->done.get(), F_DUPFD_CLOEXEC, 3);
  if (fd >= 0) done.assign(fd);
  if (fd < 0 || !start_thread([aside] { aside->run(); })) {
    aside->work();
    co_return AsideEnd::kDone;
  }
  // The handler may already be queued when a deadline lets the caller go on without it.
  const auto timer = std::make_shared<Timer>(executor);
  const auto finished = std::make_shared<bool>(false);
  done.async_wait(done.wait_read, [timer, finished](const boost::system::error_code& error) {
    if (error) return;  // the caller has gone
    *finished = true;
    timer->cancel();
  });
  while (!*finished) {
    const auto now = LoopClock::now(), end = deadline.value_or(LoopClock::time_point::max());
    if (now >= end) co_return AsideEnd::kLate;
    if (give_up != nullptr && (*give_up)()) co_return AsideEnd::kGivenUp;
    timer->expires_at(give_up != nullptr ? std::min(end, now + kLook) : end);
    boost::system::error_code cancelled;
    co_await timer->async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
  }
  if (aside->thrown) std::rethrow_exception(aside->thrown);
  co_return AsideEnd::kDone;
}

/// What the loop and the thread share. The thread keeps it alive if what it writes to stalls for longer than
/// the job.
struct WriterThread::Queue {
  struct Piece {
    std::shared_ptr<WriteTarget> target;
    std::string bytes;
  };

  explicit Queue(std::size_t size) : full(size) {}
  void tell_loop() const { ::eventfd_write(event.get(), 1); }
  bool has_news() const { return (waits_for_room && bytes < full / 2) || written >= awaited; }

  static constexpr std::size_t kMostInPiece = std::size_t{64} << 10;
  static constexpr std::uint64_t kNothing = std::numeric_limits<std::uint64_t>::max();

  std::size_t full;
  UniqueFd event;  // once the thread has started
  std::mutex mutex;
  std::condition_variable wake_up;
  std::deque<Piece> pieces;
  std::size_t bytes = 0;      // of the pieces, including the one being written
  std::uint64_t written = 0;  // ever
  std::vector<std::string> warnings;
  bool waits_for_room = false;       // the loop does
  std::uint64_t awaited = kNothing;  // how much the loop waits to be written
  bool stop = false;
};

WriterThread::WriterThread(asio::io_context& io, std::size_t full)
    : full_(full), queue_(std::make_shared<Queue>(full)), news_(io), drained_(io) {}

WriterThread::~WriterThread() {
  if (news_.is_open()) news_.release();  // the queue's
  const std::unique_lock lock(queue_->mutex);
  queue_->stop = true;
  queue_->wake_up.notify_one();
}

/// Without a descriptor or a thread to be had, the loop itself has to write: better late than never.
void WriterThread::start() {
  if (started_) return;
  started_ = true;
  queue_->event.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  has_thread_ = queue_->event && start_thread([queue = queue_] { run(queue); });
  if (!has_thread_) return;
  news_.assign(queue_->event.get());
  wait_for_news();
}

void WriterThread::run(const std::shared_ptr<Queue>& queue) {
  std::unique_lock lock(queue->mutex);
  for (;;) {
    queue->wake_up.wait(lock, [&] { return queue->stop || !queue->pieces.empty(); });
    if (queue->pieces.empty()) return;
    Queue::Piece piece = std::move(queue->pieces.front());
    queue->pieces.pop_front();
    lock.unlock();
    piece.target->write(piece.bytes);
    const std::size_t written = piece.bytes.size();
    piece = {};
    lock.lock();
    check_invariant(written <= queue->bytes, "what was written was in the queue");
    queue->bytes -= written;
    queue->written += written;
    if (queue->has_news()) queue->tell_loop();
  }
}

WriterThread::Warn WriterThread::warn() const {
  return [queue = std::weak_ptr(queue_)](const std::string& text) {
    const auto shared = queue.lock();
    if (!shared) return;
    const std::lock_guard lock(shared->mutex);
    shared->warnings.push_back(text);
    shared->tell_loop();
  };
}

void WriterThread::write(std::shared_ptr<WriteTarget> target, std::string bytes) {
  start();
  passed_ += bytes.size();
  if (!has_thread_) {
    queue_->written += bytes.size();
    target->write(bytes);
    return finish({});  // logs warnings
  }
  const std::lock_guard lock(queue_->mutex);
  check_invariant(!queue_->stop, "nothing is written after the end");
  queue_->bytes += bytes.size();
  check_invariant(queue_->written + queue_->bytes == passed_, "each byte is queued or written");
  if (auto& pieces = queue_->pieces; !pieces.empty() && pieces.back().target == target &&
                                     pieces.back().bytes.size() + bytes.size() <= Queue::kMostInPiece)
    pieces.back().bytes += bytes;
  else
    pieces.push_back({std::move(target), std::move(bytes)});
  queue_->wake_up.notify_one();
}

std::size_t WriterThread::waiting() const {
  const std::lock_guard lock(queue_->mutex);
  return queue_->bytes;
}

void WriterThread::set_full(std::size_t full) {
  const std::lock_guard lock(queue_->mutex);
  queue_->full = full_ = full;
  if (queue_->has_news()) queue_->tell_loop();
}

void WriterThread::when_room(Writer writer, std::function<void()> callback) {
  start();
  waiters_.push_back({writer, std::move(callback)});
  const std::lock_guard lock(queue_->mutex);
  queue_->waits_for_room = true;
  if (queue_->has_news()) queue_->tell_loop();  // written in the meantime
}

void WriterThread::forget(Writer writer) {
  std::erase_if(waiters_, [&](const Waiter& waiter) { return waiter.writer == writer; });
}

asio::awaitable<bool> WriterThread::drain(std::uint64_t bytes, std::optional<Clock::time_point> deadline) {
  for (;;) {
    {
      const std::lock_guard lock(queue_->mutex);
      check_invariant(bytes <= passed_, "nobody waits for bytes that were never passed");
      if (queue_->written >= bytes && queue_->warnings.empty()) co_return true;
      queue_->awaited = bytes;
    }
    drained_.expires_at(deadline.value_or(Clock::time_point::max()));
    boost::system::error_code cancelled;
    co_await drained_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    if (!cancelled) co_return false;
  }
}

void WriterThread::finish(std::chrono::milliseconds patience) {
  const auto now = &std::chrono::steady_clock::now;  // the real clock: the thread does not know another
  const auto end = now() + patience;
  std::vector<std::string> warnings;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - now());
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->awaited = passed_;
      warnings.swap(queue_->warnings);
      if (queue_->bytes == 0 || left.count() <= 0) break;
    }
    for (const std::string& text : std::exchange(warnings, {})) log_warning(text);
    pollfd news{queue_->event.get(), POLLIN, 0};  // not a condition's wait, which needs glibc 2.30
    ::poll(&news, 1, static_cast<int>(left.count()));
    eventfd_t ignored;
    ::eventfd_read(queue_->event.get(), &ignored);
  }
  for (const std::string& text : warnings) log_warning(text);
}

void WriterThread::wait_for_news() {
  news_.async_wait(news_.wait_read,
                   [this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
                     if (error || alive.expired()) return;
                     handle_news();
                     wait_for_news();
                   });
}

void WriterThread::handle_news() {
  eventfd_t ignored;
  ::eventfd_read(news_.native_handle(), &ignored);
  std::vector<std::string> warnings;
  bool room;
  {
    const std::lock_guard lock(queue_->mutex);
    warnings.swap(queue_->warnings);
    room = queue_->bytes < full_ / 2;
    if (room) queue_->waits_for_room = false;
    if (queue_->written >= queue_->awaited) queue_->awaited = Queue::kNothing;
  }
  for (const std::string& text : warnings) log_warning(text);
  if (room)
    for (const Waiter& waiter : std::exchange(waiters_, {})) waiter.callback();
  drained_.cancel();
}

}  // namespace ddprun::launcher
