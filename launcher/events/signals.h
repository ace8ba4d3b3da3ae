#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/events/clock.h"

namespace ddprun::launcher {

struct SignalReceived {
  int signal = 0;
  bool operator==(const SignalReceived&) const = default;
};

/// Delivers signals to ddprun's loop through a signalfd, so they never interrupt anything; those that arrive
/// during setup wait until the loop runs.
///
/// Blocks, while ddprun runs: signals that end the job (SIGHUP unless it is ignored, as under nohup), signals
/// that are forwarded, SIGTSTP, SIGWINCH and SIGCHLD. Ignores SIGPIPE: a reader that closes our output must
/// not end the job.
class SignalFd {
 public:
  SignalFd(std::vector<int> ending, const std::vector<int>& forwarded);

  int get() const { return fd_.get(); }

  /// True if this signal ends the job.
  bool ends_job(int signal) const;

  /// From now on such a signal ends ddprun at once, even while ddprun writes a plan that nobody reads.
  void end_at_once() const;

  /// True if a signal that ends the job is pending.
  bool end_requested() const;

 private:
  std::vector<int> ending_;
  UniqueFd fd_;
};

/// Stops this process, as Ctrl-Z does (SIGTTIN: as the kernel does a background job that reads the terminal),
/// until it is continued. Returns at once where nobody could do that: the kernel ignores SIGTSTP in an
/// orphaned process group (`ssh -t HOST ddprun ...`, a container).
void stop_by_terminal(int signal = SIGTSTP);

/// Ends this process by that signal, as the shell or scheduler expects.
[[noreturn]] void end_by_signal(int signal);

/// As the init process of a container, which inherits everybody's orphans: returns in a child that goes on as
/// ddprun, and only there. So the orphans of workers become children of ddprun, the subreaper, and those of a
/// `docker exec` do not. The init process reaps, passes signals on, and ends as the child does. Call it
/// before any thread is started.
///
/// throws  std::system_error
void leave_init_process();

/// In the value of a signal that the init process has passed on.
constexpr int kPassedOn = 0x646470;

/// Who has sent a signal: a process, the kernel (a terminal's), or our init process, which passes it on.
using Sender = pid_t;
constexpr Sender kKernel = -1, kInit = -2;

/// A signal for all processes of a group, a terminal or a container reaches ddprun several times: itself, and
/// passed on by its parent or the init process. It counts once, for a second one would kill the workers.
/// Equal signals within a second are two if one process has sent both, or a person has typed both.
class SignalsOnce {
 public:
  /// kIfParentLives: it came from the parent twice at once. With PR_SET_PDEATHSIG a signal comes from each
  /// thread of a parent that dies, the first ones before it is seen to be dead: they are one signal.
  enum class Counts { kYes, kNo, kIfParentLives };

  /// parent  ddprun's
  /// ends    whether a signal ends the job
  SignalsOnce(Sender parent, std::function<bool(int signal)> ends)
      : parent_(parent), ends_(std::move(ends)) {}

  /// ending  the job is being ended by a signal already
  Counts counts(int signal, Sender sender, bool ending, LoopClock::time_point now);

 private:
  bool came_just_now(int signal, LoopClock::time_point now) const;

  Sender parent_;
  std::function<bool(int)> ends_;
  struct Last {
    LoopClock::time_point at;  ///< when it counted
    std::set<Sender> senders;  ///< of it and its copies
  };
  std::map<int, Last> last_;
};

}  // namespace ddprun::launcher
