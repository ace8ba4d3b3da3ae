#include <ddprun/common/exit_status.h>

#include <sys/wait.h>

#include <cctype>
#include <csignal>
#include <cstring>

namespace ddprun {

ExitStatus ExitStatus::from_wait_status(int wait_status) {
  if (WIFSIGNALED(wait_status)) return killed(WTERMSIG(wait_status), WCOREDUMP(wait_status));
  return exited(WEXITSTATUS(wait_status));
}

std::string describe(const ExitStatus& status) {
  if (status.kind == ExitStatus::Kind::kExited) return "exit code " + std::to_string(status.code);
  return "signal " + std::to_string(status.signal) + " (" + signal_name(status.signal) + ")" +
         (status.core_dumped ? ", core dumped" : "");
}

int to_exit_code(const ExitStatus& status) {
  return status.kind == ExitStatus::Kind::kExited ? status.code : exit_code_of_signal(status.signal);
}

std::string signal_name(int signal) {
  if (const char* name = ::sigabbrev_np(signal)) return std::string("SIG") + name;
  if (signal >= SIGRTMIN && signal <= SIGRTMAX) return "SIGRTMIN+" + std::to_string(signal - SIGRTMIN);
  return "signal " + std::to_string(signal);
}

std::optional<int> signal_by_name(std::string_view name) {
  std::string wanted(name);
  for (char& c : wanted) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (wanted.substr(0, 3) != "SIG") wanted = "SIG" + wanted;
  for (int signal = 1; signal <= SIGRTMAX; ++signal)
    if (signal_name(signal) == wanted) return signal;
  return {};
}

}  // namespace ddprun
