#include "launcher/job/supervisor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/uuid/uuid_generators.hpp>
#include <boost/uuid/uuid_io.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include "launcher/events/clock.h"
#include "launcher/events/launch_error.h"
#include "launcher/events/threads.h"
#include "launcher/host/gpu_list.h"
#include "launcher/job/attempt.h"
#include "launcher/job/job_monitor.h"
#include "launcher/job/preflight.h"
#include "launcher/job/server.h"
#include "launcher/plan/placement.h"
#include "launcher/remote/remote_hosts.h"
#include "launcher/rendezvous/endpoint.h"
#include "launcher/rendezvous/listen.h"
#include "launcher/workers/guard.h"
#include "launcher/workers/job_processes.h"
#include "launcher/workers/preload.h"
#include "launcher/workers/process.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

// How long ddprun's own last lines wait for a reader.
constexpr std::chrono::seconds kPatienceAtEnd{1};
// How long a disk may take for --result-json.
constexpr std::chrono::seconds kRecordPatience{10};
// And if the user has signalled twice, which a working disk must not lose it by.
constexpr std::chrono::seconds kRecordPatienceInHurry{1};
// How long the other nodes' ddpruns, which end at the same time, may take to write theirs.
constexpr std::chrono::milliseconds kOthersWrite{500};

