#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace ddprun::launcher {

/// Where the core of a process is, in words for the user: whom the kernel handed it to, or the path that
/// core_pattern(5) names, with its specifiers as they stand.
///
/// pattern  the content of /proc/sys/kernel/core_pattern; empty: the result is empty
/// cwd      where the process was started, for a relative pattern
std::string core_place(std::string_view pattern, pid_t pid, const std::filesystem::path& cwd);

/// core_place() with this host's pattern and the current folder.
std::string core_place(pid_t pid);

}  // namespace ddprun::launcher
