#pragma once

#include <string>

namespace ddprun {

/// Finds the program to run as execvp(3) would: a name with a slash is a path already, any other is looked
/// for in the folders of search_path ($PATH). Done once for all workers, so that a missing program is said
/// once.
///
/// throws LaunchError: not found (127), or there but not executable (126)
std::string find_program(const std::string& name, const std::string& search_path);

}  // namespace ddprun