/// If ddprun starts without stdin, stdout or stderr, its own descriptors would get their numbers, and workers
/// would write to them.
void open_missing_standard_streams() {
  int fd = 0;
  do fd = ::open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

/// The pause before a restart. returns the result if the job ends meanwhile
asio::awaitable<std::optional<RunResult>> pause(Job& job, std::chrono::milliseconds delay,
                                                JobRecord& record) {
  const auto begin = JobEvents::Clock::now(), until = begin + delay;
  for (;;) {
    const bool times_out = job.deadline && *job.deadline < until;
    const JobEvent event = co_await job.events.next(times_out ? *job.deadline : until);
    if (std::holds_alternative<DeadlinePassed>(event)) {
      if (!times_out) co_return std::nullopt;
      log_error("the job timed out (--timeout) before it could restart");
      record.outcome = TimedOut{};
      co_return RunResult{LaunchError::kTimeout, std::nullopt};
    }
    throw_if_failed(event);
    const auto* received = std::get_if<SignalReceived>(&event);
    if (received != nullptr && job.signals.ends_job(received->signal)) {
      record.outcome = *received;
      co_return RunResult::by_signal(received->signal);
    }
    if (received != nullptr && received->signal == SIGTSTP) stop_by_terminal();
    if (std::holds_alternative<ChildEnded>(event)) reap_children();
  }
}

/// Of a job on this node alone.
class SingleNode : public Supervisor {
 public:
  SingleNode(Job& job, JobRecord& record) : job_(job), record_(record) {}

  /// Runs attempts until the last one.
  asio::awaitable<RunResult> run() {
    const RestartSettings& restarts = job_.options.restart;
    for (int number = 0;; ++number) {
      const std::string& name = job_.options.nodes.endpoint.host;
      HeldPort port = reserve_port(name.empty() ? loopback_address() : name, job_.options.master_port);
      Round round = static_round(number, job_.workers, port.address, port.port, job_.run_id);
      round.restart_count = number;
      round.max_restarts = restarts.max_restarts;
      std::optional<HeldPort> held = std::move(port);  // named: GCC 12
      const Attempt attempt = co_await run_attempt(job_, *this, round, std::move(held));
      number = attempt.round.number;
      co_await report_attempt(job_, attempt, oom_, record_);
      Decision decision =
          decide(restarts, attempt.outcome, restarts_used_, attempt.end - attempt.round_start);
      if (decision.restart) stalls_.add(number, attempt.reached, describe_end(attempt));
      const bool stalled = decision.restart && stalls_.ends_job(restarts);
      if (stalled) decision.restart = false, decision.reason = stalls_.reason();
      if (const auto* received = std::get_if<SignalReceived>(&attempt.outcome))
        co_return RunResult::by_signal(received->signal);
      if (!decision.restart || !attempt.user_signals.empty()) {
        if (restarts.max_restarts > 0 && decision.exit_code != 0)
          log_warning("not restarted: " + (decision.restart ? "a signal ends the job" : decision.reason));
        if (stalled)
          for (const std::string& line : stalls_.report()) log_warning(line);
        co_return RunResult{decision.exit_code, std::nullopt};
      }
      log_warning("restarting all workers" +
                  (attempt.unannounced ? " (" + decision.reason +
                                             "): the program has not announced support for --recover=rank"
                                       : ": " + decision.reason));
      EventRecord event{EventRecord::Kind::kRestart, JobEvents::Clock::now(), number};
      event.delay = decision.delay;
      use_restart(decision, event);
      if (const auto end = co_await pause(job_, decision.delay, record_)) co_return *end;
    }
  }

  /// If the failed worker has a restart left, uses it. It begins without delay.
  bool replaces(const Attempt& attempt, const std::vector<Worker>& workers) override {
    const auto now = JobEvents::Clock::now();
    const Decision decision =
        decide(job_.options.restart, attempt.outcome, restarts_used_, now - attempt.round_start);
    if (!decision.restart) return false;
    log_warning(describe_loss(attempt, workers, oom_) + "; replacing only this rank: restart " +
                std::to_string(decision.restarts_used) + " of " +
                std::to_string(job_.options.restart.max_restarts));
    EventRecord event{EventRecord::Kind::kRestart, now, attempt.round.number};
    event.rank = attempt.specs[std::get<WorkerFailed>(attempt.outcome).index].rank;
    use_restart(decision, event);
    return true;
  }

  /// Rank 0 may still listen on the port of the last one.
  NextRound next_round(const Attempt& attempt) override {
    Round round = attempt.round;
    ++round.number, ++round.restart_count;
    HeldPort port = reserve_port(round.master_addr, std::nullopt);
    round.master_port = port.port;
    return {round, std::move(port)};
  }

 private:
  void use_restart(const Decision& decision, const EventRecord& event) {
    restarts_used_ = decision.restarts_used;
    record_.restarts = event.attempt + 1;
    job_.log.add(event);
    oom_.restart();
  }

  Job& job_;
  JobRecord& record_;
  OomWatch oom_;
  StallWatch stalls_;
  int restarts_used_ = 0;
};

JobRecord begin_record(const Options& options, const JobClock& clock, const std::string& run_id) {
  JobRecord record;
  record.version = DDPRUN_VERSION;
  record.run_id = run_id;
  record.program = options.program;
  record.max_restarts = options.restart.max_restarts;
  record.start = clock.date(clock.start());
  return record;
}

/// Takes the signals that end the job and have come since its loop has ended. returns how many
int take_signals(const std::vector<int>& ending) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : ending) sigaddset(&set, signal);
  const timespec at_once{};
  int count = 0;
  while (::sigtimedwait(&set, nullptr, &at_once) > 0) ++count;
  return count;
}

/// Waits for this long, or until one of these signals comes.
void linger(std::chrono::nanoseconds time, const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  const timespec timeout{0, time.count()};
  ::sigtimedwait(&set, nullptr, &timeout);
}

/// --result-json, without waiting for a stalled disk for ever: after a second signal, only for a moment.
///
/// signals  that asked for the job's end have come before
asio::awaitable<void> write_record(std::filesystem::path path, const JobRecord& record, int signals,
                                   const std::vector<int>& ending_signals) {
  const auto copy = std::make_shared<const JobRecord>(record);
  const std::function<void()> write = [copy, path] { write_result_json(path, *copy); };  // named: GCC 12
  const auto begin = LoopClock::now();
  const std::function<bool()> give_up = [&] {
    signals += take_signals(ending_signals);
    return signals > 1 && LoopClock::now() >= begin + kRecordPatienceInHurry;
  };
  try {
    const AsideEnd end = co_await run_aside(write, begin + kRecordPatience, &give_up);
    if (end == AsideEnd::kDone) co_return;
    const std::string why = end == AsideEnd::kLate ? "the disk does not answer"
                                                   : "gave up waiting for the disk after a second signal";
    log_warning("--result-json: " + std::string(IoError(path, why).what()));
  } catch (const std::exception& error) {
    log_warning(std::string("--result-json: ") + error.what());
  }
}

