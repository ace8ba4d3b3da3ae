#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/events/clock.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/workers/guard.h"
#include "launcher/workers/process.h"

namespace ddprun::launcher {

/// --preload: a process of the workers' Python that has imported modules. Workers are forks of it, so they do
/// not wait for these imports, and share their memory. Where it cannot be had, they start as always.
///
/// It is made by starting the workers' own command line, with a `sitecustomize` of ours (preload.py) in front
/// of PYTHONPATH. Python imports that before it runs the script. In a fork the import returns, so that the
/// script runs as in any process. Over a SOCK_SEQPACKET socket, DDPRUN_PRELOAD_FD, we send
///   {"modules": ["torch"], "launcher": 17, "traceable": false}
/// and get {"ready": true}, {"refused": REASON} or {"missing": REASON}. After that we send, for each fork, a
/// number with a socket, and get {"fork": NUMBER, "pid": PID} or {"failed": NUMBER, "why": REASON}. On its
/// socket the fork waits for a StandbyOrder.
class Preload {
 public:
  using Clock = LoopClock;

  /// Starts the process.
  ///
  /// modules  --preload's
  /// worker   as every worker, without what is different in each
  /// folder   for our sitecustomize; must not exist
  Preload(boost::asio::io_context& io, Guard& guard, std::string job_id, std::vector<std::string> modules,
          std::string program, WorkerSpec worker, std::filesystem::path folder);
  ~Preload() { end(); }
  Preload(const Preload&) = delete;
  Preload& operator=(const Preload&) = delete;

  /// Waits until the modules are imported, or the process cannot be used.
  ///
  /// throws  UsageError: there is no such module
  ///
  /// patience  after that time workers start the ordinary way; nullopt: it waits
  boost::asio::awaitable<void> imported(std::optional<Clock::time_point> deadline,
                                        std::optional<std::chrono::milliseconds> patience,
                                        const std::function<bool()>& give_up);

  /// Waits until so many forks can become workers, or there will be none.
  boost::asio::awaitable<void> have(std::size_t count, const std::function<bool()>& give_up);

  /// How many can become workers.
  std::size_t forks() const { return forks_.size(); }

  /// Turns one of them into this worker; nullopt: there is none.
  std::optional<Process> become(const WorkerSpec& worker, const StandardFds& fds);

  /// Ends those that have not become workers.
  void drop_forks();

  /// Ends all, also what the imports have started: for the job's end.
  void end();

 private:
  enum class State { kImporting, kReady, kNone };
  struct Fork {
    Process process;
    UniqueFd channel;
  };

  void start();
  void start_later();
  void give_up_on_it(const std::string& reason);
  void watch();
  void take_packets();
  void take(const std::string& packet);
  void take_fork(pid_t pid, UniqueFd channel);
  void lose();
  void stop_process();
  void ask();
  bool ask_for_one();
  void drop(const Fork& fork);
  boost::asio::awaitable<void> wait(const std::function<bool()>& done, Clock::time_point deadline,
                                    const std::function<bool()>& give_up);

  boost::asio::io_context& io_;
  Guard& guard_;
  std::vector<std::string> modules_;
  std::string program_;
  WorkerSpec worker_;  ///< what each fork was started as
  std::filesystem::path folder_;
  State state_ = State::kNone;
  std::string job_id_;
  bool started_ = false;
  bool was_ready_ = false;  ///< one that ends then is started again
  std::string missing_;     ///< the module that does not exist
  std::optional<Process> process_;
  UniqueFd socket_;
  boost::asio::posix::stream_descriptor reading_;  ///< the same descriptor
  std::map<int, UniqueFd> asked_;                  ///< our ends of the sockets of forks to come, by number
  int last_number_ = 0;
  std::size_t wanted_ = 0;
  std::string fork_failure_;
  std::vector<Fork> forks_;
  std::chrono::seconds pause_{1};                         ///< before the next start
  Timer restart_, news_;                                  ///< news_ is cancelled when a packet has come
  std::shared_ptr<int> token_ = std::make_shared<int>();  ///< for handlers: we still exist
};

}  // namespace ddprun::launcher
