#include "launcher/job/attempt.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <system_error>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/invariant.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include "launcher/events/launch_error.h"
#include "launcher/events/threads.h"
#include "launcher/host/processes.h"
#include "launcher/job/job_monitor.h"
#include "launcher/outcome/stack_dump.h"
#include "launcher/rendezvous/listen.h"
#include "launcher/status/status_board.h"
#include "launcher/workers/job_processes.h"
#include "launcher/workers/worker_pipes.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

using Clock = JobEvents::Clock;

bool recovers(const Job& job) { return job.options.recover == Recover::kRank; }

void note_straggler(Job& job, Attempt& attempt, const Straggler& straggler) {
  log_warning(describe(straggler));
  EventRecord event{EventRecord::Kind::kStraggler, Clock::now(), attempt.round.number};
  event.rank = straggler.rank;
  event.factor = straggler.factor;
  event.since_step = straggler.since_step;
  event.cause = straggler.by_data ? "data" : "compute";
  job.log.add(event);
  constexpr std::size_t kMostKept = 100;
  if (attempt.stragglers.size() < kMostKept) attempt.stragglers.push_back(straggler);
}

/// Everything that belongs to the running workers.
struct Parts {
  Heartbeats beats;
  StatusBoard statuses;
  RoundChannels rounds;
  Standbys standbys;
  AttemptOutput logs;
  WorkerGroup group;
  std::optional<HeldPort> port;                          ///< held until the attempt ends
  Timer look;                                            ///< at what the workers have announced
  std::shared_ptr<int> token = std::make_shared<int>();  ///< for the timer's handler: the parts still exist

  Parts(Job& job, Attempt& attempt, std::optional<HeldPort> held)
      : beats(job.io),
        statuses(
            job.io, attempt.round.first_rank, [&] { return job.monitor->other_times(); },
            [&](const Straggler& straggler) { note_straggler(job, attempt, straggler); }),
        standbys(job.io, job.guard),
        logs(job.io, job.outputs.console(), job.outputs.log_folder()),
        group(job.events, job.signals, job.guard, job.log, attempt.round.number, job.options.signal_group,
              job.preload),
        port(std::move(held)),
        look(job.io) {}

  int store_fd() const { return port ? port->socket.get() : -1; }
};

std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

std::vector<WorkerSpec> plan_attempt(const Job& job, const Round& round, int store_fd,
                                     const WorkerEnds& ends = {}) {
  return plan_workers(job, round, job.outputs.error_files(round.number, round.workers), store_fd, ends);
}

/// Calls open(index) for each worker. throws LaunchError naming the rank
template <typename Open>
void open_for_each(const Round& round, Open open) {
  for (int i = 0; i < round.workers; ++i) try {
      open(static_cast<std::size_t>(i));
    } catch (const std::system_error& error) {
      throw LaunchError(LaunchError::kOwnFailure,
                        "cannot start rank " + std::to_string(round.first_rank + i) + ": " + error.what() +
                            (error.code().value() == EMFILE ? " (ulimit -n)" : ""));
    }
}

/// So that nothing runs if not all can. throws LaunchError
///
/// opened  of each worker's descriptors, those that are closed once it runs
/// more    that each worker takes until it runs
void check_descriptors(const std::vector<WorkerOutputPlan>& plans, std::size_t opened, std::size_t more) {
  constexpr std::size_t kSpare = 4;  // while one of them starts
  rlimit limit{};
  std::size_t needed = kSpare;
  for (const WorkerOutputPlan& plan : plans) needed += 1 + more + descriptors_for(plan);  // 1: its pidfd
  // Counting the open ones takes time. They would have to be as many again, and then a worker cannot start.
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || needed <= limit.rlim_cur / 2) return;
  needed += numbers_in("/proc/self/fd").size();
  needed -= std::min(needed, opened * plans.size());
  if (needed <= limit.rlim_cur) return;
  throw LaunchError(LaunchError::kOwnFailure, "cannot start " + std::to_string(plans.size()) +
                                                  " workers: that takes " + std::to_string(needed) +
                                                  " descriptors, and only " + std::to_string(limit.rlim_cur) +
                                                  " are allowed (ulimit -n)");
}