/// --dry-run. Does not reserve a port: 0 means a free one.
void show_plan(Job& job) {
  const Round round = shown_round(job.options, job.workers, job.run_id);
  const auto specs = plan_workers(job, round, job.outputs.error_files(0, round.workers));
  const auto text = dry_run_text(job.program.path, specs, job.outputs.plan(0, specs), job.environment) +
                    "\n" + cpu_table(job.topology, job.placement, round);
  write_stdout(text);
}

void warn_about_gpus(const Topology& topology) {
  if (!topology.gpu_problem.empty()) log_warning("NVIDIA's driver: " + topology.gpu_problem);
  for (const std::string& problem : gpu_problems(topology.host_gpus, topology.visible)) log_warning(problem);
}

void warn_about_local_ranks(const OutputOptions& output, int workers) {
  const auto warn = [&](const std::string& flag, const std::set<int>& ranks) {
    std::vector<std::string> missing;
    for (auto rank = ranks.lower_bound(workers); rank != ranks.end(); ++rank)
      missing.push_back(std::to_string(*rank));
    if (!missing.empty())
      log_warning(flag + ": no worker here has local rank " + one_of(missing) +
                  "; local ranks go from 0 to " + std::to_string(workers - 1));
  };
  warn("--local-ranks-filter", output.shown.value_or(std::set<int>()));
  for (const auto& [flag, selection] :
       {std::pair("--redirects", &output.redirects), {"--tee", &output.tee}}) {
    std::set<int> ranks;
    for (const auto& [rank, streams] : selection->by_rank) ranks.insert(rank);
    warn(flag, ranks);
  }
}

void log_threads(const std::vector<std::string>& environment, const Topology& topology, int workers) {
  if (const auto threads = threads_per_worker(environment, topology, workers))
    log_info("OMP_NUM_THREADS=" + std::to_string(*threads) + " for each worker, its share of " +
             std::to_string(topology.cpus) + " CPUs");
}

/// --preload: what workers are forked from, if that is wanted.
void start_preload(Job& job, const std::filesystem::path& temp, std::optional<Preload>& preload) {
  if (job.options.preload.empty()) return;
  WorkerSpec worker;
  worker.argv = job.program.argv;
  worker.env = common_environment(job, job.workers);
  worker.traceable = may_hang(job.options);
  for (const CpuList& cpus : job.placement.cpus)
    worker.cpus.insert(worker.cpus.end(), cpus.begin(), cpus.end());
  preload.emplace(job.io, job.guard, job.job_id, job.options.preload, job.program.path, std::move(worker),
                  temp / "preload");
  job.preload = &*preload;
}

/// The job begins once the modules are imported. A node that stays out of it needs none.
asio::awaitable<RunResult> once_preloaded(Job& job, asio::awaitable<RunResult> work) {
  const auto give_up = gives_up(job);
  if (job.unfit.empty()) co_await job.preload->imported(job.deadline, job.options.hang_timeout, give_up);
  co_return co_await std::move(work);
}

/// Removes what jobs left that were killed, aside from the loop; not at once, where it would delay the
/// workers.
asio::awaitable<void> tidy_up() try {
  Timer timer(co_await asio::this_coro::executor, std::chrono::seconds(1));
  co_await timer.async_wait(asio::use_awaitable);
  const std::function<void()> work = [] {
    remove_leftovers(temp_folder());
    remove_dead_sockets();
  };
  co_await run_aside(work);
} catch (const std::exception& error) {
  log_warning(error.what());
}

/// Ends with the job, once all that workers wrote and the last report are written: a second signal ends the
/// wait.
asio::awaitable<RunResult> with_all_output(Job& job, asio::awaitable<RunResult> work) {
  constexpr std::chrono::milliseconds kLook{100};
  RunResult result;
  std::exception_ptr thrown;
  try {
    result = co_await std::move(work);
  } catch (...) {
    thrown = std::current_exception();
  }
  while (job.events.end_signals() < 2)
    if (co_await job.outputs.console().drain(LoopClock::now() + kLook)) break;
  if (thrown) std::rethrow_exception(thrown);
  co_return result;
}

