#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <ddprun/common/moved_files.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/common/text.h>
#include "launcher/events/launch_error.h"
#include "launcher/plan/launch_plan.h"

namespace ddprun::launcher {
namespace {

/// 0 if the file can be executed, else errno.
int executable_error(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return EISDIR;
  if (!S_ISREG(info.st_mode)) return EACCES;
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

/// ": did you mean train.py?" where the file's folder has one with a similar name.
std::string similar_file(const std::filesystem::path& path) {
  std::vector<std::string> names;
  for (const auto& entry : folder_entries(path.has_parent_path() ? path.parent_path() : "."))
    names.push_back(entry.filename().string());
  std::ranges::sort(names);
  return settings::did_you_mean(path.filename().string(), names);
}

[[noreturn]] void fail(const std::string& path, int error) {
  const std::string reason = error == EISDIR   ? "it is a folder; name the program in it"
                             : error == ENOENT ? std::strerror(error) + similar_file(path)
                                               : std::strerror(error);
  throw LaunchError(LaunchError::code_of_exec_error(error), "cannot run " + path + ": " + reason);
}

/// The Python for scripts and modules.
std::string default_python() {
#ifdef DDPRUN_IN_WHEEL  // pip has installed ddprun next to its environment's Python
  std::error_code error;
  const auto ours = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "python3";
  if (!error && executable_error(ours) == 0) return ours;
#endif
  return "python3";
}

constexpr const char* kHidden = "***";

/// The end of the first word that names a secret, or npos.
std::size_t secret_name_end(std::string_view text) {
  const std::string lower = lower_case(std::string(text));
  auto first = std::string::npos;
  for (const std::string_view part : {"token", "secret", "key", "password", "passwd", "credential"})
    if (const auto found = lower.find(part); found != std::string::npos)
      first = std::min(first, found + part.size());
  return first;
}

/// Hides the password in every URL.
std::string without_url_passwords(std::string word) {
  for (auto scheme = word.find("://"); scheme != std::string::npos; scheme = word.find("://", scheme + 3)) {
    const auto begin = scheme + 3;
    const auto end = std::min(word.find_first_of("/?# ", begin), word.size());
    const std::string_view authority = std::string_view(word).substr(begin, end - begin);
    const auto at = authority.rfind('@');
    const auto colon = authority.find(':');
    if (at != std::string_view::npos && colon < at) word.replace(begin + colon + 1, at - colon - 1, kHidden);
  }
  return word;
}

std::string quoted_for_shell(const std::string& word) {
  const bool globs = word.find('*') != word.find(kHidden);  // a '*' other than ours
  const bool plain = !word.empty() && !globs && std::ranges::all_of(word, [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./=:,+@%*").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

std::string find_program(const std::string& name, const std::string& search_path) {
  if (name.empty()) fail("''", ENOENT);
  if (name.find('/') != std::string::npos || name == "." || name == "..") {
    if (const int error = executable_error(name)) fail(name, error);
    return name;
  }
  std::string refused;  // the first one that exists but cannot be executed
  int refusal = 0;
  for (const std::string& folder : split(search_path, ':')) {
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    const int error = executable_error(path);
    if (error == 0) return path;
    if (refusal == 0 && error != ENOENT && error != ENOTDIR) {
      refused = path;
      refusal = error;
    }
  }
  if (refusal != 0) fail(refused, refusal);
  std::string hint;
  for (const std::string& meant : {name, name + ".py"}) {
    const int error = executable_error(meant);
    if (error == EISDIR) hint = "; here it is a folder: name the program in it";
    if (error == 0 || error == EACCES) hint = "; did you mean ./" + meant + "?";
  }
  throw LaunchError(LaunchError::kNotFound, "cannot run " + name + ": not found in PATH" + hint);
}

Program find_program(const Options& options, const EnvLookup& environment) {
  const std::string search_path = environment("PATH").value_or("/bin:/usr/bin");
  if (options.program_kind == ProgramKind::kExecutable)
    return {find_program(options.program[0], search_path), options.program};
  const auto chosen = environment("PYTHON_EXEC");
  const std::string python = chosen && !chosen->empty() ? *chosen : default_python();
  Program program{find_program(python, search_path), {python, "-u"}};
  if (options.program_kind == ProgramKind::kPythonModule) {
    program.argv.emplace_back("-m");
  } else if (::access(options.program[0].c_str(), R_OK) != 0) {
    fail(options.program[0], errno);
  }
  program.argv.insert(program.argv.end(), options.program.begin(), options.program.end());
  return program;
}

bool is_secret_name(std::string_view name) { return secret_name_end(name) != std::string::npos; }

std::string redacted_variable(const std::string& variable) {
  // URLs first: a password may look like a name, as in redis://:key=V@host.
  const std::string shown = without_url_passwords(variable);
  // Any '=', to catch --env=API_KEY=V and ?page=1&token=V too.
  const auto name_end = secret_name_end(shown);
  const auto equals = name_end == std::string::npos ? name_end : shown.find('=', name_end);
  return equals == std::string::npos ? shown : shown.substr(0, equals + 1) + kHidden;
}

std::vector<std::string> redacted(const std::vector<std::string>& arguments) {
  std::vector<std::string> shown;
  bool value_follows = false;  // the previous word was "--api-key"
  for (const std::string& word : arguments) {
    const bool is_flag = word.size() > 1 && word[0] == '-';
    const bool is_long_flag = word.substr(0, 2) == "--";
    const bool names_secret = is_flag && word.find('=') == std::string::npos && is_secret_name(word);
    if (value_follows && !is_long_flag) {
      shown.emplace_back(kHidden);
      value_follows = names_secret;
      continue;
    }
    value_follows = names_secret;
    shown.push_back(redacted_variable(word));
  }
  return shown;
}

std::string shown_command(const std::vector<std::string>& arguments) {
  std::string line;
  for (const std::string& word : redacted(arguments))
    line += (line.empty() ? "" : " ") + quoted_for_shell(printable(word));
  return line;
}

}  // namespace ddprun::launcher
