#include "tests/support/child.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <thread>

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

/// True if the process is no zombie and has the variable; false also if it went meanwhile.
bool has_variable(const std::filesystem::path& process, const std::string& variable) try {
  const std::string environment = '\0' + read_file(process / "environ");
  return environment.find('\0' + variable + '\0') != std::string::npos;
} catch (const std::exception&) {
  return false;
}

void redirect(const std::filesystem::path& path, int flags, int target) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (fd < 0 || ::dup2(fd, target) < 0) ::_exit(120);
}

[[noreturn]] void become(const Command& command, const std::filesystem::path& folder,
                         const std::string& marker) {
  redirect(folder / "in", O_RDONLY, STDIN_FILENO);
  redirect(folder / "out", O_WRONLY | O_CREAT | O_APPEND, STDOUT_FILENO);
  redirect(folder / "err", O_WRONLY | O_CREAT | O_APPEND, STDERR_FILENO);
  ::setenv("TMPDIR", (folder / "tmp").c_str(), 1);
  ::setenv(kMarker, marker.c_str(), 1);
  for (const auto& [name, value] : command.env) {
    if (value) {
      ::setenv(name.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name.c_str());
    }
  }
  std::vector<char*> argv;
  for (const std::string& argument : command.argv) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  if (command.in_child) command.in_child();
  ::execvp(argv[0], argv.data());
  ::_exit(121);
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
  // Catch2 handles signals: one that comes between fork and exec must wait for the program.
  sigset_t all, before;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  pid_ = ::fork();
  if (pid_ == 0) {
    for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    become(command, folder_.path(), marker_);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (pid_ < 0) throw std::runtime_error("cannot fork");
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