/// Runs the loop until the coroutine has returned or thrown. It learns of what its handlers throw as an
/// event, so that workers are ended in order.
RunResult run_loop(asio::io_context& io, JobEvents& events, asio::awaitable<RunResult> job) {
  RunResult result;
  std::exception_ptr thrown;
  asio::co_spawn(io, std::move(job), [&](std::exception_ptr error, RunResult value) {
    thrown = error;
    result = value;
    io.stop();
  });
  while (!io.stopped()) try {
      io.run();
    } catch (const std::exception& error) {
      events.push(OwnFailure{exit_code_of(error), error.what()});
    }
  if (thrown) std::rethrow_exception(thrown);
  result.end_signals = events.end_signals();
  return result;
}

/// The pipe for PyTorch's file timers; empty: not wanted.
std::filesystem::path timer_file(const std::filesystem::path& temp_path) {
  if (process_env("TORCHELASTIC_ENABLE_FILE_TIMER") != "1") return {};
  const auto given = process_env("TORCHELASTIC_TIMER_FILE");
  const bool ours = given && !given->empty() && !process_env(kJobIdVariable);  // not an outer job's
  return ours ? std::filesystem::absolute(*given) : temp_path / "timers";
}

/// For a job whose workers are replaced one by one: memory for each of them.
std::vector<UniqueFd> state_memory(const Options& options, int workers) {
  std::vector<UniqueFd> all;
  for (int i = 0; options.recover != Recover::kAll && i < workers; ++i) {
    all.emplace_back(::memfd_create("ddprun-state", MFD_CLOEXEC));
    if (!all.back()) throw std::system_error(errno, std::generic_category(), "memfd_create");
  }
  return all;
}

/// A job of which nothing runs here (--hosts).
RunResult run_elsewhere(asio::io_context& io, Console& console, const Options& options,
                        const std::vector<std::string>& environment, const std::string& job_id,
                        JobRecord& record) {
  if (options.dry_run) {
    write_stdout(RemoteHosts::describe(options, environment));
    return {};
  }
  reserve_low_descriptors();
  raise_descriptor_limit();
  const SignalFd signals(options.ending_signals, options.forwarded_signals);
  Guard guard(temp_folder() / temp_name(job_id), job_id);
  JobEvents events(io, signals);
  RemoteHosts hosts(io, guard, console, options, environment);
  return run_loop(io, events, wait_for_hosts(options, events, signals, console, hosts, record));
}

