#include "launcher/supervisor.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <system_error>

#include "common/errors.h"
#include "common/files.h"
#include "common/logging.h"
#include "common/worker_env.h"
#include "launcher/failure_report.h"
#include "launcher/launch_error.h"
#include "launcher/launch_plan.h"
#include "launcher/program.h"
#include "launcher/reserved_port.h"
#include "launcher/worker_group.h"

namespace ddprun {
namespace asio = boost::asio;
namespace {

/// A random UUID (version 4).
std::string random_run_id() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes))
    throw std::system_error(errno, std::generic_category(), "getrandom");
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
  std::string id;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) id += '-';
    id += "0123456789abcdef"[bytes[i] >> 4];
    id += "0123456789abcdef"[bytes[i] & 15];
  }
  return id;
}

/// If ddprun was started without stdin, stdout or stderr, our own descriptors would take their numbers and be
/// written to by the workers.
void open_missing_standard_streams() {
  int fd = 0;
  do fd = ::open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

std::string host_name() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

bool means_not_found(int error) {
  return error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG || error == ELOOP;
}

LaunchError start_error(const std::string& program, int rank, const StartFailure& failure) {
  const std::string reason = std::strerror(failure.error);
  const bool about_the_program =
      failure.step == "execve" && failure.error != EAGAIN && failure.error != ENOMEM;
  if (!about_the_program)
    return {LaunchError::kOwnFailure,
            "cannot start rank " + std::to_string(rank) + ": " + failure.step + ": " + reason};
  std::string hint;
  if (failure.error == ENOENT) hint = " (is the interpreter that it names in its first line there?)";
  if (failure.error == ENOEXEC) hint = " (does its first line name an interpreter, as in #!/bin/sh?)";
  return {means_not_found(failure.error) ? LaunchError::kNotFound : LaunchError::kNotExecutable,
          "cannot run " + program + ": " + reason + hint};
}

FailedWorker failed_worker(const WorkerSpec& spec, const Worker& worker) {
  return {spec.rank,
          spec.local_rank,
          worker.process.pid,
          *worker.status,
          std::chrono::system_clock::now(),
          read_error_file(spec.error_file),
          worker.asked_to_end};
}

FailureReport make_report(const std::vector<WorkerSpec>& specs, const WorkerGroup& group, std::size_t first) {
  FailureReport report;
  report.program = specs[first].argv[0];
  report.host = host_name();
  report.root_cause = failed_worker(specs[first], group.workers()[first]);
  for (std::size_t i = 0; i < group.workers().size(); ++i) {
    const Worker& worker = group.workers()[i];
    if (i == first || !worker.status) continue;
    if (worker.asked_to_end && ended_as_told(*worker.status, group.ending_signals())) {
      report.ended_by_us.push_back(specs[i].rank);
    } else if (!worker.status->success()) {
      report.others.push_back(failed_worker(specs[i], worker));
    }
  }
  return report;
}

/// What ended the job becomes ddprun's own end. Reports a failure.
RunResult conclude(const GroupEvent& event, const std::string& program, const std::vector<WorkerSpec>& specs,
                   const WorkerGroup& group) {
  if (const auto* failed = std::get_if<StartFailed>(&event))
    throw start_error(program, specs[failed->index].rank, failed->failure);
  if (const auto* received = std::get_if<SignalReceived>(&event))
    return {128 + received->signal, received->signal};
  if (const auto* failed = std::get_if<WorkerFailed>(&event)) {
    const std::string report = describe(make_report(specs, group, failed->index));
    std::fwrite(report.data(), 1, report.size(), stderr);
    return {to_exit_code(*group.workers()[failed->index].status), std::nullopt};
  }
  return {};
}

asio::awaitable<RunResult> supervise(WorkerGroup& group, ReservedPort& port, const Options& options,
                                     const std::string& program, const std::vector<WorkerSpec>& specs) {
  const auto start_failed = group.start(program, specs);
  port.close_store_fd();  // rank 0 has it now, and only rank 0 may
  GroupEvent event;
  if (start_failed) {
    event = *start_failed;
  } else {
    event = co_await group.wait(std::nullopt, nullptr);
  }
  const auto* received = std::get_if<SignalReceived>(&event);
  if (received != nullptr) log_warning("received " + signal_name(received->signal) + ": ending the job");
  const auto left = co_await group.stop(received ? received->signal : SIGTERM, options.shutdown_timeout);
  const RunResult result = conclude(event, program, specs, group);
  if (left.empty()) co_return result;
  std::string pids;
  for (const pid_t pid : left) pids += " " + std::to_string(pid);
  throw LaunchError(LaunchError::kOwnFailure, "processes that SIGKILL did not end:" + pids);
}

/// Runs the loop until the coroutine has returned or thrown.
RunResult run_loop(asio::io_context& io, asio::awaitable<RunResult> job) {
  RunResult result;
  std::exception_ptr thrown;
  asio::co_spawn(io, std::move(job), [&](std::exception_ptr error, RunResult value) {
    thrown = error;
    result = value;
    io.stop();
  });
  io.run();
  if (thrown) std::rethrow_exception(thrown);
  return result;
}

}  // namespace

RunResult run_job(const Options& options, const std::vector<std::string>& environment) {
  const auto kind = options.nproc_per_node.kind;
  const Topology topology =
      detect_topology(kind == WorkersWanted::Kind::kGpu || kind == WorkersWanted::Kind::kAuto);
  const int workers = worker_count(options.nproc_per_node, topology);
  const Program program = find_program(options, process_env);

  open_missing_standard_streams();
  const SignalFd signals(options.ending_signals,
                         options.forwarded_signals);  // before there is anything to leave behind
  const TempDir folder("ddprun");
  const std::string job_id = random_run_id();
  Guard guard(folder.path(), job_id);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ReservedPort port(options.master_port);
  const Round round = static_round(workers, port.number(), options.run_id.empty() ? job_id : options.run_id);
  LaunchContext context;
  context.program = program.argv;
  context.environment = environment;
  context.job_id = job_id;
  context.folder = std::filesystem::absolute(folder.path());
  context.store_fd = port.store_fd();
  for (int i = 0; i < workers; ++i) std::filesystem::create_directory(context.folder / std::to_string(i));
  const auto specs = plan_workers(context, round, topology);

  asio::io_context io(1);
  JobEvents events(io, signals);
  WorkerGroup group(events, signals, guard);
  return run_loop(io, supervise(group, port, options, program.path, specs));
}

}  // namespace ddprun
