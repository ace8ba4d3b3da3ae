#include "launcher/outcome/stack_dump.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <sstream>
#include <thread>
#include <utility>

#if __has_include(<boost/process/v1/child.hpp>)  // since Boost 1.86
#include <boost/process/v1/args.hpp>
#include <boost/process/v1/child.hpp>
#include <boost/process/v1/env.hpp>
#include <boost/process/v1/environment.hpp>
#include <boost/process/v1/exe.hpp>
#include <boost/process/v1/extend.hpp>
#include <boost/process/v1/posix.hpp>
namespace bp = boost::process::v1;
#else
#include <boost/process/args.hpp>
#include <boost/process/child.hpp>
#include <boost/process/env.hpp>
#include <boost/process/environment.hpp>
#include <boost/process/exe.hpp>
#include <boost/process/extend.hpp>
#include <boost/process/posix.hpp>
namespace bp = boost::process;
#endif

#include <ddprun/common/files.h>
#include <ddprun/common/worker_env.h>
#include "launcher/events/launch_error.h"
#include "launcher/events/threads.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/workers/job_processes.h"
#include "launcher/workers/process.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

namespace fs = std::filesystem;

// gdb takes several hundred MB per training process: do not run too many at once.
constexpr unsigned kMaxDebuggers = 8;
constexpr std::chrono::milliseconds kLook{10};  // at a time: the event loop waits
constexpr std::chrono::milliseconds kTimeToDetach{500};
constexpr rlim_t kMaxOutput = 1 << 26;  // of a debugger: it is in memory
constexpr std::size_t kMaxThreads = 512;

/// Without the final newline; empty if it is gone or unreadable for us.
std::string read_proc(const fs::path& path) {
  std::string bytes = read_or_empty(path);
  while (!bytes.empty() && bytes.back() == '\n') bytes.pop_back();
  return bytes;
}

/// The value of "NAME:\t VALUE" in /proc/PID/status.
std::string field(const std::string& status, const std::string& name) {
  const auto begin = ("\n" + status).find("\n" + name + ":\t");
  if (begin == std::string::npos) return "";
  const auto value = std::min(status.find_first_not_of(' ', begin + name.size() + 2), status.size());
  return status.substr(value, status.find('\n', value) - value);
}

/// Whether this bit of a hexadecimal mask in /proc/PID/status is set.
bool has_bit(const std::string& status, const std::string& name, int bit) {
  return (std::strtoull(field(status, name).c_str(), nullptr, 16) >> bit & 1) != 0;
}

std::string thread_line(const fs::path& thread) {
  std::string line = "  thread " + thread.filename().string() + " (" + read_proc(thread / "comm") +
                     "): " + field(read_proc(thread / "status"), "State");
  const std::string wait = read_proc(thread / "wchan");
  if (!wait.empty() && wait != "0") line += ", waits in " + wait;
  // The call's number and arguments, or "running".
  const std::string call = read_proc(thread / "syscall");
  if (!call.empty()) line += call == "running" ? ", on a CPU" : ", system call " + call;
  std::istringstream stack(read_proc(thread / "stack"));  // for root only
  for (std::string frame; std::getline(stack, frame);) line += "\n    " + frame;
  return line + "\n";
}

std::string find_or_empty(const std::string& name, const std::string& search_path) try {
  return find_program(name, search_path);
} catch (const LaunchError&) {
  return "";
}

/// Without the job's variables, which may confuse a debugger's own Python.
bp::environment debugger_environment() {
  bp::environment environment;
  environment["LC_ALL"] = "C";
  environment["TERM"] = "dumb";
  for (const char* name : {"PATH", "HOME", "TMPDIR"})
    if (const auto value = process_env(name)) environment[name] = *value;
  return environment;
}

