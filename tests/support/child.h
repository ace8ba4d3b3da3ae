#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <ddprun/common/error_file.h>
#include <ddprun/common/files.h>

namespace ddprun {
/// For Catch2's messages.
inline std::ostream& operator<<(std::ostream& out, const ExitStatus& status) {
  return out << describe(status);
}
}  // namespace ddprun

namespace ddprun::test {

/// Long enough for anything on a busy machine.
constexpr std::chrono::seconds kDeadline{30};

/// Polls until condition() is true. Returns false if the deadline passes.
bool wait_until(const std::function<bool()>& condition, std::chrono::milliseconds deadline = kDeadline);

/// A program to start. It inherits the test's environment with the changes given here.
struct Command {
  std::vector<std::string> argv;
  std::map<std::string, std::optional<std::string>> env = {};  ///< nullopt: not set
  std::string stdin_text = "";                                 ///< followed by end of file
  std::function<void()> in_child = {};  ///< runs in the new process before exec: limits, signals, descriptors
};

/// A started program, its output, and all its descendants: they inherit an environment variable with a unique
/// value. The destructor kills survivors.
class Child {
 public:
  /// If the program cannot be executed, the exit code is 127, as in a shell.
  explicit Child(const Command& command);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void send_signal(int signal) const;

  /// The output so far.
  std::string out() const;
  std::string err() const;

  /// Waits until stdout holds the text this many times. Returns false if the deadline passes.
  bool wait_for_output(const std::string& text, int times = 1,
                       std::chrono::milliseconds deadline = kDeadline) const;

  /// Waits for the program itself to end. throws std::runtime_error, with its output, if the deadline passes
  ExitStatus wait(std::chrono::milliseconds deadline = kDeadline);

  /// The program and all its living descendants, without zombies.
  std::vector<pid_t> processes() const;

  /// Whether all of them end within a few seconds.
  bool nothing_left() const;

  /// The program's $TMPDIR, which should be empty again at the end.
  std::filesystem::path temp_folder() const { return folder_.path() / "tmp"; }

 private:
  TempDir folder_;
  std::string marker_;
  pid_t pid_ = -1;
  std::optional<ExitStatus> status_;
};

/// How often text occurs.
int count_of(const std::string& text, const std::string& in);

}  // namespace ddprun::test
