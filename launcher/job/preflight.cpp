#include "launcher/job/preflight.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include <ddprun/common/error_file.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include "launcher/events/clock.h"
#include "launcher/events/launch_error.h"
#include "launcher/host/gpu_list.h"
#include "launcher/job/job_monitor.h"
#include "launcher/output/line_format.h"
#include "launcher/output/output_stream.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/workers/worker_group.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

namespace fs = std::filesystem;
using Say = std::function<void(const std::string&)>;

// -- the checks, in their own process --

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
// A container's /dev/shm often has 64 MiB, which the workers of a DataLoader or NCCL soon fill.
constexpr std::uint64_t kLeastFree = 256 * kMiB;
constexpr int kWrittenMiB = 16;

/// Of the Xid errors those after which a GPU does not work until it is reset or replaced; a program's mistake
/// causes most of the others.
const std::set<int> kFatalXids{48, 64, 74, 79, 95, 119, 120, 140};

std::string error_text() { return std::strerror(errno); }

/// Whether files can be written in the folder. The file has no name by then: nothing can be left.
void check_folder(const fs::path& folder, const Say& say) {
  const std::string in = " in " + folder.string();
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0)
    return say("cannot look at " + folder.string() + ": " + error_text());
  if (const auto free = std::uint64_t{info.f_bavail} * info.f_frsize; free < kLeastFree)
    return say("only " + std::to_string(free / kMiB) + " MiB are free" + in + ": expected at least " +
               std::to_string(kLeastFree / kMiB));
  std::string path = (folder / "ddprun-preflight-XXXXXX").string();
  const UniqueFd file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file) return say("cannot create a file" + in + ": " + error_text());
  ::unlink(path.c_str());
  const std::string bytes(kMiB, 'x');
  for (int i = 0; i < kWrittenMiB; ++i)
    if (!write_all(file.get(), bytes)) return say("cannot write" + in + ": " + error_text());
  if (::fsync(file.get()) != 0) say("cannot write" + in + ": " + error_text());
}

