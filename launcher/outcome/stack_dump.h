#pragma once

#include <sys/types.h>

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/events/clock.h"

namespace ddprun::launcher {

/// How long a tool may work on one process, which stands still meanwhile, and all of them on a whole job.
constexpr std::chrono::seconds kStackToolTimeout{3}, kStackDumpTimeout{10};

/// What /proc says about a process. Instant; needs no debugger.
struct KernelView {
  std::string text;            ///< a line for the process and one per thread; empty if it is gone
  bool stopped = false;        ///< by SIGSTOP or similar: it reacts only to SIGKILL and SIGCONT
  bool catches_abort = false;  ///< it handles SIGABRT, as Python's faulthandler does
  bool python = false;         ///< it runs a Python interpreter
};

/// Each thread's name, state, kernel function and system call, as far as visible to us. Leaves out arguments
/// and environment, which may contain secrets.
KernelView kernel_view(pid_t pid);

/// Paths of the programs that can print another process's stacks; empty: not found.
struct StackTools {
  std::string eu_stack;
  std::string gdb;     ///< used if eu-stack is missing and py-spy has not answered
  std::string py_spy;  ///< for Python frames
};

/// Finds the tools in these folders.
StackTools find_stack_tools(const std::string& search_path);

/// Finds them in $PATH, or in the system's folders if one of $PATH does not answer, such as an environment on
/// a network disk for which the job may hang, too.
///
/// give_up  as for run_aside(): none are found then
boost::asio::awaitable<StackTools> find_stack_tools(const std::function<bool()>* give_up = nullptr);

/// One run of a tool on one process.
struct StackCommand {
  std::string tool;  ///< for messages: "gdb"
  std::vector<std::string> argv;
};

/// Commands that get all stacks of a process, one after the other: two cannot trace a process at once.
std::vector<StackCommand> stack_commands(const StackTools& tools, pid_t pid, const KernelView& process);

/// True if a tool's output contains at least one stack.
bool shows_stacks(std::string_view output);

/// The line of a tool's output that says why it shows no stacks, without control characters; empty if none.
std::string refusal_in(std::string_view output);

/// Where a Python program is, from py-spy's output: the innermost frame of its main thread and, where that is
/// in another file than the program, the program's own, "wait (threading.py:327), called by main
/// (train.py:9)". Without control characters; empty if there is none.
std::string python_frame(std::string_view output);

/// Why no debugger can attach to any worker; nullopt if one may.
///
/// ptrace_scope  the content of /proc/sys/kernel/yama/ptrace_scope; empty without Yama
/// privileged    we have CAP_SYS_PTRACE
std::optional<std::string> tracing_forbidden(std::string_view ptrace_scope, bool privileged);

/// A worker to examine, with the other members of its process group, which it leads.
struct StackTarget {
  int rank = 0;
  pid_t pid = -1;
};

/// The findings about one rank.
struct StackResult {
  int rank = 0;
  pid_t pid = -1;
  std::string text;                ///< the kernel's view of all its processes, and their stacks
  std::filesystem::path file;      ///< empty: not written
  std::vector<std::string> tools;  ///< that found the worker's own stacks
  std::string frame;               ///< see python_frame(); empty: not known
  std::string problem;             ///< why there are none: one line
  KernelView view;                 ///< of the worker itself, at the beginning
};

/// One line for the user: where the stacks are, or why there are none.
std::string describe(const StackResult& result);

/// The signal to end a hanging job with: SIGABRT where it reveals more, through a core file or the stacks of
/// Python's faulthandler, because a rank has no stacks, or handles SIGABRT and has no Python stacks.
/// Otherwise SIGTERM.
int signal_after(const std::vector<StackResult>& results);

/// Writes the text to FOLDER/stacks_RANK.txt (mode 0600), and notes the file or the problem. A disk that
/// stalls holds it up.
void write_stacks(StackResult& result, const std::filesystem::path& folder);

/// Finds out what every rank of a hanging job is doing: first the kernel's view of all its processes, then
/// their stacks, with debuggers working on a few ranks at a time. Also works on stopped processes, and leaves
/// every process as it found it.
///
/// Nothing here blocks. Call advance() whenever a child of ddprun has ended (debuggers are children, and
/// anyone may reap them), and at next() at the latest, until it returns true or you give up, and then
/// finish().
class StackDump {
 public:
  using Clock = LoopClock;

  StackDump(const std::vector<StackTarget>& targets, StackTools tools,
            std::chrono::milliseconds tool_timeout = kStackToolTimeout);
  /// Kills the remaining debuggers; the processes that they traced continue.
  ~StackDump();
  StackDump(const StackDump&) = delete;
  StackDump& operator=(const StackDump&) = delete;

  /// Looks at a few ranks, ends the debuggers that take too long, and starts those whose turn it is. True if
  /// nothing is left to do.
  bool advance();

  /// When advance() has something to do even if no debugger ends.
  Clock::time_point next() const;

  /// Whether there are ranks that it has not looked at.
  bool looking() const;

  /// Kills the remaining debuggers. returns the results in the order of the targets
  std::vector<StackResult> finish();

 private:
  struct Step;
  struct Rank;

  void look_at(Rank& rank);
  void start_next(Rank& rank, bool of_worker);
  void end_late(Rank& rank);
  void conclude(Rank& rank);
  void leave_out(Rank& rank);

  StackTools tools_;
  const std::chrono::milliseconds tool_timeout_;
  const Clock::time_point deadline_ = Clock::now() + kStackDumpTimeout;
  std::optional<std::string> forbidden_;
  std::map<pid_t, std::vector<pid_t>> groups_;
  std::vector<Rank> ranks_;
  std::size_t looked_at_ = 0;  ///< ranks
  const unsigned max_running_;
  unsigned running_ = 0;
};

}  // namespace ddprun::launcher