/// wanted  the workers to open them for, -1 for the others; empty: all
WorkerEnds open_ends(Parts& parts, const Job& job, const Round& round, const std::vector<bool>& wanted) {
  WorkerEnds ends;
  open_for_each(round, [&](std::size_t i) {
    const bool open = wanted.empty() || wanted[i];
    if (job.options.hang_timeout) ends.heartbeats.push_back(open ? parts.beats.open(i) : UniqueFd());
    ends.statuses.push_back(open ? parts.statuses.open(i) : UniqueFd());
    if (recovers(job)) ends.rounds.push_back(open ? parts.rounds.open(i) : UniqueFd());
  });
  return ends;
}

std::vector<SignsOfLife> signs_of_life(const WorkerGroup& group, const AttemptOutput& logs,
                                       const Heartbeats& beats) {
  std::vector<SignsOfLife> signs;
  for (std::size_t i = 0; i < group.workers().size(); ++i)
    signs.push_back({!group.workers()[i].status, logs.last_output(i), beats.last_beat(i)});
  return signs;
}

/// Writes the stacks' files aside: a disk that stalls must not hold up the end of the job.
asio::awaitable<void> write_files(std::vector<StackResult>& results, const std::filesystem::path& folder,
                                  std::chrono::seconds patience, const std::function<bool()>& give_up) {
  const auto files = std::make_shared<std::vector<StackResult>>(results);
  const std::function<void()> write = [files, folder] {
    for (StackResult& result : *files) write_stacks(result, folder);
  };
  const AsideEnd end = co_await run_aside(write, Clock::now() + patience, &give_up);
  if (end == AsideEnd::kDone) {
    results = std::move(*files);
    co_return;
  }
  for (StackResult& result : results) {
    result.tools.clear();
    result.problem = end == AsideEnd::kLate ? folder.string() + ": the disk does not answer"
                                            : "a signal ends the job first";
  }
}

/// Dumps every rank's stacks before a stuck job is stopped. returns the signal to stop it with
asio::awaitable<int> dump_stacks(Job& job, WorkerGroup& group, Attempt& attempt) {
  std::vector<StackTarget> targets;
  for (std::size_t i = 0; i < group.workers().size(); ++i)
    if (!group.workers()[i].status)
      targets.push_back({attempt.specs[i].rank, group.workers()[i].process.pid});
  const auto give_up = gives_up(job);
  const auto folder = co_await job.outputs.lasting_folder(attempt.round.number, give_up);
  StackTools tools;
  if (!folder.empty()) tools = co_await find_stack_tools(&give_up);
  StackDump dump(targets, std::move(tools));
  while (!dump.advance() && group.user_signals().empty()) co_await group.wait_for_event(dump.next());
  auto results = dump.finish();
  const std::chrono::seconds patience(group.user_signals().empty() ? 10 : 1);
  co_await write_files(results, folder, patience, give_up);
  for (const StackResult& result : results) {
    log_warning(describe(result));
    if (!result.file.empty()) attempt.stacks[result.rank] = result.file;
  }
  co_return signal_after(results);
}

