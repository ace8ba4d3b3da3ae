#include "launcher/plan/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <ddprun/common/text.h>
#include "launcher/events/launch_error.h"

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

[[noreturn]] void fail(const std::string& path, int error) {
  throw LaunchError(LaunchError::code_of_exec_error(error),
                    "cannot run " + path + ": " + std::strerror(error));
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

}  // namespace

std::string find_program(const std::string& name, const std::string& search_path) {
  if (name.empty()) fail("''", ENOENT);
  if (name.find('/') != std::string::npos) {
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
  const std::string hint =
      ::access(name.c_str(), F_OK) == 0 ? "; for the one in this folder write ./" + name : std::string();
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

}  // namespace ddprun::launcher
