#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/events/clock.h"
#include "launcher/output/console.h"
#include "launcher/output/line_format.h"
#include "launcher/output/log_file.h"

namespace ddprun::launcher {

/// Where one of a worker's two output streams goes. Without console and file, it is discarded.
struct StreamPlan {
  bool inherit = false;             ///< the worker writes to ddprun's own stream; the rest is ignored
  bool console = true;              ///< its lines appear on ddprun's stream of the same name,
  bool timestamps = false;          ///< preceded by the time
  std::string prefix = {};          ///< and this prefix
  std::filesystem::path file = {};  ///< gets every byte, below the log folder; empty: no file
  std::filesystem::path filtered_file = {};  ///< gets the lines that match a filter; workers may share it
  std::string filtered_prefix = {};          ///< precedes each of those
  std::vector<std::string> filters = {};
  std::size_t max_file_size = 0;  ///< size at which a file is rotated; 0: no limit
  bool need_activity = false;     ///< ddprun has to notice when the worker writes
  std::string stack_prefix =
      {};  ///< replaces the prefix once the worker's stacks are expected there; empty: none
};

struct WorkerOutputPlan {
  StreamPlan out, err;
};

/// A pipe or terminal from a worker to ddprun. Both ends close on exec, and only ours is non-blocking.
struct OutputChannel {
  UniqueFd reading;
  UniqueFd writing;
};

/// throws std::system_error
OutputChannel open_output_pipe();

/// A pseudo-terminal that changes no bytes, as large as the terminal `like` less `margin` columns: for
/// programs that show colours and progress bars only on a terminal. A pipe if the system has no terminal
/// left. throws std::system_error
OutputChannel open_output_terminal(int like, int margin);

/// The columns before each line of a stream, for time and prefix.
int margin_of(const StreamPlan& plan);

/// A plan with its targets opened; null: not wanted.
struct OutputTargets {
  StreamPlan plan;
  std::shared_ptr<ConsoleSink> console = nullptr;
  std::shared_ptr<LogFile> file = nullptr;      ///< plan.file
  std::shared_ptr<LogFile> filtered = nullptr;  ///< plan.filtered_file
  WriterThread* writer = nullptr;               ///< of the files; must outlive the stream
};

/// Reads one output stream of a worker and forwards it. While the console or the files' queue has no room, it
/// stops reading, so the worker blocks once its pipe is full.
class OutputStream : public std::enable_shared_from_this<OutputStream> {
 public:
  using Bytes = std::function<void(std::string_view)>;

  OutputStream(boost::asio::io_context& io, UniqueFd source, OutputTargets targets);
  ~OutputStream();
  OutputStream(const OutputStream&) = delete;
  OutputStream& operator=(const OutputStream&) = delete;

  /// on_bytes  called with everything read, before it is forwarded
  /// on_end    called once, when all copies of the worker's end are closed
  void start(Bytes on_bytes, std::function<void()> on_end);

  bool open() const { return !ended_; }
  /// Gives the worker's terminal the current size of the console's, less the margin.
  void update_window_size();
  /// From now on lines begin with StreamPlan::stack_prefix, if there is one.
  void prefix_stacks();
  /// True while there are bytes that were written but not yet forwarded.
  bool unread() const;

  /// Forwards the unfinished line and stops reading.
  void finish();

 private:
  void wait();
  void read();
  template <typename Target>
  bool hold_up(Target* target);
  void take(std::string_view bytes);
  void take_line(std::string_view line);
  void print(std::string_view line);
  void schedule_partial();
  void show_partial();

  boost::asio::posix::stream_descriptor source_;
  int fd_;  // source_'s
  Timer partial_timer_;
  OutputTargets targets_;
  Bytes on_bytes_;
  std::function<void()> on_end_;
  LineSplitter splitter_;
  std::string line_start_;  // timestamp and prefix
  std::string filtered_;    // matching lines of the bytes just read
  bool to_terminal_;
  bool partial_due_ = false;
  bool held_up_ = false;
  bool finished_ = false;
  bool ended_ = false;
};

}  // namespace ddprun::launcher
