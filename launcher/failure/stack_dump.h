#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/failure/kernel_view.h"
#include "launcher/failure/stack_tools.h"
#include "launcher/workers/process.h"

namespace ddprun::launcher {

/// How long the stacks of a whole job may take: it hangs anyway, and gdb
/// wants 5 s of a CPU for each rank with LibTorch.
constexpr std::chrono::seconds kStackDumpTimeout{30};

/// A worker whose stacks are wanted, with those of its process group, which it leads.
struct StackTarget {
  int rank = 0;
  pid_t pid = -1;
};

/// What was found out about one rank.
struct StackResult {
  int rank = 0;
  pid_t pid = -1;
  std::filesystem::path file;      ///< empty: there is none
  std::vector<std::string> tools;  ///< whose stacks of the worker itself are in the file
  std::string problem;             ///< why there are none: one line
  KernelView view;                 ///< of the worker itself, at the beginning
};

/// One line for the user: where the stacks are, or why not.
std::string describe(const StackResult& result);

/// The signal to end a hanging job with: SIGABRT where it can tell more (it leaves a core file, and Python's
/// faulthandler prints its stacks), because a rank has no stacks, or has a handler for it and no Python
/// stacks. Else SIGTERM.
int signal_after(const std::vector<StackResult>& results);

/// Writes what every rank of a hanging job is doing to FOLDER/stacks_RANK.txt (mode 0600): at once what the
/// kernel tells of all its processes, then their stacks by what debuggers there are, some ranks at a time.
/// Works on stopped processes too, and leaves every process as it found it.
///
/// Nothing here waits. The owner calls advance() whenever a child of ddprun has ended (the debuggers are
/// children; anybody may reap them) until it returns true, or time or patience is up, and then finish().
class StackDump {
 public:
  StackDump(const std::vector<StackTarget>& targets, const std::filesystem::path& folder, StackTools tools);
  /// Kills the debuggers that still run; their processes go on.
  ~StackDump();
  StackDump(const StackDump&) = delete;
  StackDump& operator=(const StackDump&) = delete;

  /// Starts the debuggers whose turn it is. True if none is left to run.
  bool advance();

  /// Ends the debuggers that still run. The results in the order of the targets.
  std::vector<StackResult> finish();

 private:
  struct Step {
    StackCommand command;
    pid_t pid;
    bool of_worker;  ///< and not of a child of it
  };
  struct Rank {
    StackResult result;
    UniqueFd file;
    std::deque<Step> steps;  ///< the first one is at work while there is a debugger
    Process debugger;
    off_t output_begin = 0;  ///< where the running debugger's output begins
  };

  void look_at(Rank& rank, const std::filesystem::path& folder);
  void start_next(Rank& rank, bool of_worker);
  void conclude(Rank& rank, bool in_time);
  static void note_problem(Rank& rank, const Step& step, const std::string& problem);
  static void kill_debugger(Rank& rank);

  StackTools tools_;
  UniqueFd dev_null_;
  std::vector<Rank> ranks_;
  const unsigned max_running_;
  unsigned running_ = 0;
};

}  // namespace ddprun::launcher