/// Runs in the debugger's process before the debugger: a separate session, which we can kill as a group and
/// which ends with us, default signals, and no descriptor above 2.
void isolate_debugger() {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  close_above_stderr_on_exec();  // Boost still needs its pipe
  const rlimit most{kMaxOutput, kMaxOutput};
  ::setrlimit(RLIMIT_FSIZE, &most);
}

/// What has been written to a file in memory.
std::string all_of(const UniqueFd& file) {
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  std::string text(static_cast<std::size_t>(std::max<off_t>(size, 0)), '\0');
  const ssize_t n = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  return text;
}

std::string without_control_characters(std::string_view text) {
  std::string line(text);
  for (char& c : line)
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  return line;
}

void add_to(std::string& list, const std::string& text, const char* separator) {
  list += (list.empty() || text.empty() ? "" : separator) + text;
}

}  // namespace

struct StackDump::Step {
  StackCommand command;
  pid_t pid;
  bool of_worker;  ///< and not of one of its children
  bool stopped;    ///< the process was stopped before
};

struct StackDump::Rank {
  StackResult result;
  std::deque<Step> steps;  ///< the debugger is working on the first
  std::optional<bp::child> debugger;
  Clock::time_point until;  ///< the debugger gets the next signal then
  int signal = 0;           ///< the last one that it got
  UniqueFd output;          ///< of the debugger, in memory: a file on a disk could hold up the event loop

  void note_problem(const Step& step, const std::string& problem) {
    if (step.of_worker) add_to(result.problem, step.command.tool + ": " + problem, "; ");
  }
  void signal_debugger(int number) { ::kill(-debugger->id(), signal = number); }
};

KernelView kernel_view(pid_t pid) {
  const fs::path process = "/proc/" + std::to_string(pid);
  const std::string status = read_proc(process / "status");
  const std::string state = field(status, "State");
  KernelView view;
  if (state.empty() || state[0] == 'Z' || state[0] == 'X') return view;
  view.stopped = state[0] == 'T';
  view.catches_abort = has_bit(status, "SigCgt", SIGABRT - 1);
  std::error_code error;
  view.python = fs::read_symlink(process / "exe", error).filename().string().rfind("python", 0) == 0;
  view.text = "process " + std::to_string(pid) + " (" + field(status, "Name") + "): " + state +
              ", threads: " + field(status, "Threads") + ", memory: " + field(status, "VmRSS") + "\n";
  error.clear();
  std::size_t threads = 0;
  for (fs::directory_iterator entry(process / "task", error), end;
       !error && entry != end && threads < kMaxThreads; entry.increment(error), ++threads)
    view.text += thread_line(entry->path());
  return view;
}

StackTools find_stack_tools(const std::string& search_path) {
  return {find_or_empty("eu-stack", search_path), find_or_empty("gdb", search_path),
          find_or_empty("py-spy", search_path)};
}

asio::awaitable<StackTools> find_stack_tools(const std::function<bool()>* give_up) {
  constexpr std::chrono::seconds kPatience{1};
  const std::string system = "/usr/local/bin:/usr/bin:/bin";
  const auto found = std::make_shared<StackTools>(), in_system = std::make_shared<StackTools>();
  const auto path = process_env("PATH").value_or(system);
  const std::function<void()> look = [found, path] { *found = find_stack_tools(path); };
  const AsideEnd end = co_await run_aside(look, LoopClock::now() + kPatience, give_up);
  if (end == AsideEnd::kDone) co_return *found;
  if (end == AsideEnd::kGivenUp) co_return StackTools();
  const std::function<void()> look_in_system = [in_system, system] { *in_system = find_stack_tools(system); };
  if (co_await run_aside(look_in_system, LoopClock::now() + kPatience, give_up) == AsideEnd::kDone)
    co_return *in_system;
  co_return StackTools();
}

