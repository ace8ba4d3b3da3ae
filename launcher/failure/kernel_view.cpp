#include "launcher/failure/kernel_view.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxThreads = 512;

/// Without the line's end; empty if it is gone or not for us.
std::string read_proc(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  std::string bytes = text.str();
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

bool catches(const std::string& status, int signal) {
  const auto mask = std::strtoull(field(status, "SigCgt").c_str(), nullptr, 16);
  return (mask >> (signal - 1) & 1) != 0;
}

std::string thread_line(const fs::path& thread) {
  std::string line = "  thread " + thread.filename().string() + " (" + read_proc(thread / "comm") +
                     "): " + field(read_proc(thread / "status"), "State");
  const std::string wait = read_proc(thread / "wchan");
  if (!wait.empty() && wait != "0") line += ", waits in " + wait;
  // The call's number and arguments, or "running".
  const std::string call = read_proc(thread / "syscall");
  if (!call.empty()) line += call == "running" ? ", on a CPU" : ", system call " + call;
  std::istringstream stack(read_proc(thread / "stack"));  // for the mightiest only
  for (std::string frame; std::getline(stack, frame);) line += "\n    " + frame;
  return line + "\n";
}

std::vector<fs::path> threads_of(const fs::path& process) {
  std::vector<fs::path> threads;
  std::error_code error;
  for (fs::directory_iterator entry(process / "task", error), end; !error && entry != end;
       entry.increment(error))
    threads.push_back(entry->path());
  return threads;
}

}  // namespace

KernelView kernel_view(pid_t pid) {
  const fs::path process = "/proc/" + std::to_string(pid);
  const std::string status = read_proc(process / "status");
  const std::string state = field(status, "State");
  KernelView view;
  if (state.empty() || state[0] == 'Z' || state[0] == 'X') return view;
  view.stopped = state[0] == 'T';
  view.catches_abort = catches(status, SIGABRT);
  std::error_code ignored;
  view.python = fs::read_symlink(process / "exe", ignored).filename().string().rfind("python", 0) == 0;

  const auto threads = threads_of(process);
  view.text = "process " + std::to_string(pid) + " (" + field(status, "Name") + "): " + state +
              ", threads: " + field(status, "Threads") + ", memory: " + field(status, "VmRSS") + "\n";
  for (std::size_t i = 0; i < std::min(threads.size(), kMaxThreads); ++i)
    view.text += thread_line(threads[i]);
  return view;
}

}  // namespace ddprun::launcher
