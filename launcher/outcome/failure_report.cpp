#include "launcher/outcome/failure_report.h"

#include <algorithm>
#include <csignal>
#include <exception>
#include <iterator>
#include <system_error>
#include <utility>

#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include "launcher/host/cpus.h"

namespace ddprun::launcher {
namespace {

using Lines = std::vector<std::string>;

constexpr std::size_t kWidth = 80;          // of our own text; a worker's lines are not wrapped
constexpr std::size_t kLabelWidth = 10;     // "log files"
constexpr std::size_t kMaxLineBytes = 500;  // of a worker's line
constexpr std::size_t kLastLines = 20;      // of its stderr
constexpr std::size_t kMaxOthers = 8;       // listed one by one

/// A worker's text, safe to show and bounded in both directions.
Lines bounded(const std::string& text, std::size_t first, std::size_t last) {
  Lines lines = first_and_last(printable_lines(text), first, last);
  for (std::string& line : lines) line = shortened(line, kMaxLineBytes);
  return lines;
}

std::string indented(const Lines& lines, const std::string& indent) {
  std::string text;
  for (const std::string& line : lines) {
    text += indent + line;
    text.erase(text.find_last_not_of(" \t") + 1);
    text += "\n";
  }
  return text;
}

/// "  label     : first line", the others below it; nothing without lines.
std::string field(const std::string& label, const Lines& lines) {
  if (lines.empty()) return "";
  const std::string head = "  " + label + std::string(kLabelWidth - label.size(), ' ') + ": ";
  const std::string rest = indented({lines.begin() + 1, lines.end()}, std::string(head.size(), ' '));
  return head + lines.front() + "\n" + rest;
}

/// A sentence by ddprun, wrapped.
std::string sentence(const std::string& label, const std::string& text) {
  return field(label, wrapped(text, kWidth - kLabelWidth - 4));
}

std::string paths(const std::string& label, const std::vector<std::filesystem::path>& list) {
  Lines lines;
  for (const auto& path : list) lines.push_back(printable(path.string()));
  return field(label, lines);
}

std::string describe_worker(const WorkerRecord& worker) {
  return std::to_string(worker.rank) + " (local_rank: " + std::to_string(worker.local_rank) +
         ", pid: " + std::to_string(worker.pid) + ")";
}

std::string describe_end(const WorkerRecord& worker) {
  return describe(*worker.status) + (worker.asked_to_end ? ", after ddprun told it to end" : "");
}

Lines error_lines(const ErrorFileContent& error, std::size_t first, std::size_t last) {
  if (error.error) return bounded(error.error->message, first, last);
  if (error.problem.empty()) return {};
  return {"the worker's error file " + printable(error.problem)};
}

bool is_header(const std::string& line) { return line.starts_with("Traceback"); }

/// Shows a traceback once: Python also prints what @record wrote, below a header and outer frames of its own.
/// Clears the stack if the output contains all of it, else drops the common part from the output.
void drop_repetition(Lines& stack, Lines& output) {
  if (stack.empty()) return;
  const auto frames = stack.begin() + (stack.front().starts_with("Traceback") && stack.size() > 1 ? 1 : 0);
  if (std::search(output.begin(), output.end(), frames, stack.end()) != output.end()) return stack.clear();
  constexpr std::ptrdiff_t kEnough = 4;  // more lines than two different tracebacks share
  if (stack.end() - frames < kEnough) return;
  const auto found = std::search(output.begin(), output.end(), stack.end() - kEnough, stack.end());
  if (found == output.end()) return;
  const auto header = std::find_if(std::make_reverse_iterator(found), output.rend(), is_header);
  output.erase(header == output.rend() ? output.begin() : header.base() - 1, found + kEnough);
}

/// What its stderr ends with, of a traceback the exception; empty if its error file says more.
std::string last_line(const WorkerRecord& root) {
  const Lines lines = printable_lines(joined(root.last_lines, "\n"));
  if (lines.empty() || root.error.error || !root.error.problem.empty()) return "";
  const auto header = std::find_if(lines.rbegin(), lines.rend(), is_header);
  const auto said = std::find_if(header.base(), lines.end(), [](const std::string& line) {
    return !line.empty() && line.front() != ' ';
  });
  const bool raised = header != lines.rend() && said != lines.end();
  return shortened(raised ? *said : lines.back(), kMaxLineBytes);
}

std::string describe_output(const WorkerRecord& root) {
  Lines last = printable_lines(joined(root.last_lines, "\n"));
  if (last.size() > kLastLines) last.erase(last.begin(), last.end() - kLastLines);
  for (std::string& line : last) line = shortened(line, kMaxLineBytes);
  std::string text;
  Lines stack = root.error.error ? printable_lines(root.error.error->call_stack) : Lines();
  const std::size_t lines = last.size();
  const Lines error = stack.empty() ? error_lines(root.error, 2, 0) : Lines();
  if (error.size() == 1 && !last.empty() && last.back().ends_with(error[0])) last.pop_back();
  drop_repetition(stack, last);
  if (root.err_shown) {  // and where ddprun has not read it, a traceback twice is better than none
    if (root.err_read && last.size() < lines) stack.clear();
    last.clear();
  }
  if (!stack.empty()) text += "  call stack:\n" + indented(bounded(joined(stack, "\n"), 8, 16), "    ");
  if (!last.empty()) text += "  last lines of its stderr:\n" + indented(last, "    | ");
  return text;
}

std::string describe_root_cause(const FailureReport& report) {
  const WorkerRecord& root = report.root_cause;
  const bool killed_by_memory = !root.out_of_memory.empty() && root.status == ExitStatus::killed(SIGKILL);
  std::string text = field("rank", {describe_worker(root)});
  text += field("outcome", report.hang.empty() ? Lines{describe(*root.status)} : report.hang);
  text += sentence("memory", root.out_of_memory);
  if (!killed_by_memory && report.hang.empty()) text += sentence("hint", end_hint(*root.status));
  text += field("error", error_lines(root.error, 12, 8));
  if (const auto line = last_line(root); root.err_shown && !line.empty()) text += field("stderr", {line});
  text += field("host", {printable(report.host)});
  const auto time = std::chrono::system_clock::to_time_t(root.time);
  if (root.status) text += field("time", {utc_text(time, "%Y-%m-%d %H:%M:%S UTC")});
  if (report.max_restarts > 0)
    text += field("attempt", {std::to_string(report.attempt) +
                              " (--max-restarts=" + std::to_string(report.max_restarts) + ")"});
  if (!root.core.empty()) text += field("core file", {printable(root.core)});
  if (!report.stacks.empty()) text += paths("stacks", {report.stacks});
  text += paths("log files", root.logs);
  return text + describe_output(root);
}

/// A mistake that all ranks make: what the report says of the root cause holds for them.
bool failed_alike(const WorkerRecord& worker, const WorkerRecord& root) {
  return worker.error.error && root.error.error && !root.error.error->message.empty() &&
         worker.error.error->message == root.error.error->message && worker.status == root.status;
}

std::string describe_others(const std::string& title, std::vector<WorkerRecord> others,
                            const WorkerRecord& root) {
  if (others.empty()) return "";
  std::string text = std::string(kWidth, '-') + "\n" + title + ":\n";
  const auto alike = std::stable_partition(
      others.begin(), others.end(), [&](const WorkerRecord& worker) { return !failed_alike(worker, root); });
  std::vector<int> ranks;
  for (auto worker = alike; worker != others.end(); ++worker) ranks.push_back(worker->rank);
  if (!ranks.empty()) text += "  the same error: rank " + joined(number_ranges(ranks), ", ") + "\n";
  others.erase(alike, others.end());
  const std::size_t shown = others.size() <= kMaxOthers + 1 ? others.size() : kMaxOthers;
  for (std::size_t i = 0; i < shown; ++i) {
    text += "  rank " + describe_worker(others[i]) + ": " + describe_end(others[i]) + "\n";
    text += indented(error_lines(others[i].error, 2, 1), "    ");
  }
  if (shown < others.size()) text += "  and " + std::to_string(others.size() - shown) + " more\n";
  return text;
}

/// A program that rejects its arguments has said why, usually on stderr.
std::string describe_refusal(const FailureReport& report) {
  const WorkerRecord& root = report.root_cause;
  const Lines error = error_lines(root.error, 1, 1);
  const std::string reason = error.empty() ? last_line(root) : error.front(),
                    program = shortened(printable(report.program), kMaxLineBytes);
  return program + " FAILED: rank " + std::to_string(root.rank) + " exited with code " +
         std::to_string(root.status->code) + (reason.empty() ? "" : ": " + reason) + "\n" +
         (report.misplaced_flag.empty()
              ? ""
              : "ddprun's own flags, such as " + report.misplaced_flag + ", go before " + program + "\n");
}

constexpr const char* kSentByOthers =
    "not sent by ddprun: a batch system, a user, or the program itself sent it";
constexpr std::pair<int, const char*> kSignalHints[] = {
    {SIGKILL,
     "not sent by ddprun, but by someone else or the kernel's OOM killer (see dmesg and memory.events)"},
    {SIGTERM, kSentByOthers},
    {SIGINT, kSentByOthers},
    {SIGHUP, kSentByOthers},
    {SIGQUIT, kSentByOthers},
    {SIGSEGV, "an invalid memory access, or a stack overflow"},
    {SIGBUS, "often a full /dev/shm (df /dev/shm), or a mapped file that was truncated"},
    {SIGABRT, "the program aborted: an uncaught exception, a failed assertion, or a corrupted heap"},
    {SIGFPE, "usually an integer division by zero"},
    {SIGILL, "an instruction that this processor lacks: built for another one?"},
    {SIGPIPE, "it wrote to a pipe or connection whose reader is gone"},
    {SIGSYS, "a system call that is forbidden here (seccomp)"},
    {SIGXCPU, "it reached the limit on CPU time (ulimit -t)"},
    {SIGXFSZ, "it reached the limit on file size (ulimit -f)"},
};

/// Empty if there is nothing to add.
std::string signal_hint(int signal) {
  const auto found = std::ranges::find(kSignalHints, signal, &std::pair<int, const char*>::first);
  return found == std::end(kSignalHints) ? "" : found->second;
}

}  // namespace

bool ended_as_told(const ExitStatus& status, const std::vector<int>& signals) {
  if (status.success()) return true;
  return std::ranges::any_of(signals,
                             [&](int signal) { return to_exit_code(status) == exit_code_of_signal(signal); });
}

std::string describe(const FailureReport& report) {
  constexpr int kUsageError = 2;
  if (report.hang.empty() && report.root_cause.status == ExitStatus::exited(kUsageError))
    return describe_refusal(report);
  const std::string rule = std::string(kWidth, '=') + "\n";
  const std::string thin_rule = std::string(kWidth, '-') + "\n";
  std::string text = rule + shortened(printable(report.program), kMaxLineBytes) + " FAILED\n" + thin_rule;
  text += report.hang.empty() ? "Root Cause (first observed failure):\n" : "Hang:\n";
  text += describe_root_cause(report);
  text += describe_others("Had reported an error before that, but had not exited", report.not_exited,
                          report.root_cause);
  text += describe_others("Other Failures", report.others, report.root_cause);
  if (!report.ended_by_us.empty())
    text += thin_rule + "ended by ddprun: rank " + joined(number_ranges(report.ended_by_us), ", ") + "\n";
  if (!report.succeeded.empty())
    text += thin_rule + "had ended before, with exit code 0: rank " +
            joined(number_ranges(report.succeeded), ", ") + "\n";
  constexpr std::size_t kMostStragglers = 5;
  if (!report.stragglers.empty()) text += thin_rule;
  for (std::size_t i = 0; i < std::min(report.stragglers.size(), kMostStragglers); ++i)
    text += describe(report.stragglers[i]) + "\n";
  return text + rule;
}

std::string end_hint(const ExitStatus& status) {
  if (status.kind == ExitStatus::Kind::kKilled) return signal_hint(status.signal);
  if (status.code == 126) return "if the program is a shell script, a command in it cannot be executed";
  if (status.code == 127) return "if the program is a shell script, a command in it was not found";
  const int signal = status.code - 128;
  if (signal < 1 || signal > SIGSYS) return "";
  const std::string hint = signal_hint(signal);
  return hint.empty() ? "" : "shells report " + signal_name(signal) + " this way: " + hint;
}

std::string core_place(std::string_view pattern, pid_t pid, const std::filesystem::path& cwd) {
  if (pattern.empty()) return "";
  if (pattern[0] == '@')  // since Linux 6.16, a socket
    return "handed to " +
           std::string(pattern.substr(std::min(pattern.find_first_not_of('@'), pattern.size())));
  if (pattern[0] != '|') return cwd / pattern;
  const std::string_view command = pattern.substr(1, pattern.find(' ') - 1);
  const std::string name(command.substr(command.rfind('/') + 1));
  if (name == "systemd-coredump") return "handed to " + name + ": coredumpctl info " + std::to_string(pid);
  if (name == "apport") return "handed to " + name + ": see /var/crash";
  return "handed to " + name;
}

std::string core_place(pid_t pid) {
  const std::string pattern = read_or_empty("/proc/sys/kernel/core_pattern");
  std::error_code gone;
  return core_place(pattern.substr(0, pattern.find('\n')), pid, std::filesystem::current_path(gone));
}

WorkerError error_for_parent(const FailureReport& report) {
  const WorkerRecord& root = report.root_cause;
  WorkerError error;
  if (root.error.error) {
    error = *root.error.error;
  } else {
    error.message = "rank " + std::to_string(root.rank) + " (pid " + std::to_string(root.pid) + ") of " +
                    report.program + " ended by " + describe(*root.status);
    error.timestamp = std::chrono::system_clock::to_time_t(root.time);
  }
  const ExitStatus& end = *root.status;
  error.error_code = end.kind == ExitStatus::Kind::kExited ? end.code : -end.signal;
  return error;
}

std::string pass_error_to_parent(const FailureReport& report, const std::string& error_file) {
  std::error_code unknown;
  const auto folder = std::filesystem::absolute(error_file, unknown).parent_path();
  if (unknown) return "the current folder is gone, so the error is not passed on";
  if (!std::filesystem::exists(folder, unknown) && !unknown)
    return "there is no folder " + printable(folder.string()) +
           ", so the error is not passed on; is the variable left over from another job?";
  try {
    write_error_file(error_file, error_for_parent(report));
    return "";
  } catch (const std::exception& error) {
    return std::string("cannot pass the error on to the launcher above: ") + error.what();
  }
}

}  // namespace ddprun::launcher
