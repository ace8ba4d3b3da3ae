#include "launcher/failure/stack_dump.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>

#include <ddprun/common/files.h>
#include <ddprun/common/worker_env.h>
#include "launcher/workers/job_processes.h"

namespace ddprun::launcher {
namespace {

// gdb wants some hundred MB for a training: not too many at once.
constexpr unsigned kMaxDebuggers = 8;
constexpr std::size_t kMaxBytesJudged = 1 << 18;
constexpr int kKillTimeoutMs = 200;

std::string first_line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// CAP_SYS_PTRACE is number 19.
bool may_trace_anybody() {
  std::ifstream status("/proc/self/status");
  for (std::string name, value; status >> name;)
    if (name == "CapEff:" && status >> value)
      return (std::strtoull(value.c_str(), nullptr, 16) >> 19 & 1) != 0;
  return false;
}

/// What the debuggers get: not the job's variables, which may lead a debugger's own Python astray.
std::vector<std::string> debugger_environment() {
  std::vector<std::string> env = {"LC_ALL=C", "TERM=dumb"};
  for (const char* name : {"PATH", "HOME", "TMPDIR"})
    if (const auto value = process_env(name)) env.push_back(std::string(name) + "=" + *value);
  return env;
}

UniqueFd create_private(const std::filesystem::path& path) {
  ::unlink(path.c_str());
  return UniqueFd(
      ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
}

std::string read_from(int fd, off_t begin) {
  std::string text(kMaxBytesJudged, '\0');
  const ssize_t n = ::pread(fd, text.data(), text.size(), begin);
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return text;
}

/// The worker first, whether it lives or not, then the other living members of its group.
std::vector<pid_t> processes_of(pid_t worker) {
  std::vector<pid_t> pids = {worker};
  for (const pid_t pid : group_members(worker))
    if (pid != worker) pids.push_back(pid);
  return pids;
}

bool has_ended(const Process& process, int timeout_ms = 0) {
  pollfd poll{process.pidfd.get(), POLLIN, 0};
  return ::poll(&poll, 1, timeout_ms) == 1;
}

void add_to(std::string& list, const std::string& text, const char* separator) {
  list += (list.empty() || text.empty() ? "" : separator) + text;
}

}  // namespace

std::string describe(const StackResult& result) {
  std::string line = "rank " + std::to_string(result.rank) + " (pid " + std::to_string(result.pid) + ")";
  if (result.view.stopped) line += ", which is stopped";
  if (!result.tools.empty()) {
    std::string how;
    for (const std::string& tool : result.tools) add_to(how, tool, ", ");
    add_to(how, result.problem, "; ");
    return line + ": stacks in " + result.file.string() + " (" + how + ")";
  }
  line += ": no stacks: " + result.problem;
  if (!result.file.empty()) line += "; what the kernel tells is in " + result.file.string();
  return line;
}

int signal_after(const std::vector<StackResult>& results) {
  const bool abort_tells_more = std::any_of(results.begin(), results.end(), [](const StackResult& result) {
    const bool python_stacks = std::count(result.tools.begin(), result.tools.end(), "py-spy") > 0;
    return result.tools.empty() || (result.view.catches_abort && !python_stacks);
  });
  return abort_tells_more ? SIGABRT : SIGTERM;
}

StackDump::StackDump(const std::vector<StackTarget>& targets, const std::filesystem::path& folder,
                     StackTools tools)
    : tools_(std::move(tools)),
      dev_null_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      max_running_(std::clamp(std::thread::hardware_concurrency(), 2u, kMaxDebuggers)) {
  const auto forbidden =
      tracing_forbidden(first_line_of("/proc/sys/kernel/yama/ptrace_scope"), may_trace_anybody());
  for (const StackTarget& target : targets) {
    Rank& rank = ranks_.emplace_back();
    rank.result.rank = target.rank;
    rank.result.pid = target.pid;
    look_at(rank, folder);
    if (forbidden) rank.steps.clear();
    if (forbidden && rank.result.problem.empty()) rank.result.problem = *forbidden;
  }
  advance();
}

StackDump::~StackDump() {
  for (Rank& rank : ranks_)
    if (rank.debugger.pidfd) kill_debugger(rank);
}

/// The kernel's view of all processes of a rank into its file, and what remains to be done.
void StackDump::look_at(Rank& rank, const std::filesystem::path& folder) {
  const auto path = folder / ("stacks_" + std::to_string(rank.result.rank) + ".txt");
  rank.file = create_private(path);
  if (!rank.file) {
    rank.result.problem = path.string() + ": cannot create: " + std::strerror(errno);
    return;
  }
  rank.result.file = path;
  for (const pid_t pid : processes_of(rank.result.pid)) {
    const bool of_worker = pid == rank.result.pid;
    const KernelView view = kernel_view(pid);
    if (of_worker) rank.result.view = view;
    if (of_worker && view.text.empty()) rank.result.problem = "it has ended";
    if (view.text.empty()) continue;
    write_all(rank.file.get(), view.text);
    for (StackCommand& command : stack_commands(tools_, pid, view))
      rank.steps.push_back({std::move(command), pid, of_worker});
  }
  if (rank.steps.empty() && rank.result.problem.empty())
    rank.result.problem = "eu-stack, gdb and py-spy not found in PATH";
}

bool StackDump::advance() {
  for (Rank& rank : ranks_) {
    if (!rank.debugger.pidfd || !has_ended(rank.debugger)) continue;
    try_reap(rank.debugger);  // unless somebody has done so
    conclude(rank, /*in_time=*/true);
  }
  // Every worker before any child of one: time may run out.
  for (const bool of_worker : {true, false})
    for (Rank& rank : ranks_) start_next(rank, of_worker);
  return running_ == 0;
}

std::vector<StackResult> StackDump::finish() {
  std::vector<StackResult> results;
  for (Rank& rank : ranks_) {
    const bool never_tried = !rank.steps.empty() && rank.steps.front().of_worker && !rank.debugger.pidfd;
    if (never_tried) note_problem(rank, rank.steps.front(), "no time left");
    if (rank.debugger.pidfd) {
      kill_debugger(rank);
      conclude(rank, /*in_time=*/false);
    }
    rank.steps.clear();
    results.push_back(rank.result);
  }
  return results;
}

/// Starts the rank's next debugger, if none is at work on it and there may be more of them.
void StackDump::start_next(Rank& rank, bool of_worker) {
  while (running_ < max_running_ && !rank.debugger.pidfd && !rank.steps.empty() &&
         rank.steps.front().of_worker == of_worker) {
    const Step& step = rank.steps.front();
    const int file = rank.file.get();
    write_all(file, "\n" + step.command.tool + " on process " + std::to_string(step.pid) + ":\n");
    rank.output_begin = ::lseek(file, 0, SEEK_END);
    ProcessSpec spec;
    spec.path = step.command.argv[0];
    spec.argv = step.command.argv;
    spec.env = debugger_environment();
    spec.stdin_fd = dev_null_.get();
    spec.stdout_fd = spec.stderr_fd = file;
    auto started = start_process(spec);
    if (auto* process = std::get_if<Process>(&started)) {
      rank.debugger = std::move(*process);
      ++running_;
    } else {
      note_problem(rank, step, std::strerror(std::get<StartFailure>(started).error));
      rank.steps.pop_front();
    }
  }
}

/// The debugger of a rank has ended: what did it write?
void StackDump::conclude(Rank& rank, bool in_time) {
  const Step step = std::move(rank.steps.front());
  rank.steps.pop_front();
  rank.debugger = {};
  --running_;
  const std::string output = read_from(rank.file.get(), rank.output_begin);
  const std::string refusal = in_time ? refusal_in(output) : "not done in time";
  if (!shows_stacks(output)) {
    note_problem(rank, step, refusal.empty() ? "no stacks in its output" : refusal);
    return;
  }
  if (!in_time) note_problem(rank, step, refusal);
  if (step.of_worker) rank.result.tools.push_back(step.command.tool);
}

void StackDump::note_problem(Rank& rank, const Step& step, const std::string& problem) {
  if (!step.of_worker) return;
  if (!rank.result.problem.empty()) rank.result.problem += "; ";
  rank.result.problem += step.command.tool + ": " + problem;
}

void StackDump::kill_debugger(Rank& rank) {
  signal_group(rank.debugger, SIGKILL);
  if (has_ended(rank.debugger, kKillTimeoutMs)) try_reap(rank.debugger);
}

}  // namespace ddprun::launcher
