#include "launcher/job/attempt.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <system_error>

#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include "launcher/events/launch_error.h"
#include "launcher/failure/stack_dump.h"
#include "launcher/job/dry_run.h"
#include "launcher/workers/file_timers.h"
#include "launcher/workers/heartbeat.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

using Clock = JobEvents::Clock;

/// The workers' ends of the heartbeat pipes.
std::vector<UniqueFd> open_heartbeats(Heartbeats& beats, const Job& job) {
  std::vector<UniqueFd> ends;
  for (int i = 0; job.options.hang_timeout && i < job.workers; ++i) ends.push_back(beats.add());
  return ends;
}

/// Opens all outputs before the first start, so that nothing runs if descriptors or files are missing.
std::vector<WorkerOutputs> open_outputs(AttemptOutput& logs, const std::vector<WorkerOutputPlan>& plans,
                                        const std::vector<WorkerSpec>& specs) {
  std::vector<WorkerOutputs> outputs;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    try {
      outputs.push_back(logs.open(i, plans[i]));
    } catch (const std::system_error& error) {
      throw LaunchError(LaunchError::kOwnFailure,
                        "cannot start rank " + std::to_string(specs[i].rank) + ": " + error.what());
    }
  }
  return outputs;
}

std::vector<SignsOfLife> signs_of_life(const WorkerGroup& group, const AttemptOutput& logs,
                                       const Heartbeats& beats) {
  std::vector<SignsOfLife> signs;
  for (std::size_t i = 0; i < group.workers().size(); ++i)
    signs.push_back({!group.workers()[i].status, logs.last_output(i), beats.last_beat(i)});
  return signs;
}

/// Dumps every rank's stacks before a stuck job is stopped. returns the signal to stop it with
asio::awaitable<int> dump_stacks(Job& job, WorkerGroup& group, Attempt& attempt) {
  std::vector<StackTarget> targets;
  for (std::size_t i = 0; i < group.workers().size(); ++i)
    if (!group.workers()[i].status)
      targets.push_back({attempt.specs[i].rank, group.workers()[i].process.pid});
  const auto folder = job.outputs.lasting_folder(attempt.round.number);
  const auto path = process_env("PATH").value_or("/bin:/usr/bin");
  StackDump dump(targets, folder, find_stack_tools(path));
  const auto deadline = Clock::now() + kStackDumpTimeout;
  while (!dump.advance() && co_await group.wait_for_event(deadline)) {
  }
  const auto results = dump.finish();
  for (const StackResult& result : results) {
    log_warning(describe(result));
    if (!result.file.empty()) attempt.stacks[result.rank] = result.file;
  }
  co_return signal_after(results);
}

/// Logs why the attempt is stopped, unless a worker ended it. returns the signal to stop it with
asio::awaitable<int> prepare_to_stop(Job& job, WorkerGroup& group, Attempt& attempt) {
  if (const auto* received = std::get_if<SignalReceived>(&attempt.outcome)) {
    log_warning("received " + signal_name(received->signal) +
                ": ending the job (a second signal kills it at once)");
    co_return received->signal;
  }
  if (const auto* ended = std::get_if<EndedByPeers>(&attempt.outcome))
    log_warning(printable(ended->reason) + ": ending this node's workers");
  if (std::holds_alternative<TimedOut>(attempt.outcome)) {
    log_error("the job did not end within " + in_seconds(*job.options.timeout) + " (--timeout): ending it");
    job.log.add({EventRecord::Kind::kTimeout, Clock::now(), attempt.round.number});
    co_return co_await dump_stacks(job, group, attempt);
  }
  if (const auto* hung = std::get_if<Hung>(&attempt.outcome)) {
    std::string ranks;
    for (const std::size_t index : hung->workers) {
      EventRecord record{EventRecord::Kind::kHang, Clock::now(), attempt.round.number};
      record.rank = attempt.specs[index].rank;
      record.local_rank = attempt.specs[index].local_rank;
      record.pid = group.workers()[index].process.pid;
      job.log.add(record);
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(attempt.specs[index].rank);
    }
    log_error("no sign of life from rank " + ranks + " for " + in_seconds(*job.options.hang_timeout) +
              " (--hang-timeout): ending the job");
    co_return co_await dump_stacks(job, group, attempt);
  }
  co_return SIGTERM;
}

/// Signals a process whose file timer has expired, if it is a worker or in a worker's session.
void end_expired(const FileTimers::Expired& expired, const WorkerGroup& group, const Attempt& attempt) {
  const pid_t session = ::getsid(expired.pid);
  for (std::size_t i = 0; i < group.workers().size(); ++i) {
    if (group.workers()[i].process.pid != session || group.workers()[i].group_gone) continue;
    log_error("rank " + std::to_string(attempt.specs[i].rank) + ": the timer " +
              single_quoted(expired.scope) + " of pid " + std::to_string(expired.pid) + " expired: sending " +
              signal_name(expired.signal));
    ::kill(expired.pid, expired.signal);
    return;
  }
}

