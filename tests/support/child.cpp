#include "tests/support/child.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <thread>

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

namespace ddprun::test {
namespace {

constexpr const char* kMarker = "DDPRUN_TEST_MARKER";

std::string unique_marker() {
  static std::atomic<int> count{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return std::to_string(::getpid()) + "." + std::to_string(++count) + "." + std::to_string(now);
}

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Whether the process has the variable; false for a zombie and for a process that ended meanwhile.
bool has_variable(const std::filesystem::path& process, const std::string& variable) try {
  const std::string environment = '\0' + read_file(process / "environ");
  return environment.find('\0' + variable + '\0') != std::string::npos;
} catch (const std::exception&) {
  return false;
}

/// Boost's own search needs its filesystem library. Returns the name itself if it is not found.
std::string find_program(const std::string& name) {
  const char* folders = std::getenv("PATH");
  if (name.find('/') != std::string::npos || !folders) return name;
  std::istringstream path(folders);
  for (std::string folder; std::getline(path, folder, ':');)
    if (const auto file = folder + "/" + name; ::access(file.c_str(), X_OK) == 0) return file;
  return name;
}

bp::environment environment_of(const Command& command, const std::filesystem::path& temp_folder,
                               const std::string& marker) {
  bp::environment environment = boost::this_process::environment();
  environment["TMPDIR"] = temp_folder.string();
  environment[kMarker] = marker;
  for (const auto& [name, value] : command.env) {
    if (value) {
      environment[name] = *value;
    } else {
      environment.erase(name);
    }
  }
  return environment;
}

UniqueFd open_file(const std::filesystem::path& path, int flags) {
  UniqueFd file(::open(path.c_str(), flags | O_CLOEXEC, 0666));
  if (!file) throw std::runtime_error("cannot open " + path.string());
  return file;
}

std::string read_if_there(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? read_file(path) : "";
}

}  // namespace

bool wait_until(const std::function<bool()>& condition, std::chrono::milliseconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

int count_of(const std::string& text, const std::string& in) {
  int count = 0;
  for (auto at = in.find(text); at != std::string::npos; at = in.find(text, at + text.size())) ++count;
  return count;
}

Child::Child(const Command& command) : folder_("ddprun_test"), marker_(unique_marker()) {
  std::filesystem::create_directory(temp_folder());
  write_file_atomic(folder_.path() / "in", command.stdin_text);
  const auto& folder = folder_.path();
  const UniqueFd in = open_file(folder / "in", O_RDONLY),
                 out = open_file(folder / "out", O_WRONLY | O_CREAT | O_APPEND),
                 err = open_file(folder / "err", O_WRONLY | O_CREAT | O_APPEND);
  const auto environment = environment_of(command, temp_folder(), marker_);
  const std::vector<std::string> arguments(command.argv.begin() + 1, command.argv.end());
  // Catch2 handles signals, but one that arrives between fork and exec must reach the program.
  sigset_t all, before;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const auto at_exec = [&](auto&) {
    for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    if (command.in_child) command.in_child();
  };
  std::error_code error;
  bp::child child(bp::exe = find_program(command.argv.at(0)), bp::args = arguments, environment,
                  bp::posix::fd.bind(STDIN_FILENO, in.get()), bp::posix::fd.bind(STDOUT_FILENO, out.get()),
                  bp::posix::fd.bind(STDERR_FILENO, err.get()), bp::extend::on_exec_setup = at_exec, error);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (error) {
    status_ = ExitStatus::exited(127);
  } else {
    pid_ = child.id();
    child.detach();  // Boost's waits have no reliable deadline, and lose the signal that ended the program
  }
}

Child::~Child() {
  for (const pid_t pid : processes()) ::kill(pid, SIGKILL);
  if (!status_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

void Child::send_signal(int signal) const {
  if (!status_) ::kill(pid_, signal);
}

std::string Child::out() const { return read_if_there(folder_.path() / "out"); }
std::string Child::err() const { return read_if_there(folder_.path() / "err"); }

bool Child::wait_for_output(const std::string& text, int times, std::chrono::milliseconds deadline) const {
  return wait_until([&] { return count_of(text, out()) >= times; }, deadline);
}

ExitStatus Child::wait(std::chrono::milliseconds deadline) {
  const bool ended = wait_until(
      [&] {
        int status = 0;
        if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_)
          status_ = ExitStatus::from_wait_status(status);
        return status_.has_value();
      },
      deadline);
  if (!ended)
    throw std::runtime_error("still running at the deadline; stdout: " + out() + " stderr: " + err());
  return *status_;
}

std::vector<pid_t> Child::processes() const {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (is_number(name) && has_variable(entry.path(), std::string(kMarker) + "=" + marker_))
      found.push_back(std::stoi(name));
  }
  return found;
}

bool Child::nothing_left() const {
  return wait_until([&] { return processes().empty(); }, std::chrono::seconds(5));
}

}  // namespace ddprun::test