/// Logs why the attempt is stopped, unless a worker ended it. returns the signal to stop it with
asio::awaitable<int> prepare_to_stop(Job& job, WorkerGroup& group, Attempt& attempt) {
  if (const auto* received = std::get_if<SignalReceived>(&attempt.outcome)) {
    log_warning(job.monitor->who_ends(*received) +
                (job.monitor->ends_alone()
                     ? ": ending this node's workers (a second signal kills them at once)"
                     : ": ending the job (a second signal kills it at once)"));
    co_return received->signal;
  }
  if (const auto* ended = std::get_if<EndedByPeers>(&attempt.outcome)) {
    if (!job.options.hosts.is_silent())
      log_warning(printable(ended->reason) + ": ending this node's workers");
    if (ended->dump_stacks) co_return co_await dump_stacks(job, group, attempt);
    if (ended->replaced)
      co_return SIGKILL;  // SIGTERM may have all ranks save and end, on the other nodes, too
    co_return ended->user_signal.value_or(SIGTERM);
  }
  if (std::holds_alternative<TimedOut>(attempt.outcome)) {
    log_error("the job did not end within " + in_seconds(*job.options.timeout) + " (--timeout): ending it");
    job.log.add({EventRecord::Kind::kTimeout, Clock::now(), attempt.round.number});
    co_return co_await dump_stacks(job, group, attempt);
  }
  if (const auto* hung = std::get_if<Hung>(&attempt.outcome)) {
    std::vector<int> ranks;
    for (const std::size_t index : hung->workers) {
      EventRecord record{EventRecord::Kind::kHang, Clock::now(), attempt.round.number};
      record.rank = attempt.specs[index].rank;
      record.local_rank = attempt.specs[index].local_rank;
      record.pid = group.workers()[index].process.pid;
      job.log.add(record);
      ranks.push_back(attempt.specs[index].rank);
    }
    log_error("no sign of life from rank " + listed(ranks) + " for " + in_seconds(*job.options.hang_timeout) +
              " (--hang-timeout): ending all workers");
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
/// may one outside the job, such as a terminal multiplexer's server that was given a worker's stdout.
asio::awaitable<void> drain(Job& job, WorkerGroup& group, AttemptOutput& logs, bool all_gone) {
  constexpr std::chrono::milliseconds kLook{100};
  while (!co_await logs.wait_for_ends(Clock::now() + kLook)) {
    if (!all_gone || !logs.unread() || group.loop_failed()) break;
    if (co_await wants_to_hurry(job, group)) break;
  }
  logs.finish();
  while (!co_await logs.drain_files(Clock::now() + kLook))
    if (co_await wants_to_hurry(job, group)) break;
  while (!co_await job.outputs.console().drain(Clock::now() + kLook))
    if (co_await wants_to_hurry(job, group)) break;
}

/// Whether the job can continue if only workers that failed are restarted.
bool others_can_go_on(Parts& parts, Attempt& attempt) {
  const Round& round = attempt.round;
  const auto& workers = parts.group.workers();
  if (workers.size() < static_cast<std::size_t>(round.workers)) return false;  // a signal arrived first
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const auto abilities = parts.rounds.abilities(i);
    // One that starts in the place of another node's worker reads of the round once it can.
    if (!abilities && round.in_place && !workers[i].status) continue;
    attempt.unannounced = !abilities;
    if (!abilities || !abilities->recovers || workers[i].succeeded()) return false;
  }
  return round.world_size > round.workers ||
         std::ranges::any_of(workers, [](const Worker& worker) { return !worker.status; });
}

/// Waits for the program's disk: see look_at_program(). False if something else ends the attempt meanwhile,
/// which wait() handles, such as the other nodes, which may go on without this one.
///
/// joins  the first worker starts here in a round in place: it may join a later one that has begun meanwhile
asio::awaitable<bool> program_answers(Job& job, Supervisor& supervisor, bool joins) {
  constexpr std::chrono::seconds kAskAgain{1};
  const std::function<void()> look = [path = job.program.path] { look_at_program(path); };
  const std::string problem = job.program.path + ": the disk does not answer";
  const auto signalled = gives_up(job);
  auto asks_at = Clock::now() + job.options.nodes.node_timeout;
  bool warned = false;
  const std::function<bool()> give_up = [&] {
    const bool begins = supervisor.begins_round();  // also has it answer for rank 0
    if (signalled() || supervisor.end_reason() || (begins && !joins)) return true;
    if (Clock::now() < asks_at) return false;
    if (!std::exchange(warned, true)) log_warning(problem + ": waiting for it");
    supervisor.ask_to_leave(problem);
    asks_at = Clock::now() + kAskAgain;
    return false;
  };
  const AsideEnd end = co_await run_aside(look, job.deadline, &give_up);
  co_return end == AsideEnd::kDone;
}

struct TimerPipe {
  UniqueFd pipe;
  std::string problem;  // why there is none, unless that was given up
};

asio::awaitable<TimerPipe> make_timer_pipe_at(const std::filesystem::path& path,
                                              const std::function<bool()>& give_up) {
  constexpr std::chrono::seconds kPatience{10};
  const auto made = std::make_shared<TimerPipe>();
  const std::function<void()> make = [made, path] {
    try {
      made->pipe = FileTimers::make_pipe(path);
    } catch (const IoError& error) {
      made->problem = error.what();
    }
  };
  const AsideEnd end = co_await run_aside(make, Clock::now() + kPatience, &give_up);
  if (end == AsideEnd::kDone) co_return std::move(*made);
  TimerPipe none;
  if (end == AsideEnd::kLate) none.problem = IoError(path, "the disk does not answer").what();
  co_return none;
}

/// The pipe of file timers. If it cannot be made where it was, it is made in the job's own folder; none if
/// that fails too.
asio::awaitable<UniqueFd> make_timer_pipe(Job& job, const std::function<bool()>& give_up) {
  auto made = co_await make_timer_pipe_at(job.timer_file, give_up);
  const auto own = job.outputs.job_folder() / "timers";
  if (!made.problem.empty() && job.timer_file != own) {
    log_warning(made.problem + ": the file timers' pipe is now " + own.string());
    job.timer_file = own;
    made = co_await make_timer_pipe_at(own, give_up);
  }
  if (!made.problem.empty()) log_warning(made.problem + ": the workers' file timers fail");
  co_return std::move(made.pipe);
}

/// Says that the workers are in the round. Of those that began in place: once all have announced what their
/// program can; if one fails before, a node that is being drained keeps their ranks.
void note_running_once_announced(const Job& job, Supervisor& supervisor, const Attempt& attempt,
                                 Parts& parts) {
  constexpr std::chrono::milliseconds kLook{100};
  bool announced = true;
  for (std::size_t i = 0; recovers(job) && attempt.round.in_place && i < attempt.specs.size(); ++i)
    announced = parts.rounds.announced(i) && announced;
  if (announced) return supervisor.note_running(attempt);
  parts.look.expires_after(kLook);
  parts.look.async_wait([&, alive = std::weak_ptr(parts.token),
                         round = attempt.round.number](const boost::system::error_code& error) {
    if (!error && !alive.expired() && attempt.round.number == round)
      note_running_once_announced(job, supervisor, attempt, parts);
  });
}

/// Restarts only the workers that have ended, in a new round, and announces it to the others. False if one
/// cannot start.
asio::awaitable<bool> begin_round(Job& job, Supervisor& supervisor, Attempt& attempt, Parts& parts,
                                  NextRound next) {
  check_invariant(next.round.number > attempt.round.number, "rounds have ascending numbers");
  const Round& round = attempt.round = next.round;
  attempt.round_start = Clock::now();
  parts.port = std::move(next.port);
  std::vector<bool> lost;
  RoundNotice notice{round.number, round.restart_count, round.master_addr, round.master_port, {}};
  for (std::size_t i = 0; i < attempt.specs.size(); ++i) {
    lost.push_back(parts.group.workers()[i].status.has_value());
    if (lost.back()) notice.lost.push_back(attempt.specs[i].rank);
  }
  if (notice.lost.size() > 1) log_warning("replacing ranks " + listed(notice.lost));
  // First of all: one whose collective has failed soon takes it for an error of its own. Disks and forks may
  // take seconds.
  for (std::size_t i = 0; i < attempt.specs.size(); ++i)
    if (!lost[i]) parts.rounds.tell(i, notice, attempt.specs[i].rank == 0 ? parts.store_fd() : -1);
  const auto give_up = gives_up(job);
  co_await job.outputs.make_folders(round.number, round.workers, give_up);
  const WorkerEnds ends = open_ends(parts, job, round, lost);
  auto specs = plan_attempt(job, round, parts.store_fd(), ends);
  const auto plans = job.outputs.plan(round.number, specs);
  std::vector<WorkerOutputPlan> starting;
  for (std::size_t i = 0; i < plans.size(); ++i)
    if (lost[i]) starting.push_back(plans[i]);
  co_await parts.logs.make_files(starting, give_up);
  if (job.preload != nullptr) co_await job.preload->have(starting.size(), give_up);
  // Forks, and processes that stand by, run the program already, perhaps another worker's (--expand).
  std::size_t running = parts.standbys.ready() + (job.preload != nullptr ? job.preload->forks() : 0);
  if (job.options.expand) running = 0;
  if (starting.size() > running) {
    const bool answers = co_await program_answers(job, supervisor, /*joins=*/false);
    if (!answers) co_return true;
    attempt.round_start = Clock::now();  // nobody was silent meanwhile
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (!lost[i]) continue;
    WorkerOutputs output = parts.logs.open(i, plans[i]);
    LostWorker old{std::exchange(attempt.specs[i], specs[i]), {}, attempt.logs[i]};
    auto replaced = parts.group.replace(i, round.number, job.program.path, std::move(output), parts.standbys,
                                        job.options.shutdown_timeout);
    if (const auto* failed = std::get_if<StartFailed>(&replaced)) {
      attempt.outcome = *failed;
      co_return false;
    }
    attempt.logs[i] = job.outputs.files(plans[i]);
    old.worker = std::move(std::get<Worker>(replaced));
    attempt.lost.push_back(std::move(old));
  }
  if (parts.port) parts.port->socket.reset();  // only rank 0 may have it
  note_running_once_announced(job, supervisor, attempt, parts);
  co_return true;
}

/// Waits until the attempt ends, through any number of rounds in place.
asio::awaitable<void> run_rounds(Job& job, Supervisor& supervisor, Attempt& attempt, Parts& parts,
                                 const FindHung& find_hung) {
  std::optional<AttemptEnd> lost;  // the end that the nodes were asked about
  for (;;) {
    auto end = co_await parts.group.wait(job.deadline, find_hung, supervisor);
    parts.group.record_exits();  // one round replaces all that have failed
    if (end) {
      attempt.outcome = *end;
      // Where the others cannot go on without these, all workers save.
      if (auto* ended = std::get_if<EndedByPeers>(&attempt.outcome); ended != nullptr && ended->replaced)
        ended->replaced = recovers(job) && others_can_go_on(parts, attempt);
      const auto* failed = std::get_if<WorkerFailed>(&attempt.outcome);
      if (failed != nullptr && recovers(job)) co_await read_errors(job, parts.group.workers(), attempt);
      if (failed == nullptr || !recovers(job) || !others_can_go_on(parts, attempt) ||
          !supervisor.replaces(attempt, parts.group.workers())) {
        // Not if another node has taken over: its workers may have failed first, but that ended nothing.
        const auto* ended = std::get_if<EndedByPeers>(&attempt.outcome);
        if (lost && ended != nullptr && !ended->replaced) attempt.outcome = *lost;
        co_return;
      }
      if (supervisor.has_peers()) {
        if (!lost) lost = attempt.outcome;
        continue;
      }
    } else if (!others_can_go_on(parts, attempt)) {
      attempt.outcome = EndedByPeers{supervisor.decline(attempt)};
      co_return;
    }
    const bool begun = co_await begin_round(job, supervisor, attempt, parts, supervisor.next_round(attempt));
    if (!begun) co_return;
    lost.reset();
  }
}

/// --standby: starts them once the first worker has said that its program supports it.
void keep_standbys(Job& job, Parts& parts, const Round& round) {
  if (job.options.standby == 0) return;
  WorkerSpec spec = plan_attempt(job, round, -1)[0];
  // Its failure is not a worker's.
  std::erase_if(spec.env, [](const auto& text) { return text.starts_with("TORCHELASTIC_ERROR_FILE="); });
  // No worker has these ranks. Without any, many programs take themselves for rank 0.
  for (const std::string kind : {"", "LOCAL_", "ROLE_"}) {
    const std::string rank = kind + "RANK=", size = kind + "WORLD_SIZE=";
    const auto begins_with = [](const std::string& name) {
      return [&](const std::string& text) { return text.starts_with(name); };
    };
    *std::ranges::find_if(spec.env, begins_with(rank)) =
        rank + std::ranges::find_if(spec.env, begins_with(size))->substr(size.size());
  }
  spec.cpus.clear();
  parts.standbys.keep(job.options.standby, job.program.path, std::move(spec),
                      [&parts] { return parts.rounds.abilities(0).value_or(Abilities{}).stands_by; });
}

/// Ends what is left of the workers, in the same way whatever ended the attempt.
asio::awaitable<void> end_workers(Job& job, Supervisor& supervisor, Attempt& attempt, Parts& parts) {
  check_invariant(parts.group.workers().size() <= attempt.specs.size(), "each worker was planned");
  parts.standbys.end();
  parts.token.reset();
  parts.look.cancel();
  if (attempt.round.in_place && std::holds_alternative<AllSucceeded>(attempt.outcome))
    supervisor.note_running(attempt);  // before the others hear of their success
  if (job.preload != nullptr) job.preload->drop_forks();
  parts.logs.unblock_workers();
  int signal = SIGTERM;
  try {
    co_await find_first_failure(job, parts.group, attempt);
    supervisor.report_end(attempt);
    signal = co_await prepare_to_stop(job, parts.group, attempt);
    if (signal == SIGABRT) parts.logs.prefix_stacks();
  } catch (const std::exception& error) {  // the workers get their signal all the same
    log_error(error.what());
  }
  attempt.left = co_await parts.group.stop(signal, job.options.shutdown_timeout);
}

/// Keeps what the workers have last reported.
void keep_progress(Attempt& attempt, Parts& parts) {
  parts.statuses.read_now();
  for (std::size_t i = 0; i < parts.group.workers().size(); ++i) {
    const Progress& progress = parts.statuses.progress(i);
    attempt.reached = furthest(attempt.reached, progress.reached());
    if (i > 0 && total(progress.latest().seconds) <= total(attempt.said.seconds)) continue;
    attempt.said = progress.latest();
    attempt.first_step = progress.first_step();
  }
}

}  // namespace

