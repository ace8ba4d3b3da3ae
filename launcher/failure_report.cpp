#include "launcher/failure_report.h"

#include <algorithm>
#include <csignal>
#include <ctime>

namespace ddprun {
namespace {

std::string utc(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

/// Text of a worker without control characters, its further lines indented below the first.
std::string printable(const std::string& text, const std::string& indent) {
  std::string shown;
  for (const char c : text) {
    if (c == '\n') {
      shown += "\n" + indent;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      shown += (byte < 0x20 && c != '\t') || byte == 0x7f ? '?' : c;
    }
  }
  return shown;
}

std::string describe_end(const FailedWorker& worker) {
  std::string text = describe(worker.status);
  if (worker.status == ExitStatus::killed(SIGKILL)) text += ", not sent by ddprun: possibly the OOM killer";
  if (worker.asked_to_end) text += ", after ddprun told it to end";
  return text;
}

std::string describe_error(const ErrorFileContent& error, const std::string& indent) {
  if (error.error) return printable(error.error->message, indent);
  if (!error.problem.empty()) return "the worker's error file " + printable(error.problem, indent);
  return "";
}

std::string ranks(const std::vector<int>& list) {
  std::string text;
  for (const int rank : list) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

bool ended_as_told(const ExitStatus& status, const std::vector<int>& signals) {
  if (status.success()) return true;
  return std::any_of(signals.begin(), signals.end(),
                     [&](int signal) { return to_exit_code(status) == 128 + signal; });
}

std::string describe(const FailureReport& report) {
  const std::string line(72, '=');
  const std::string indent(14, ' ');
  const FailedWorker& root = report.root_cause;
  std::string text = line + "\n" + printable(report.program, "") + " FAILED\n";
  text += "Root Cause (first observed failure):\n";
  text += "  rank      : " + std::to_string(root.rank) + " (local_rank: " + std::to_string(root.local_rank) +
          ", pid: " + std::to_string(root.pid) + ")\n";
  text += "  ended by  : " + describe_end(root) + "\n";
  text += "  host      : " + report.host + "\n";
  text += "  time      : " + utc(root.time) + "\n";
  if (const auto error = describe_error(root.error, indent); !error.empty())
    text += "  error     : " + error + "\n";
  if (!report.others.empty()) text += "Other Failures:\n";
  for (const FailedWorker& worker : report.others) {
    text += "  rank " + std::to_string(worker.rank) + " (local_rank: " + std::to_string(worker.local_rank) +
            ", pid: " + std::to_string(worker.pid) + "): " + describe_end(worker);
    if (const auto error = describe_error(worker.error, "    "); !error.empty()) text += ": " + error;
    text += "\n";
  }
  if (!report.ended_by_us.empty()) text += "ended by ddprun: rank " + ranks(report.ended_by_us) + "\n";
  return text + line + "\n";
}

}  // namespace ddprun