/// The folder, or the one in which it will be made.
fs::path existing(fs::path folder) {
  std::error_code error;
  folder = fs::absolute(folder, error);
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

/// The kernel's messages; empty if this user may not read them.
std::string kernel_log() {
  const UniqueFd file(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::string log;
  char record[8192];
  for (;;) {
    const ssize_t n = file ? ::read(file.get(), record, sizeof record) : 0;
    if (n > 0) log.append(record, static_cast<std::size_t>(n));
    if (n <= 0 && !(n < 0 && (errno == EPIPE || errno == EINTR))) return log;  // EPIPE: it was overwritten
  }
}

void check_gpus(std::size_t wanted, const Say& say) {
  const GpuReading reading = read_gpus();
  if (!reading.problem.empty()) return say("NVIDIA's driver: " + reading.problem);
  const auto visible = visible_gpus(reading.gpus, process_env("CUDA_VISIBLE_DEVICES"));
  if (visible.size() < wanted)
    say(std::to_string(visible.size()) + " of NVIDIA's GPUs are visible: expected at least " +
        std::to_string(wanted));
  for (const std::string& problem : gpu_problems(reading.gpus, visible)) say(problem);
  std::vector<std::string> others;
  for (std::size_t i = 0; i < reading.gpus.size(); ++i)
    if (std::ranges::find(visible, static_cast<int>(i), &VisibleGpu::gpu) == visible.end())
      others.push_back(reading.gpus[i].bus_id.substr(0, reading.gpus[i].bus_id.rfind('.')));
  for (const std::string& problem : xid_problems(kernel_log(), others)) say(problem);
}

// -- running them, or the user's command --

/// What a worker here gets, as far as it is known before the node has joined.
std::vector<std::string> preflight_environment(const Job& job) {
  std::vector<std::string> environment = common_environment(job, job.workers);
  const NodesOptions& nodes = job.options.nodes;
  environment.push_back("LOCAL_WORLD_SIZE=" + std::to_string(nodes.local_world_size.value_or(job.workers)));
  if (const auto rank = nodes.group_rank ? nodes.group_rank : nodes.node_rank)
    environment.push_back("GROUP_RANK=" + std::to_string(*rank));
  return environment;
}

/// The words of the process; empty: there is nothing to run.
std::vector<std::string> preflight_words(const Job& job) {
  const Options& options = job.options;
  if (!options.preflight.command.empty()) return {"sh", "-c", options.preflight.command};
  std::vector<std::string> checks = options.preflight.checks;
  std::erase(checks, "clock");  // the coordinator compares it with its own
  if (checks.empty()) return {};
  const bool by_cpu = options.nproc_per_node.kind == WorkersWanted::Kind::kCpu;
  std::vector<std::string> words{"ddprun", kOnlyChecks, joined(checks, ","),
                                 std::to_string(by_cpu ? 1 : job.workers), temp_folder().string()};
  if (!options.output.log_dir.empty()) words.push_back(options.output.log_dir.string());
  return words;
}

/// The last lines in one, for a message.
std::string last_lines(const OutputTail& tail) {
  constexpr std::size_t kMostLines = 5, kMostBytes = 600;
  std::vector<std::string> lines = tail.lines();
  std::erase_if(lines, [](const std::string& line) { return trimmed(line).empty(); });
  if (lines.size() > kMostLines) lines.erase(lines.begin(), lines.end() - kMostLines);
  for (std::string& line : lines) line = printable(line);
  return shortened(joined(lines, "; "), kMostBytes);
}

/// Why the node is unfit; empty: it is not.
std::string problem_of(const Options& options, const AttemptEnd& end, const std::string& last_lines) {
  const std::string lines = last_lines.empty() ? "" : ": " + last_lines;
  if (const auto* failed = std::get_if<WorkerFailed>(&end))
    return options.preflight.command.empty() && !last_lines.empty() ? last_lines
                                                                    : describe(failed->status) + lines;
  if (std::holds_alternative<TimedOut>(end))
    return "not done within " + in_seconds(options.preflight_timeout) + " (--preflight-timeout)" + lines;
  if (const auto* failed = std::get_if<StartFailed>(&end)) return failed->message;
  return "";
}

/// Waits until everything that the ended process has written is read, unless somebody else holds the pipe.
asio::awaitable<void> read_rest(Job& job, const OutputStream& stream) {
  constexpr std::chrono::milliseconds kLook{5};
  Timer timer(job.io);
  for (const auto until = LoopClock::now() + std::chrono::seconds(1);
       stream.open() && LoopClock::now() < until;) {
    timer.expires_after(kLook);
    co_await timer.async_wait(asio::use_awaitable);
  }
}

/// Sets job.unfit if the preflight fails. returns how the process ended; SignalReceived: the user ends the
/// job
asio::awaitable<AttemptEnd> run_preflight(Job& job) {
  std::vector<WorkerSpec> specs(1);
  specs[0].argv = preflight_words(job);
  if (specs[0].argv.empty()) co_return AllSucceeded{};
  specs[0].env = preflight_environment(job);
  const Options& options = job.options;
  const std::string program = options.preflight.command.empty() ? "/proc/self/exe" : "/bin/sh";
  const auto tail = std::make_shared<OutputTail>();
  OutputChannel channel = open_output_pipe();
  const auto stream = std::make_shared<OutputStream>(job.io, std::move(channel.reading), OutputTargets{});
  stream->start([tail](std::string_view bytes) { tail->add(bytes); }, [] {});
  const auto open_output = [&](std::size_t) {
    UniqueFd err(::fcntl(channel.writing.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    return WorkerOutputs{std::move(channel.writing), std::move(err)};
  };
  EventsJson no_log(job.io, std::nullopt, job.clock);
  WorkerGroup group(job.events, job.signals, job.guard, no_log, 0, options.signal_group, nullptr);
  const auto limit = LoopClock::now() + options.preflight_timeout;
  AttemptEnd end;
  std::optional<StartFailed> own_failure;  // not the preflight's: a host of --hosts cannot be started
  Peers nobody;
  if (auto failed = group.start(program, specs, open_output)) {
    end = *std::move(failed);
  } else if (auto ended = co_await group.wait(std::min(limit, job.deadline.value_or(limit)), {}, nobody)) {
    end = *std::move(ended);
    if (const auto* failure = std::get_if<StartFailed>(&end)) own_failure = *failure;
  }
  const auto* received = std::get_if<SignalReceived>(&end);
  if (received != nullptr)
    log_warning(job.monitor->who_ends(*received) +
                ": ending --preflight and the job (a second signal kills it at once)");
  const auto left =
      co_await group.stop(received != nullptr ? received->signal : SIGTERM, options.shutdown_timeout);
  co_await read_rest(job, *stream);
  stream->finish();
  job.events.forget_exits();
  if (own_failure) throw LaunchError(own_failure->exit_code, own_failure->message);
  if (received == nullptr && !group.user_signals().empty())
    end = SignalReceived{group.user_signals().front()};
  job.unfit = problem_of(options, end, last_lines(*tail));
  if (job.unfit.empty() && !left.empty())
    job.unfit = "SIGKILL did not end one of its processes: " + std::to_string(left.front());
  co_return end;
}

}  // namespace

int run_checks(const std::vector<std::string>& words) {
  const auto wanted = words.size() > 3 ? parse_integer<std::size_t>(words[2], 0, SIZE_MAX) : std::nullopt;
  if (!wanted) return LaunchError::kUsage;  // only ddprun starts ddprun like this
  std::string problems;
  for (const std::string& check : split(words[1], ',')) {
    const Say say = [&](const std::string& problem) { problems += check + ": " + problem + "\n"; };
    try {
      if (check == "shm") check_folder("/dev/shm", say);
      if (check == "gpus") check_gpus(*wanted, say);
      for (std::size_t i = 3; check == "disk" && i < words.size(); ++i) check_folder(existing(words[i]), say);
    } catch (const std::exception& error) {
      say(error.what());
    }
  }
  write_stdout(problems);
  return problems.empty() ? 0 : 1;
}

std::vector<std::string> xid_problems(std::string_view log, const std::vector<std::string>& others) {
  constexpr std::string_view kXid = "NVRM: Xid (PCI:";
  std::vector<std::string> problems;
  for (const std::string& line : split(std::string(log), '\n')) {
    if (line.find("NVRM: loading NVIDIA") != std::string::npos) problems.clear();
    const auto begin = line.find(kXid);
    const auto end = line.find("): ", begin);
    if (begin == std::string::npos || end == std::string::npos) continue;
    const std::string address = line.substr(begin + kXid.size(), end - begin - kXid.size());
    const int xid = std::atoi(line.c_str() + end + 3);
    if (!kFatalXids.contains(xid) || std::ranges::find(others, address) != others.end()) continue;
    const std::string problem = "GPU " + address + ": the kernel's log has Xid " + std::to_string(xid);
    if (std::ranges::find(problems, problem) == problems.end()) problems.push_back(problem);
  }
  return problems;
}

asio::awaitable<RunResult> after_preflight(Job& job, JobRecord& record, asio::awaitable<RunResult> work) {
  const auto begin = LoopClock::now();
  const AttemptEnd end = co_await run_preflight(job);
  if (const auto* received = std::get_if<SignalReceived>(&end)) {
    record.outcome = *received;
    co_return RunResult::by_signal(received->signal);
  }
  if (job.deadline && LoopClock::now() >= *job.deadline) {
    log_error("the job timed out (--timeout) before --preflight was done");
    record.outcome = TimedOut{};
    co_return RunResult{LaunchError::kTimeout, std::nullopt};
  }
  if (job.unfit.empty()) {
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(LoopClock::now() - begin);
    log_info("--preflight succeeded in " + in_seconds(took));
    co_return co_await std::move(work);
  }
  job.unfit = "--preflight failed: " + job.unfit;
  record.message = job.unfit;
  record.outcome = StartFailed{LaunchError::kOwnFailure, job.unfit};
  if (!job.options.hosts.is_silent()) log_error(job.unfit);
  if (!job.options.nodes.several()) co_return RunResult{LaunchError::kOwnFailure, std::nullopt};
  co_return co_await std::move(work);
}

}  // namespace ddprun::launcher
