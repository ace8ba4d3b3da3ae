#include "launcher/events/job_events.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <string>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>

namespace ddprun::launcher {
namespace asio = boost::asio;

JobEvents::JobEvents(asio::io_context& io, const SignalFd& signals)
    : io_(io), handled_(signals), signals_(io, signals.get()), wake_up_(io), judge_(io) {
  watch_signals();
}

JobEvents::~JobEvents() {
  // Asio would close descriptors that it does not own.
  signals_.release();
  for (Descriptor& descriptor : pidfds_) descriptor.release();
}

void JobEvents::watch_exit(std::size_t index, int pidfd) {
  auto& descriptor = pidfds_.emplace_back(io_, pidfd);
  // epoll reports descriptors in the order they became ready, so the first worker to fail comes first even if
  // ddprun polls late.
  descriptor.async_wait(Descriptor::wait_read,
                        [this, index, generation = generation_](const boost::system::error_code& error) {
                          if (!error && generation == generation_) push(WorkerExited{index});
                        });
}

void JobEvents::forget_exit(int pidfd) {
  const auto found = std::ranges::find(pidfds_, pidfd, &Descriptor::native_handle);
  if (found == pidfds_.end()) return;
  found->release();
  pidfds_.erase(found);
}

void JobEvents::forget_exits() {
  for (Descriptor& descriptor : pidfds_) descriptor.release();
  pidfds_.clear();
  ++generation_;
  std::erase_if(events_, [](const JobEvent& event) { return std::holds_alternative<WorkerExited>(event); });
}

asio::awaitable<JobEvent> JobEvents::next(std::optional<Clock::time_point> deadline) {
  while (events_.empty()) {
    wake_up_.expires_at(deadline.value_or(Clock::time_point::max()));
    boost::system::error_code cancelled;
    co_await wake_up_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    if (!cancelled && events_.empty()) co_return DeadlinePassed{};
  }
  const JobEvent event = events_.front();
  events_.pop_front();
  co_return event;
}

namespace {

/// Whether the process, which may have other threads, is no longer there or a zombie.
bool is_dead(pid_t pid) try {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const auto name_end = stat.rfind(')');
  return name_end == std::string::npos || stat.substr(name_end + 2, 1) == "Z";
} catch (const IoError&) {
  return true;
}

Sender sender_of(const signalfd_siginfo& info) {
  if (info.ssi_code == SI_QUEUE && info.ssi_int == kPassedOn) return kInit;
  return info.ssi_code == SI_KERNEL ? kKernel : static_cast<Sender>(info.ssi_pid);
}

}  // namespace

void JobEvents::push(JobEvent event) {
  const auto* received = std::get_if<SignalReceived>(&event);
  if (received != nullptr && handled_.ends_job(received->signal)) ++end_signals_;
  events_.push_back(event);
  wake_up_.cancel();
}

bool JobEvents::end_requested() const {
  return std::ranges::any_of(events_, [&](const JobEvent& event) {
    const auto* received = std::get_if<SignalReceived>(&event);
    return received != nullptr && handled_.ends_job(received->signal);
  });
}

void JobEvents::watch_signals() {
  signals_.async_wait(Descriptor::wait_read, [this](const boost::system::error_code& error) {
    if (error) return;
    read_signals();
    watch_signals();
  });
}

void JobEvents::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.native_handle(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      if (tell_) tell_(signal);
      push(ChildEnded{});
      continue;
    }
    const auto counts = signals_once_.counts(signal, sender_of(info), end_signals_ > 0, Clock::now());
    if (counts == SignalsOnce::Counts::kYes && instead_ && instead_(signal)) continue;
    if (counts == SignalsOnce::Counts::kYes) {
      if (tell_) tell_(signal);
      push(SignalReceived{signal});
    } else if (counts == SignalsOnce::Counts::kIfParentLives) {
      doubtful_.insert(signal);
      judge_doubtful();
    }
  }
}

void JobEvents::judge_doubtful() {
  judge_.expires_after(std::chrono::milliseconds(100));
  judge_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    for (const int signal : std::exchange(doubtful_, {})) {
      if (is_dead(parent_) || (instead_ && instead_(signal))) continue;
      if (tell_) tell_(signal);
      push(SignalReceived{signal});
    }
  });
}

}  // namespace ddprun::launcher
