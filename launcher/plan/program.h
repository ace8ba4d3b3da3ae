#pragma once

#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>
#include "launcher/cli/options.h"

namespace ddprun::launcher {

/// Finds the program as execvp(3) would: a name with a slash is a path; others are searched in search_path
/// ($PATH). throws LaunchError: not found (127) or not executable (126)
std::string find_program(const std::string& name, const std::string& search_path);

/// What every worker executes.
struct Program {
  std::string path;
  std::vector<std::string> argv;  ///< the user's words; for a script or module, after those that start Python
};

/// Scripts and modules run with `$PYTHON_EXEC -u` or `python3 -u`, as torchrun uses its own Python. In a
/// wheel, python3 is the one next to ddprun. throws LaunchError: Python, the program or the script is not
/// found (127) or not usable (126)
Program find_program(const Options& options, const EnvLookup& environment);

}  // namespace ddprun::launcher
