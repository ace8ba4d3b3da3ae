#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/events/clock.h"
#include "launcher/output/console.h"
#include "launcher/output/line_format.h"
#include "launcher/output/output_stream.h"
#include "launcher/workers/process.h"

namespace ddprun::launcher {

/// Forwards the output of one attempt's workers to ddprun's console and to files.
class AttemptOutput {
 public:
  using Clock = LoopClock;

  /// folder  of the log files; null if no plan has any. The console must outlive this
  AttemptOutput(boost::asio::io_context& io, Console& console, std::shared_ptr<const LogFolder> folder);
  ~AttemptOutput();
  AttemptOutput(const AttemptOutput&) = delete;
  AttemptOutput& operator=(const AttemptOutput&) = delete;

  /// Makes the log files of workers that are about to start, aside, for their disk may stall. What cannot be
  /// made goes to the console, after a warning.
  ///
  /// give_up  whether to wait no longer: nothing will be started
  boost::asio::awaitable<void> make_files(std::vector<WorkerOutputPlan> plans, std::function<bool()> give_up);

  /// Makes the pipes of the worker with this index, and begins to read. If the console is a
  /// terminal, the worker gets terminals too, in raw mode and narrower by the width of the prefix. Close the
  /// result once the worker is started.
  /// throws std::system_error
  WorkerOutputs open(std::size_t index, const WorkerOutputPlan& plan);

  /// From now on each line of stderr begins with its worker's prefix, unless the user wants none: the stacks
  /// that SIGABRT makes Python print do not say whose they are.
  void prefix_stacks();

  /// The workers end: up to 16 MiB of what they write to each place waits in memory from now on, so that no
  /// stalled reader or disk keeps one from saving before it is killed.
  void unblock_workers();

  /// Called with a worker's index at its first output.
  void on_first_output(std::function<void(std::size_t)> callback) { on_first_output_ = std::move(callback); }

  /// Waits until every stream has ended. False at the deadline.
  boost::asio::awaitable<bool> wait_for_ends(std::optional<Clock::time_point> deadline);

  /// Whether bytes that workers wrote have not been forwarded yet.
  bool unread() const;

  /// Closes the streams, after forwarding unfinished lines. The console and files may still need draining.
  void finish();

  /// Waits until the log files hold everything. False at the deadline.
  boost::asio::awaitable<bool> drain_files(std::optional<Clock::time_point> deadline);

  /// The end of a worker's stderr, wherever it goes: at most 20 lines and 16 KiB, raw.
  std::vector<std::string> last_error_lines(std::size_t index) const;

  /// The end of a worker's output on both streams, as far as it passed through ddprun.
  const RecentOutput& recent(std::size_t index) const;

  /// When a worker last wrote something that passed through ddprun, or was opened. Now, while the console or
  /// a stalled disk blocks it.
  Clock::time_point last_output(std::size_t index) const;

  /// Adapts the workers' terminals to the current size of ddprun's. Sends no SIGWINCH, because theirs is not
  /// a controlling terminal.
  void update_window_size();

 private:
  struct Worker;

  UniqueFd open_stream(std::size_t index, const StreamPlan& plan, bool is_err);
  void note_output(std::size_t index, std::string_view bytes, bool is_err);

  boost::asio::io_context& io_;
  Console& console_;
  std::shared_ptr<const LogFolder> folder_;
  WriterThread writer_;       // of the files
  bool lacks_files_ = false;  // one could not be made, which was said
  std::map<std::size_t, std::unique_ptr<Worker>> workers_;
  // Of all workers, also of lost ones, whose last output may still be arriving.
  std::vector<std::shared_ptr<OutputStream>> streams_;
  std::map<std::filesystem::path, std::shared_ptr<LogFile>>
      files_;  // by make_files(), until open() takes them
  std::map<std::filesystem::path, std::shared_ptr<LogFile>> filtered_files_;
  std::function<void(std::size_t)> on_first_output_;
  Timer ended_;  // cancelled when a stream ends
};

}  // namespace ddprun::launcher
