#pragma once

#include <csignal>
#include <functional>
#include <string>
#include <thread>

#include <ddprun/common/unique_fd.h>

namespace ddprun::ddp {

/// While it lives, calls `act` on a thread of its own whenever this process gets the signal; what the program
/// does is not interrupted (system calls go on). For one signal at a time; the earlier handling of the signal
/// comes back afterwards.
///
///   SignalThread on_request(SIGUSR2, [] { dump_flight("SIGUSR2"); });
class SignalThread {
 public:
  /// throws  std::system_error; std::logic_error if there is one already
  SignalThread(int signal, std::function<void()> act);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  int signal_;
  UniqueFd event_;
  struct sigaction before_ {};
  std::jthread thread_;
};

}  // namespace ddprun::ddp
