#pragma once

#include <csignal>
#include <functional>
#include <string>
#include <thread>

#include <ddprun/common/files.h>

namespace ddprun::ddp {

/// While it lives, calls `act` on a separate thread whenever this process gets the signal, without
/// interrupting the program's system calls. The destructor restores the earlier handler.
///
///   SignalThread on_request(SIGUSR2, [] { dump_flight("SIGUSR2"); });
class SignalThread {
 public:
  /// throws  std::system_error; std::logic_error if another one exists
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