/// Handles pending events. True if the user signalled twice.
asio::awaitable<bool> wants_to_hurry(Job& job, WorkerGroup& group) {
  while (job.events.pending()) co_await group.wait_for_event(Clock::now());
  co_return group.user_signals().size() > 1;
}

/// Waits for the rest of the workers' output. A process that cannot be killed may keep a pipe open, and so
/// may one that is not of the job, such as the server of a terminal multiplexer that was given a worker's
/// stdout.
asio::awaitable<void> drain(Job& job, WorkerGroup& group, AttemptOutput& logs, bool all_gone) {
  constexpr std::chrono::milliseconds kLook{100};
  while (!co_await logs.wait_for_ends(Clock::now() + kLook))
    if (!all_gone || !logs.unread() || co_await wants_to_hurry(job, group)) break;
  logs.finish();
  while (!co_await logs.drain_files(Clock::now() + kLook))
    if (co_await wants_to_hurry(job, group)) break;
  while (!co_await job.outputs.console().drain(Clock::now() + kLook))
    if (co_await wants_to_hurry(job, group)) break;
}

}  // namespace

std::vector<WorkerSpec> plan_attempt(const Job& job, const Round& round, int store_fd,
                                     const std::vector<int>& heartbeat_fds) {
  LaunchContext context;
  context.program = job.program.argv;
  context.expand = job.options.expand;
  context.environment = job.environment;
  context.role = job.options.role;
  context.ending_signals = job.options.ending_signals;
  context.job_id = job.job_id;
  context.error_files = job.outputs.error_files(round.number, round.workers);
  context.may_hang = job.options.timeout || job.options.hang_timeout;
  context.store_fd = store_fd;
  context.timer_file = job.timer_file;
  context.heartbeat_fds = heartbeat_fds;
  context.cpus = job.placement.cpus;
  context.visible_gpus = job.placement.visible_gpus;
  return plan_workers(context, round, job.topology);
}

asio::awaitable<Attempt> run_attempt(Job& job, Round round, std::optional<HeldPort> port, Peers peers) {
  Attempt attempt;
  attempt.round = round;
  attempt.start = Clock::now();
  Heartbeats beats(job.io);
  auto heartbeat_ends = open_heartbeats(beats, job);
  job.outputs.make_folders(round.number, job.workers);
  std::vector<int> heartbeat_fds;
  for (const UniqueFd& end : heartbeat_ends) heartbeat_fds.push_back(end.get());
  attempt.specs = plan_attempt(job, round, port ? port->socket.get() : -1, heartbeat_fds);
  const auto output_plans = job.outputs.plan(round.number, attempt.specs);
  for (const WorkerOutputPlan& plan : output_plans) attempt.logs.push_back(job.outputs.files(plan));

  AttemptOutput logs(job.io, job.outputs.console(), job.outputs.log_folder());
  WorkerGroup group(job.events, job.signals, job.guard, job.log, round.number);
  logs.on_first_output([&](std::size_t index) { group.log_first_output(index); });
  group.on_window_change([&] { logs.update_window_size(); });
  std::optional<FileTimers> timers;
  if (!job.timer_file.empty())
    timers.emplace(job.io, job.timer_file,
                   [&](const FileTimers::Expired& expired) { end_expired(expired, group, attempt); });
  const auto start_failed =
      group.start(job.program.path, attempt.specs, open_outputs(logs, output_plans, attempt.specs));
  if (port) port->socket.reset();  // only rank 0 may have it
  heartbeat_ends.clear();
  if (job.options.show_ranks)
    for (std::size_t i = 0; i < group.workers().size(); ++i)
      log_info(rank_line(attempt.specs[i], host_name(), group.workers()[i].process.pid));
  if (start_failed) {
    attempt.outcome = *start_failed;
  } else {
    FindHung find_hung;
    if (job.options.hang_timeout)
      find_hung = [&](Clock::time_point now) {
        return judge_hang(signs_of_life(group, logs, beats), std::max(attempt.start, group.resumed()),
                          *job.options.hang_timeout, now);
      };
    attempt.outcome = co_await group.wait(job.deadline, find_hung, peers.end_reason);
  }
  if (peers.report_end) peers.report_end(attempt);
  const int signal = co_await prepare_to_stop(job, group, attempt);
  attempt.left = co_await group.stop(signal, job.options.shutdown_timeout);
  co_await drain(job, group, logs, attempt.left.empty());
  attempt.end = Clock::now();
  attempt.ending_signals = group.ending_signals();
  attempt.user_signals = group.user_signals();
  for (std::size_t i = 0; i < group.workers().size(); ++i)
    attempt.last_lines.push_back(logs.last_error_lines(i));
  attempt.workers = group.take_workers();
  job.events.forget_exits();
  co_return attempt;
}

}  // namespace ddprun::launcher