std::vector<StackCommand> stack_commands(const StackTools& tools, pid_t pid, const KernelView& process) {
  const std::string number = std::to_string(pid);
  std::vector<StackCommand> commands;
  if (process.python && !tools.py_spy.empty()) {
    commands.push_back({"py-spy", {tools.py_spy, "dump", "--pid", number}});
    // It fails on a process that is already stopped.
    if (process.stopped) commands.back().argv.push_back("--nonblocking");
  }
  // A process with LibTorch costs eu-stack 0.2 s of CPU time, and gdb 4.6 s for the same frames, or 11 s with
  // the one that pip installs.
  if (!tools.eu_stack.empty()) {
    commands.push_back({"eu-stack", {tools.eu_stack, "-p", number}});
  } else if (!tools.gdb.empty()) {
    // Without anyone's start-up files and scripts, and without the network.
    commands.push_back({"gdb",
                        {tools.gdb, "-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex",
                         "set auto-load off", "-p", number, "-ex", "thread apply all bt"}});
  }
  return commands;
}

bool shows_stacks(std::string_view output) {
  for (const std::string_view frame : {"\n#0 ", "\nThread "})  // gdb and eu-stack; py-spy
    if (output.find(frame) != std::string_view::npos || output.rfind(frame.substr(1), 0) == 0) return true;
  return false;
}

std::string refusal_in(std::string_view output) {
  for (const std::string_view word : {"not permitted", "Permission denied", "ptrace", "rror:"}) {
    const auto found = output.find(word);
    if (found == std::string_view::npos) continue;
    const auto begin = output.rfind('\n', found) + 1;  // npos + 1 is 0
    const auto end = std::min(output.find('\n', found), output.size());
    return without_control_characters(output.substr(begin, std::min<std::size_t>(end - begin, 200)));
  }
  return "";
}

std::string python_frame(std::string_view output) {
  const auto thread = output.find(": \"MainThread\"\n");
  if (thread == std::string_view::npos) return "";
  std::vector<std::string> frames;  // "    main (train.py:9)"; the innermost first
  std::istringstream lines(std::string(output.substr(output.find('\n', thread) + 1)));
  for (std::string line; std::getline(lines, line) && line.starts_with("    ");)
    frames.push_back(without_control_characters(line.substr(4, 200)));
  if (frames.empty()) return "";
  const auto file = [](const std::string& frame) {
    const auto begin = std::min(frame.rfind('('), frame.size());
    return frame.substr(begin, frame.rfind(':') - begin);
  };
  const auto own = std::ranges::find(frames, file(frames.back()), file);
  return frames.front() + (own == frames.begin() ? "" : ", called by " + *own);
}

std::optional<std::string> tracing_forbidden(std::string_view ptrace_scope, bool privileged) {
  // 0: any process of the same user. 1: ancestors, and those named with PR_SET_PTRACER.
  const char scope = ptrace_scope.empty() ? '0' : ptrace_scope.front();
  if (scope == '3') return "kernel.yama.ptrace_scope is 3: nobody may trace";
  if (scope == '2' && !privileged) return "kernel.yama.ptrace_scope is 2: tracing needs CAP_SYS_PTRACE";
  return {};
}

std::string describe(const StackResult& result) {
  std::string line = "rank " + std::to_string(result.rank) + " (pid " + std::to_string(result.pid) + ")";
  if (result.view.stopped) line += ", which is stopped";
  if (!result.frame.empty()) line += " in " + result.frame;
  if (!result.tools.empty()) {
    std::string how;
    for (const std::string& tool : result.tools) add_to(how, tool, ", ");
    add_to(how, result.problem, "; ");
    return line + ": stacks in " + result.file.string() + " (" + how + ")";
  }
  line += ": no stacks: " + result.problem;
  if (!result.file.empty()) line += "; the kernel's view is in " + result.file.string();
  return line;
}

int signal_after(const std::vector<StackResult>& results) {
  const bool abort_tells_more = std::ranges::any_of(results, [](const StackResult& result) {
    const bool python_stacks = std::ranges::count(result.tools, "py-spy") > 0;
    return result.tools.empty() || (result.view.catches_abort && !python_stacks);
  });
  return abort_tells_more ? SIGABRT : SIGTERM;
}

