// A job with --hosts, on the ddprun that was typed: its part, if it has one, beside those that it has
// started.
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <optional>

#include <ddprun/common/logging.h>
#include "launcher/events/launch_error.h"
#include "launcher/job/supervisor.h"
#include "launcher/remote/remote_hosts.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

// Within this time the nodes learn from the coordinator that one of them is lost.
constexpr std::chrono::seconds kNewsTravel{5};
// After a signal a host's ddprun needs no more, beyond the workers' own time; ssh itself may hang.
constexpr std::chrono::seconds kEndOfHosts{10};

/// Whether the job can do without one of its hosts.
bool may_lose_hosts(const NodesOptions& nodes) { return nodes.elastic() || nodes.spares > 0; }

}  // namespace

asio::awaitable<RunResult> supervise_with_hosts(Job& job, RemoteHosts& hosts, NodeConnections& connections,
                                                asio::awaitable<RunResult> work, JobRecord& record) {
  Timer late(job.io);
  bool never_started = false, over = false;
  std::optional<int> first_code;  // of the first host, which has the coordinator
  hosts.start(job.events, [&](const RemoteHosts::Ended& ended) {
    if (ended.host == 0) first_code = ended.exit_code;
    if (ended.exit_code == 0 || over) return;
    if (may_lose_hosts(job.options.nodes)) return log_warning(ended.reason);
    never_started |= !ended.started;
    // The coordinator may know a better reason.
    if (auto* server = connections.server(); server != nullptr) {
      if (ended.started && server->has_unfit_nodes()) return;  // it ends the job when the others have come
      return server->end(ended.exit_code, ended.reason);
    }
    if (!ended.started || job.options.hosts.own == 0U)
      return job.events.push(OwnFailure{ended.exit_code, ended.reason});
    late.expires_after(kNewsTravel);
    late.async_wait([&job, ended](const boost::system::error_code& error) {
      if (!error) job.events.push(OwnFailure{ended.exit_code, ended.reason});
    });
  });
  RunResult result;
  std::exception_ptr thrown;
  try {
    result = co_await std::move(work);
  } catch (...) {
    thrown = std::current_exception();
  }
  over = true;
  late.cancel();
  using Patience = RemoteHosts::Patience;
  const bool stayed_out =
      !job.unfit.empty() && may_lose_hosts(job.options.nodes) && job.options.hosts.own != 0U;
  const bool goes_on_without_this =
      !thrown && (stayed_out || result.drained) && job.events.end_signals() == 0;
  if (goes_on_without_this)
    co_await hosts.finish(job.events, Patience::kWholeTraining);
  else
    co_await hosts.finish(job.events, never_started || thrown ? Patience::kNone : Patience::kWorkersEnd);
  if (thrown) std::rethrow_exception(thrown);
  if (goes_on_without_this && first_code) {
    result = RunResult{*first_code, std::nullopt};
    if (*first_code == 0 && (stayed_out || std::holds_alternative<StartFailed>(record.outcome)))
      record.outcome = AllSucceeded{};
  }
  co_return result;
}

asio::awaitable<RunResult> wait_for_hosts(const Options& options, JobEvents& events, const SignalFd& signals,
                                          Console& console, RemoteHosts& hosts, JobRecord& record) {
  std::size_t running = options.hosts.all.size();
  int first_code = 0, other_code = 0;
  bool first_started = false;
  std::optional<int> failure;
  std::optional<JobEvents::Clock::time_point> until;
  hosts.start(events, [&](const RemoteHosts::Ended& ended) {
    --running;
    if (ended.host == 0) first_code = ended.exit_code, first_started = ended.started;
    if (ended.host != 0 && ended.exit_code != 0) other_code = ended.exit_code;
    // Then the job is over, and an ssh that hangs is not waited for; or this host stayed out of it.
    if (may_lose_hosts(options.nodes) && ended.started && !hosts.runs_anywhere() && !until)
      until =
          JobEvents::Clock::now() + (ended.exit_code == LaunchError::kOwnFailure ? options.nodes.join_timeout
                                                                                 : std::chrono::seconds(0));
    if (ended.exit_code != 0) {
      const bool expected = ended.started && ended.exit_code != LaunchError::kOwnFailure;  // it has said why
      if (!expected) (may_lose_hosts(options.nodes) ? log_warning : log_error)(ended.reason);
      if (!may_lose_hosts(options.nodes)) {
        if (!failure) failure = ended.exit_code, record.message = ended.reason;
        const auto now = JobEvents::Clock::now();
        if (!until) until = ended.started ? now + kNewsTravel : now;
      }
    }
    events.push(PeerEvent{});
  });
  std::optional<int> signal;
  while (running > 0 && events.end_signals() < 3) {
    const JobEvent event = co_await events.next(until);
    throw_if_failed(event);
    if (std::holds_alternative<DeadlinePassed>(event)) {
      if (failure || signal || !hosts.runs_anywhere()) break;
      until.reset();  // another host has started since
    }
    const auto* received = std::get_if<SignalReceived>(&event);
    if (received == nullptr) continue;
    if (received->signal == SIGTSTP) stop_by_terminal();
    if (!signals.ends_job(received->signal) || signal) continue;
    signal = received->signal;
    until = JobEvents::Clock::now() + options.shutdown_timeout + kEndOfHosts;
    log_warning(
        "received " + signal_name(*signal) +
        ": passed it on to all hosts; a second signal kills their workers, a third one ends the wait");
  }
  co_await hosts.finish(events, RemoteHosts::Patience::kNone);
  while (events.end_signals() < 2)
    if (co_await console.drain(LoopClock::now() + std::chrono::milliseconds(100))) break;
  if (signal) {
    record.outcome = SignalReceived{*signal};
    co_return RunResult::by_signal(*signal);
  }
  const bool first_counts = first_started || first_code != 0;  // else it was given up
  co_return RunResult{failure.value_or(first_counts ? first_code : other_code), std::nullopt};
}

}  // namespace ddprun::launcher
