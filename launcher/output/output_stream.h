#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <ddprun/common/files.h>
#include "launcher/output/console_sink.h"
#include "launcher/output/line_format.h"
#include "launcher/output/log_file.h"
#include "launcher/output/output_plan.h"

namespace ddprun::launcher {

/// A plan with what it names opened; null: not wanted.
struct OutputTargets {
  StreamPlan plan;
  std::shared_ptr<ConsoleSink> console = nullptr;
  std::shared_ptr<LogFile> file = nullptr;      ///< plan.file
  std::shared_ptr<LogFile> filtered = nullptr;  ///< plan.filtered_file
};

/// Reads one output stream of a worker, from a pipe or a terminal of its own, and passes it on. While the
/// console has no room it reads no further, and in the end the worker waits.
class OutputStream : public std::enable_shared_from_this<OutputStream> {
 public:
  using Bytes = std::function<void(std::string_view)>;

  OutputStream(boost::asio::io_context& io, UniqueFd source, OutputTargets targets);
  ~OutputStream();
  OutputStream(const OutputStream&) = delete;
  OutputStream& operator=(const OutputStream&) = delete;

  /// on_bytes  called with all that comes, before it is passed on
  /// on_end    called once, when nobody has the worker's end open any more
  void start(Bytes on_bytes, std::function<void()> on_end);

  bool ended() const { return ended_; }
  /// Ours of the pipe's or terminal's ends; -1 when it is closed.
  int descriptor() { return source_.is_open() ? source_.native_handle() : -1; }
  /// True while the console keeps the worker from writing on.
  bool held_up() const { return held_up_; }

  /// Passes on what has no end of line yet, and reads no more.
  void finish();

 private:
  void wait();
  void read();
  void take(std::string_view bytes);
  void take_line(std::string_view line);
  void print(std::string_view line);
  void schedule_partial();
  void show_partial();

  boost::asio::posix::stream_descriptor source_;
  boost::asio::steady_timer partial_timer_;
  OutputTargets targets_;
  Bytes on_bytes_;
  std::function<void()> on_end_;
  LineSplitter splitter_;
  std::string line_start_;  // timestamp and prefix
  std::string filtered_;    // lines of the bytes at hand
  bool to_terminal_;
  bool partial_due_ = false;
  bool held_up_ = false;
  bool finished_ = false;
  bool ended_ = false;
};

}  // namespace ddprun::launcher
