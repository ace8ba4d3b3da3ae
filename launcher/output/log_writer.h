#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "launcher/output/log_file.h"

namespace ddprun::launcher {

/// Writes log files on a thread, through a bounded queue: a stalled disk blocks the workers, never the event
/// loop. An address that it owns identifies a writer.
class LogWriter {
 public:
  using Writer = const void*;
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kFull = std::size_t{1} << 20;

  explicit LogWriter(boost::asio::io_context& io);
  /// May lose what a stalled disk has not accepted by then.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  /// Opens a file whose warnings the event loop logs. See LogFile.
  std::shared_ptr<LogFile> open(const LogFolder& folder, const std::filesystem::path& path,
                                std::size_t max_size);
  void write(std::shared_ptr<LogFile> file, std::string bytes);

  /// False while too much output is queued.
  bool has_room() const;
  /// Calls back once when there is room again.
  void when_room(Writer writer, std::function<void()> callback);
  /// The writer is done: its callback is dropped.
  void forget(Writer writer);

  /// Waits until everything is written. False at the deadline.
  boost::asio::awaitable<bool> drain(std::optional<Clock::time_point> deadline);

 private:
  struct Queue;
  struct Waiter {
    Writer writer;
    std::function<void()> callback;
  };

  static void run(const std::shared_ptr<Queue>& queue);
  void wait_for_news();
  void handle_news();

  std::shared_ptr<Queue> queue_;
  boost::asio::posix::stream_descriptor news_;  // an eventfd that the thread writes to
  boost::asio::steady_timer drained_;           // cancelled when the thread reports
  std::vector<Waiter> waiters_;
  std::shared_ptr<void> alive_ = std::make_shared<char>();  // for queued handlers
  std::thread thread_;
};

}  // namespace ddprun::launcher