asio::awaitable<Attempt> run_attempt(Job& job, Supervisor& supervisor, Round round,
                                     std::optional<HeldPort> port) {
  Attempt attempt;
  attempt.round = round;
  attempt.start = attempt.round_start = Clock::now();
  const auto give_up = gives_up(job);
  co_await job.outputs.make_folders(round.number, job.workers, give_up);
  Parts parts(job, attempt, std::move(port));
  WorkerGroup& group = parts.group;
  AttemptOutput& logs = parts.logs;
  WorkerEnds ends = open_ends(parts, job, round, {});
  UniqueFd timer_pipe;
  if (!job.timer_file.empty()) timer_pipe = co_await make_timer_pipe(job, give_up);
  attempt.specs = plan_attempt(job, round, parts.store_fd(), ends);
  const auto output_plans = job.outputs.plan(round.number, attempt.specs);
  for (const WorkerOutputPlan& plan : output_plans) {
    attempt.logs.push_back(job.outputs.files(plan));
    attempt.err_plans.push_back(plan.err);
  }

  logs.on_first_output([&](std::size_t index) { group.log_first_output(index); });
  group.on_window_change([&] { logs.update_window_size(); });
  const JobMonitor::Watching watching(*job.monitor, {attempt, group, parts.statuses, logs});
  check_descriptors(output_plans, 1 + (job.options.hang_timeout ? 1 : 0) + (recovers(job) ? 1 : 0),
                    job.preload != nullptr ? 1 : 0);
  co_await logs.make_files(output_plans, give_up);
  if (job.preload != nullptr) co_await job.preload->have(attempt.specs.size(), give_up);
  std::optional<FileTimers> timers;
  if (timer_pipe)
    timers.emplace(job.io, std::move(timer_pipe),
                   [&](const FileTimers::Expired& expired) { end_expired(expired, group, attempt); });
  bool answers = true;  // a ddprun that waits for nobody has just looked
  if (round.number > 0 || supervisor.has_peers()) {
    answers = co_await program_answers(job, supervisor, /*joins=*/round.in_place);
    attempt.round_start = Clock::now();
  }
  try {
    std::optional<StartFailed> start_failed;
    if (answers)
      start_failed = group.start(job.program.path, attempt.specs, [&](std::size_t i) {
        if (i > 0) ends.close(i - 1);  // its worker has inherited them
        return logs.open(i, output_plans[i]);
      });
    if (parts.port) parts.port->socket.reset();  // only rank 0 may have it
    ends = {};
    if (job.options.show_ranks)
      for (std::size_t i = 0; i < group.workers().size(); ++i)
        log_info(rank_line(attempt.specs[i], host_name(), group.workers()[i].process.pid));
    FindHung find_hung;
    if (job.options.hang_timeout)
      find_hung = [&](Clock::time_point now) {
        const auto signs = signs_of_life(group, logs, parts.beats);
        const auto since = std::max(attempt.round_start, group.resumed());
        // After a stop of ddprun alone the workers may have gone on: what they have said since is yet unread.
        const auto until = group.resumed() == now ? attempt.round_start : now;
        const KnownSigns own{latest_sign(signs, attempt.round_start), until};
        return judge_hang(signs, since, *job.options.hang_timeout, now, supervisor.share_signs(own));
      };
    if (start_failed) {
      attempt.outcome = *start_failed;
    } else {
      if (answers) note_running_once_announced(job, supervisor, attempt, parts);
      if (recovers(job)) keep_standbys(job, parts, round);
      co_await run_rounds(job, supervisor, attempt, parts, find_hung);
    }
  } catch (const std::exception& error) {  // the workers still live
    attempt.outcome = StartFailed{exit_code_of(error), error.what()};
  }
  co_await end_workers(job, supervisor, attempt, parts);
  // No more will come, however long their output takes: the other nodes' workers may still hang.
  if (job.options.hang_timeout)
    supervisor.share_signs({latest_sign(signs_of_life(group, logs, parts.beats), attempt.round_start),
                            Clock::time_point::max()});
  keep_progress(attempt, parts);
  co_await drain(job, group, logs, attempt.left.empty());
  attempt.end = Clock::now();
  attempt.ending_signals = group.ending_signals();
  attempt.user_signals = group.user_signals();
  for (std::size_t i = 0; i < group.workers().size(); ++i)
    attempt.last_lines.push_back(logs.last_error_lines(i));
  attempt.workers = group.take_workers();
  co_await read_errors(job, attempt.workers, attempt);
  if (timers) {
    timers.reset();
    const std::function<void()> remove = [path = job.timer_file] { ::unlink(path.c_str()); };
    co_await run_aside(remove, Clock::now() + std::chrono::seconds(1), &give_up);
  }
  job.events.forget_exits();
  co_return attempt;
}

}  // namespace ddprun::launcher
