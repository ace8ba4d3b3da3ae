#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/events/clock.h"

namespace ddprun::launcher {

/// Starts a thread that no signal reaches, and that may outlive the caller. False if none can be had.
bool start_thread(std::function<void()> work);

enum class AsideEnd { kDone, kLate, kGivenUp };

/// Runs work on a thread of its own: a stalled disk or a name server may hold it up, but never the event
/// loop. Where no thread can be had, runs it at once.
///
/// work      must own all that it uses: it may outlive the caller. Pass a variable: GCC 12 destroys a
///           temporary of a co_await twice
/// deadline  until when to wait for it; nullopt: until it is done
/// give_up   looked at ten times a second; null: never
/// returns   kLate, kGivenUp: the work goes on alone
/// throws    what the work throws
boost::asio::awaitable<AsideEnd> run_aside(
    std::function<void()> work, std::optional<std::chrono::steady_clock::time_point> deadline = std::nullopt,
    const std::function<bool()>* give_up = nullptr);

/// For co_spawn() of what the job cannot do without, such as the coordinator's timer: its failure ends ddprun
/// in an orderly way.
inline void rethrow(const std::exception_ptr& error) {
  if (error) std::rethrow_exception(error);
}

/// What a WriterThread writes to.
class WriteTarget {
 public:
  virtual ~WriteTarget() = default;
  /// Called on the thread; may block.
  virtual void write(std::string_view bytes) = 0;
};

/// Writes on a thread of its own, in order: a stalled disk or a reader that does not read may block it, but
/// never the event loop. The thread starts with the first write. An address that it owns identifies a writer.
class WriterThread {
 public:
  using Writer = const void*;
  using Clock = LoopClock;
  /// Takes a warning on the thread; the event loop logs it.
  using Warn = std::function<void(const std::string&)>;

  /// full  bytes: as many queued ones leave no room
  WriterThread(boost::asio::io_context& io, std::size_t full);
  /// Does not wait: see finish().
  ~WriterThread();
  WriterThread(const WriterThread&) = delete;
  WriterThread& operator=(const WriterThread&) = delete;

  Warn warn() const;
  void write(std::shared_ptr<WriteTarget> target, std::string bytes);

  /// How many bytes are queued or being written.
  std::size_t waiting() const;
  /// How many bytes were ever passed to write().
  std::uint64_t passed() const { return passed_; }

  bool has_room() const { return waiting() < full_; }
  /// Changes how many queued bytes leave no room.
  void set_full(std::size_t full);
  /// Calls back once when less than half of the room is taken.
  void when_room(Writer writer, std::function<void()> callback);
  /// The writer is done: its callback is dropped.
  void forget(Writer writer);

  /// Waits until the first `bytes` that were passed are written, and warnings are logged. False at the
  /// deadline.
  boost::asio::awaitable<bool> drain(std::uint64_t bytes, std::optional<Clock::time_point> deadline);

  /// Blocks until everything is written, for at most this long, and logs warnings; for the end of ddprun.
  void finish(std::chrono::milliseconds patience);

 private:
  struct Queue;
  struct Waiter {
    Writer writer;
    std::function<void()> callback;
  };

  void start();
  static void run(const std::shared_ptr<Queue>& queue);
  void wait_for_news();
  void handle_news();

  std::size_t full_;
  bool started_ = false, has_thread_ = false;
  std::uint64_t passed_ = 0;
  std::shared_ptr<Queue> queue_;
  boost::asio::posix::stream_descriptor news_;  // an eventfd that the thread writes to
  Timer drained_;                               // cancelled when the thread reports
  std::vector<Waiter> waiters_;
  std::shared_ptr<void> alive_ = std::make_shared<char>();  // for queued handlers
};

}  // namespace ddprun::launcher
