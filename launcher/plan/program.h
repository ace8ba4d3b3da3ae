#pragma once

#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>
#include "launcher/cli/options.h"

namespace ddprun::launcher {

/// Finds the program to run as execvp(3) would: a name with a slash is a path already, any other is looked
/// for in the folders of search_path ($PATH). Done once for all workers, so that a missing program is said
/// once.
///
/// throws LaunchError: not found (127), or there but not executable (126)
std::string find_program(const std::string& name, const std::string& search_path);

/// What every worker is to execute.
struct Program {
  std::string path;  ///< found
  std::vector<std::string>
      argv;  ///< the user's words, after those that start Python if it is a script or module
};

/// A script and a module are run by `$PYTHON_EXEC -u` or `python3 -u`, as torchrun runs them by its own
/// Python. throws LaunchError: Python, the program or the script is not found (127), or cannot be used (126)
Program find_program(const Options& options, const EnvLookup& environment);

}  // namespace ddprun::launcher
