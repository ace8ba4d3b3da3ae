#include "launcher/workers/standbys.h"

#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>

#include <ddprun/common/logging.h>
#include <ddprun/common/recovery.h>
#include "launcher/host/cpu_map.h"
#include "launcher/workers/job_processes.h"

namespace ddprun::launcher {
namespace {

constexpr std::chrono::seconds kMostApart{60};

/// What a process with `known` in its environment needs to become this worker.
StandbyOrder order_of(const ProcessSpec& worker, const std::vector<std::string>& known) {
  StandbyOrder order;
  order.fds = {{"0", worker.stdin_fd}, {"1", worker.stdout_fd}, {"2", worker.stderr_fd}};
  for (const std::string& text : worker.env) {
    if (std::find(known.begin(), known.end(), text) != known.end()) continue;
    const auto end = text.find('=');
    const std::string name = text.substr(0, end), value = text.substr(end + 1);
    const auto fd = std::find_if(worker.inherited_fds.begin(), worker.inherited_fds.end(),
                                 [&](int number) { return std::to_string(number) == value; });
    if (name.ends_with("_FD") && fd != worker.inherited_fds.end())
      order.fds.emplace_back(name, *fd);
    else
      order.env.emplace_back(name, value);
  }
  return order;
}

/// Applies to every thread of the process.
void set_cpus(pid_t pid, const CpuList& cpus) {
  if (cpus.empty()) return;
  const CpuSet set(cpus);
  for (const pid_t task : numbers_in("/proc/" + std::to_string(pid) + "/task"))
    ::sched_setaffinity(task, set.bytes(), set.data());
}

/// Whether the child is still running. If so, it is not reaped before the next event is handled.
bool lives(pid_t child) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

}  // namespace

void Standbys::keep(int count, ProcessSpec process, std::function<bool()> may_start) {
  count_ = static_cast<std::size_t>(count);
  process_ = std::move(process);
  may_start_ = std::move(may_start);
  fill();
}

void Standbys::fill() {
  timer_.expires_after(apart_);
  timer_.async_wait([this, token = std::weak_ptr(token_)](const boost::system::error_code& error) {
    if (error || token.expired() || count_ == 0) return;  // 0: end() was called first
    std::erase_if(waiting_, [this](const Standby& standby) {
      if (lives(standby.process.pid)) return false;
      lose(standby);
      return true;
    });
    if (waiting_.size() < count_ && may_start_()) start_one();
    fill();
  });
}

void Standbys::start_one() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  Standby standby{{}, UniqueFd(ends[0])};
  const UniqueFd theirs(ends[1]);
  const UniqueFd dev_null = open_dev_null(O_RDWR);
  ProcessSpec process = process_;
  process.env.push_back("DDPRUN_STANDBY_FD=" + std::to_string(theirs.get()));
  process.inherited_fds = {theirs.get()};
  process.stdin_fd = process.stdout_fd = process.stderr_fd = dev_null.get();
  process.announce_fd = guard_.announce_fd();
  auto started = start_process(process);
  if (const auto* failure = std::get_if<StartFailure>(&started)) {
    log_warning("--standby: cannot start a process: " + std::string(failure->step) + ": " +
                std::strerror(failure->error));
    count_ = 0;
    return;
  }
  standby.process = std::move(std::get<Process>(started));
  waiting_.push_back(std::move(standby));
}

std::variant<Process, StartFailure> Standbys::start(const ProcessSpec& worker) {
  while (!waiting_.empty()) {
    Standby standby = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    fill();
    if (become(standby, worker)) return std::move(standby.process);
    lives(standby.process.pid) ? drop(standby) : lose(standby);
  }
  return start_process(worker);
}

bool Standbys::become(const Standby& standby, const ProcessSpec& worker) const {
  if (worker.argv != process_.argv) return false;  // --expand
  if (!lives(standby.process.pid)) return false;
  set_cpus(standby.process.pid, worker.cpus);
  return send_order(standby.channel.get(), order_of(worker, process_.env));
}

void Standbys::lose(const Standby& standby) {
  log_warning("the standby process " + std::to_string(standby.process.pid) +
              " has ended: another will start");
  apart_ = std::min(2 * apart_, kMostApart);
  drop(standby);
}

void Standbys::drop(const Standby& standby) {
  signal_group(standby.process, SIGKILL);
  guard_.forget(standby.process.pid);
}

void Standbys::end() {
  timer_.cancel();
  count_ = 0;
  for (const Standby& standby : waiting_) drop(standby);
  waiting_.clear();
}

}  // namespace ddprun::launcher
