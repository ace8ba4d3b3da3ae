#include "launcher/failure/core_file.h"

#include <algorithm>
#include <fstream>

namespace ddprun::launcher {

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
  std::ifstream file("/proc/sys/kernel/core_pattern");
  std::string pattern;
  std::getline(file, pattern);
  return core_place(pattern, pid, std::filesystem::current_path());
}

}  // namespace ddprun::launcher
