#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace ddprun::launcher {

/// The server of PyTorch's file timers (torch.distributed.elastic.timer.FileTimerClient). Workers write lines
/// of JSON into a named pipe: a process, a scope, when its timer expires, and the signal that the process
/// gets then. A negative time removes the timer.
class FileTimers {
 public:
  struct Expired {
    pid_t pid = 0;
    std::string scope;
    int signal = 0;
  };
  using OnExpired = std::function<void(const Expired& expired)>;

  /// Makes the pipe, replacing one left by an earlier job of this user. throws IoError
  FileTimers(boost::asio::io_context& io, std::filesystem::path path, OnExpired on_expired);
  /// Removes it.
  ~FileTimers();
  FileTimers(const FileTimers&) = delete;
  FileTimers& operator=(const FileTimers&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with handlers that may still be queued at destruction
};

}  // namespace ddprun::launcher