void write_stacks(StackResult& result, const fs::path& folder) {
  const auto path = folder / ("stacks_" + std::to_string(result.rank) + ".txt");
  if (!folder.empty()) ::unlink(path.c_str());
  const UniqueFd file(
      folder.empty()
          ? -1
          : ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file) {
    write_all(file.get(), result.text);
    result.file = path;
    return;
  }
  result.tools.clear();
  result.problem =
      folder.empty() ? "no folder for them" : path.string() + ": cannot create: " + std::strerror(errno);
}

StackDump::StackDump(const std::vector<StackTarget>& targets, StackTools tools,
                     std::chrono::milliseconds tool_timeout)
    : tools_(std::move(tools)),
      tool_timeout_(tool_timeout),
      groups_(process_groups()),
      max_running_(std::clamp(std::thread::hardware_concurrency(), 2u, kMaxDebuggers)) {
  constexpr int kCapSysPtrace = 19;
  forbidden_ = tracing_forbidden(read_proc("/proc/sys/kernel/yama/ptrace_scope"),
                                 has_bit(read_proc("/proc/self/status"), "CapEff", kCapSysPtrace));
  for (const StackTarget& target : targets) {
    Rank& rank = ranks_.emplace_back();
    rank.result.rank = target.rank;
    rank.result.pid = target.pid;
  }
  advance();
}

StackDump::~StackDump() {
  for (Rank& rank : ranks_)
    if (rank.debugger) leave_out(rank);
}

/// Notes the kernel's view of all processes of a rank, and plans the debuggers.
void StackDump::look_at(Rank& rank) {
  const pid_t worker = rank.result.pid;
  std::vector<pid_t> pids = groups_[worker];
  std::erase(pids, worker);
  pids.insert(pids.begin(), worker);  // dead or alive
  for (const pid_t pid : pids) {
    const KernelView view = kernel_view(pid);
    if (pid == worker) rank.result.view = view;
    if (pid == worker && view.text.empty()) rank.result.problem = "it has ended";
    if (view.text.empty()) continue;
    rank.result.text += view.text;
    for (StackCommand& command : stack_commands(tools_, pid, view))
      rank.steps.push_back({std::move(command), pid, pid == worker, view.stopped});
  }
  if (forbidden_) rank.steps.clear();
  if (forbidden_ && rank.result.problem.empty()) rank.result.problem = *forbidden_;
  if (rank.steps.empty() && rank.result.problem.empty())
    rank.result.problem = "eu-stack, gdb and py-spy not found in PATH";
}

bool StackDump::advance() {
  const auto until = Clock::now() + kLook;
  while (looking()) {
    look_at(ranks_[looked_at_++]);
    if (Clock::now() >= until) break;
  }
  for (Rank& rank : ranks_) {
    std::error_code reaped_by_others;
    if (rank.debugger && !rank.debugger->running(reaped_by_others))
      conclude(rank);
    else if (rank.debugger && Clock::now() >= rank.until)
      end_late(rank);
  }
  if (Clock::now() >= deadline_) return running_ == 0;
  // Every worker before any worker's children: time may run out.
  for (const bool of_worker : {true, false})
    for (Rank& rank : ranks_) start_next(rank, of_worker);
  return running_ == 0 && !looking();
}

bool StackDump::looking() const { return looked_at_ < ranks_.size(); }

StackDump::Clock::time_point StackDump::next() const {
  auto next = looking() ? Clock::now() : Clock::time_point::max();
  for (const Rank& rank : ranks_)
    if (rank.debugger) next = std::min(next, rank.until);
  return next;
}

