#include "launcher/failure/core_file.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kClockSlack{2};  // a file system's clock may lag behind

std::string escaped_for_glob(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("*?[\\").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string expand(char specifier, const CoreDump& dump) {
  switch (specifier) {
    case '%':
      return "%";
    case 'p':
      return std::to_string(dump.pid);
    case 's':
      return std::to_string(dump.signal);
    case 'h':
      return escaped_for_glob(dump.host);
    case 'u':
      return std::to_string(::getuid());
    case 'g':
      return std::to_string(::getgid());
    default:
      return std::string_view("PiIdetfEcCF").find(specifier) == std::string_view::npos ? "" : "*";
  }
}

/// What the first word of a pipe pattern runs, without its folder.
std::string handler_name(std::string_view command) {
  command = command.substr(0, command.find(' '));
  return std::string(command.substr(command.rfind('/') + 1));
}

std::vector<fs::path> matches(const std::string& pattern) {
  std::vector<fs::path> paths;
  glob_t found{};
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

std::chrono::system_clock::time_point time_of(const timespec& time) {
  return std::chrono::system_clock::from_time_t(time.tv_sec) + std::chrono::microseconds(time.tv_nsec / 1000);
}

/// When the file was written, if it can be this core.
std::optional<std::chrono::system_clock::time_point> written_at(const fs::path& path, const CoreDump& dump) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != ::geteuid()) return {};
  const auto time = time_of(info.st_mtim);
  if (time < dump.started_at - kClockSlack || time > dump.ended_at + kClockSlack) return std::nullopt;
  return time;
}

std::string read_setting(const char* path) {
  try {
    std::string text = read_file(path, 4096);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  } catch (const IoError&) {
    return "";
  }
}

}  // namespace

std::string core_glob(std::string_view pattern, bool uses_pid, const CoreDump& dump) {
  std::string name;
  bool has_pid = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      name += escaped_for_glob(std::string(1, pattern[i]));
    } else if (++i < pattern.size()) {
      has_pid = has_pid || pattern[i] == 'p';
      name += expand(pattern[i], dump);
    }
  }
  if (uses_pid && !has_pid) name += "." + std::to_string(dump.pid);
  return name.empty() || name[0] == '/' ? name : escaped_for_glob(dump.cwd.string()) + "/" + name;
}

std::optional<std::string> core_handler(std::string_view pattern, const CoreDump& dump) {
  if (pattern.empty()) return std::nullopt;
  if (pattern[0] == '@')  // since Linux 6.16, a socket
    return "handed to " +
           std::string(pattern.substr(std::min(pattern.find_first_not_of('@'), pattern.size())));
  if (pattern[0] != '|') return std::nullopt;
  const std::string name = handler_name(pattern.substr(1));
  if (name == "systemd-coredump")
    return "handed to " + name + ": coredumpctl info " + std::to_string(dump.pid);
  if (name == "apport") return "handed to " + name + ": see /var/crash";
  return "handed to " + name;
}

std::string find_core(const CoreDump& dump) {
  const std::string pattern = read_setting("/proc/sys/kernel/core_pattern");
  if (pattern.empty()) return "";
  if (const auto handler = core_handler(pattern, dump)) return *handler;
  const bool uses_pid = std::atoi(read_setting("/proc/sys/kernel/core_uses_pid").c_str()) != 0;
  fs::path best;
  auto best_distance = std::chrono::system_clock::duration::max();
  for (const fs::path& path : matches(core_glob(pattern, uses_pid, dump))) {
    const auto time = written_at(path, dump);
    if (!time || std::chrono::abs(*time - dump.ended_at) >= best_distance) continue;
    best = path;
    best_distance = std::chrono::abs(*time - dump.ended_at);
  }
  return best.string();
}

}  // namespace ddprun::launcher
