#pragma once

#include <map>
#include <utility>

#include "launcher/events/clock.h"

namespace ddprun::launcher {

/// As the init process of a container, which inherits everybody's orphans: returns in a child that goes on as
/// ddprun, and only there. So the orphans of workers become children of ddprun, the subreaper, and those of a
/// `docker exec` do not. The init process reaps, passes signals on, and ends as the child does. Call it
/// before any thread is started.
///
/// throws  std::system_error
void leave_init_process();

/// In the value of a signal that the init process has passed on.
constexpr int kPassedOn = 0x646470;

/// A signal for all processes of a group or container reaches ddprun twice: itself, and passed on by the init
/// process. It counts once, for a second one would kill the workers.
class SignalsOnce {
 public:
  bool counts(int signal, bool passed_on, LoopClock::time_point now);

 private:
  std::map<std::pair<int, bool>, LoopClock::time_point> last_;
};

}  // namespace ddprun::launcher