std::vector<StackResult> StackDump::finish() {
  std::vector<StackResult> results;
  for (std::size_t i = looked_at_; i < ranks_.size(); ++i) ranks_[i].result.problem = "no time left";
  looked_at_ = ranks_.size();
  for (Rank& rank : ranks_) {
    if (rank.debugger) leave_out(rank);
    if (!rank.steps.empty() && rank.steps.front().of_worker)
      rank.note_problem(rank.steps.front(), "no time left");
    rank.steps.clear();
    if (rank.result.view.python && tools_.py_spy.empty() && !forbidden_)
      add_to(rank.result.problem, "pip install py-spy shows Python's frames", "; ");
    results.push_back(std::move(rank.result));
  }
  return results;
}

/// Starts the rank's next debugger, unless one is running or the limit is reached.
void StackDump::start_next(Rank& rank, bool of_worker) {
  while (running_ < max_running_ && !rank.debugger && !rank.steps.empty() &&
         rank.steps.front().of_worker == of_worker) {
    const Step& step = rank.steps.front();
    const auto& argv = step.command.argv;
    rank.result.text += "\n" + step.command.tool + " on process " + std::to_string(step.pid) + ":\n";
    rank.output.reset(::memfd_create("stacks", MFD_CLOEXEC));
    const int file = rank.output.get();
    const UniqueFd in = open_dev_null(O_RDONLY);
    const std::vector<std::string> arguments(argv.begin() + 1, argv.end());
    const bp::environment environment = debugger_environment();
    const auto at_exec = [](auto&) { isolate_debugger(); };
    std::error_code error;
    rank.debugger.emplace(bp::exe = argv[0], bp::args = arguments, environment,
                          bp::posix::fd.bind(STDIN_FILENO, in.get()), bp::posix::fd.bind(STDOUT_FILENO, file),
                          bp::posix::fd.bind(STDERR_FILENO, file), bp::extend::on_exec_setup = at_exec,
                          error);
    if (!error) {
      ++running_;
      rank.until = std::min<Clock::time_point>(Clock::now() + tool_timeout_, deadline_);
      rank.signal = 0;
      return;
    }
    rank.debugger.reset();
    rank.note_problem(step, std::strerror(error.value()));
    rank.steps.pop_front();
  }
}

/// Ends a rank's debugger: it can still detach from the process, which then goes on.
void StackDump::end_late(Rank& rank) {
  if (rank.signal == SIGKILL) return leave_out(rank);
  rank.signal_debugger(rank.signal == 0 ? SIGTERM : SIGKILL);
  rank.until = Clock::now() + kTimeToDetach;
}

/// Kills a rank's debugger. ddprun reaps its zombie, as any orphan: waiting for it could block.
void StackDump::leave_out(Rank& rank) {
  rank.signal_debugger(SIGKILL);
  rank.debugger->detach();
  conclude(rank);
}

/// Evaluates the output of a rank's debugger, which has ended.
void StackDump::conclude(Rank& rank) {
  const Step step = std::move(rank.steps.front());
  const bool in_time = rank.signal == 0;
  rank.steps.pop_front();
  rank.debugger.reset();
  // The SIGSTOP by which it attached to a thread may be left.
  if (!in_time && !step.stopped) ::kill(step.pid, SIGCONT);
  --running_;
  const std::string output = all_of(rank.output);
  rank.output.reset();
  rank.result.text += output;
  const std::string refusal = in_time ? refusal_in(output) : "not done in time";
  if (!shows_stacks(output)) {
    rank.note_problem(step, refusal.empty() ? "no stacks in its output" : refusal);
    return;
  }
  std::erase_if(rank.steps, [&](const Step& other) {
    return other.pid == step.pid && other.command.tool == "gdb";  // which would stop it for seconds
  });
  if (!in_time) rank.note_problem(step, refusal);
  if (!step.of_worker) return;
  rank.result.tools.push_back(step.command.tool);
  if (step.command.tool == "py-spy") rank.result.frame = python_frame(output);
}

}  // namespace ddprun::launcher