RunResult run_recorded(asio::io_context& io, Console& console, const Options& options,
                       const std::vector<std::string>& environment, const std::string& job_id,
                       const JobClock& clock, JobRecord& record) {
  if (!options.hosts.all.empty() && !options.hosts.own)
    return run_elsewhere(io, console, options, environment, job_id, record);
  Topology topology = detect_topology(wanted_gpus(options));
  choose_gpus(options, topology);
  warn_about_gpus(topology);
  const int workers = worker_count(options.nproc_per_node, topology);
  const Placement placement = place_workers(options, topology, workers);
  const Program program = find_program(options, process_env);
  reserve_low_descriptors();
  raise_descriptor_limit();
  // Handle signals before anything could be left behind, and start the guard before creating what it removes.
  const SignalFd signals(options.ending_signals, options.forwarded_signals);
  const auto temp_path = temp_folder() / temp_name(job_id);
  Guard guard(temp_path, job_id);
  const TempDir temp = TempDir::at(temp_path);
  const UniqueFd held = hold(temp.path());
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  JobEvents events(io, signals);
  std::optional<Starter> starter;
  if (options.hosts.channel >= 0) starter.emplace(io, options.hosts.channel, options);
  EventsJson log(io, options.events_json.empty() ? std::nullopt : std::optional(options.events_json), clock,
                 options.events_json_source);
  JobOutput outputs(console, options, record.run_id, job_id, temp.path());
  Job job{{.options = options,
           .environment = environment,
           .program = program,
           .topology = topology,
           .placement = placement,
           .job_id = job_id,
           .timer_file = timer_file(temp_path),
           .states = state_memory(options, workers)},
          workers,
          options.timeout ? std::optional(clock.start() + *options.timeout) : std::nullopt,
          record.run_id,
          clock,
          io,
          signals,
          guard,
          events,
          log,
          outputs};
  if (options.dry_run) {
    signals.end_at_once();
    if (options.hosts.starts()) write_stdout(RemoteHosts::describe(options, environment) + "\n");
    show_plan(job);
    return {};
  }
  log_threads(environment, topology, workers);
  warn_about_local_ranks(options.output, workers);
  const auto port = process_env("TORCHELASTIC_HEALTH_CHECK_PORT");
  if (port && !process_env(kJobIdVariable)) answer_health_checks(io, *port);  // the outer job has it
  JobMonitor monitor(job, record);
  job.monitor = &monitor;
  if (options.nodes.spares > 0 && !options.hosts.starts())
    events.handle_instead([&](int signal) {  // with --hosts a signal is meant for all of them
      return (!starter || starter->lost()) && monitor.drains_instead(signal);
    });
  const ControlSocket socket(io, job_name(job_id), monitor);
  if (options.metrics) serve_metrics(io, *options.metrics, options.metrics_token, monitor);
  NodeConnections connections;
  SingleNode single(job, record);
  std::optional<Preload> preload;
  start_preload(job, temp.path(), preload);
  auto work = options.nodes.several() ? supervise_node(job, connections, record) : single.run();
  if (preload) work = once_preloaded(job, std::move(work));
  if (options.preflight.any()) work = after_preflight(job, record, std::move(work));
  std::optional<RemoteHosts> hosts;
  if (options.hosts.starts()) {
    hosts.emplace(io, guard, console, options, environment);
    work = supervise_with_hosts(job, *hosts, connections, std::move(work), record);
  }
  asio::co_spawn(io, tidy_up(), asio::detached);
  const RunResult result = run_loop(io, events, with_all_output(job, std::move(work)));
  preload.reset();
  EventRecord finished{EventRecord::Kind::kFinished, JobEvents::Clock::now()};
  finished.attempt = static_cast<int>(record.attempts.size()) - 1;
  finished.exit_code = result.exit_code;
  log.add(finished);
  return result;
}

}  // namespace

RunResult run_job(const Options& options, const std::vector<std::string>& environment) {
  const JobClock clock;
  open_missing_standard_streams();
  asio::io_context io(1);
  Console console(io);
  log_to([&](std::string line) { console.err()->write_own(std::move(line)); });
  for (const std::string& note : options.notes) log_info(note);
  for (const std::string& unknown : unknown_variables(environment))
    log_warning("unknown variable " + printable(unknown));
  const std::string job_id = boost::uuids::to_string(boost::uuids::random_generator()());
  JobRecord record = begin_record(options, clock, options.run_id.empty() ? job_id : options.run_id);
  std::filesystem::path result_json;  // once it is known that it can be written
  RunResult result;
  try {
    if (!options.result_json.empty() && !options.dry_run)
      check_result_json(options.result_json, options.result_json_source);
    if (!options.dry_run) result_json = options.result_json;
    result = run_recorded(io, console, options, environment, job_id, clock, record);
  } catch (const std::exception& error) {
    record.message = error.what();
    result = {exit_code_of(error), std::nullopt};
    record.outcome = StartFailed{result.exit_code, record.message};
    log_error(record.message);
  }
  record.exit_code = result.exit_code;
  record.ended_by = result.ended_by;
  record.end = clock.date(JobEvents::Clock::now());
  if (!result_json.empty()) {
    asio::io_context aside(1);  // the other one has handlers of what is gone
    asio::co_spawn(aside, write_record(result_json, record, result.end_signals, options.ending_signals),
                   asio::detached);
    aside.run();
  }
  console.finish(kPatienceAtEnd);
  // MPI launchers kill the others as soon as one has ended by a signal.
  if (result.ended_by && options.nodes.several() && result.end_signals < 2)
    linger(kOthersWrite, options.ending_signals);
  log_to({});
  return result;
}

}  // namespace ddprun::launcher
