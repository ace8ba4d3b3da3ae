#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace ddprun::launcher {

/// The path of this process's cgroup for this version 1 controller, or in version 2 for ""; empty if none.
///
/// cgroups  the text of /proc/self/cgroup
std::string own_cgroup(const std::string& cgroups, const std::string& controller);

/// Whether a comma-separated list contains the word.
bool has_word(const std::string& list, const std::string& word);

/// The CPU time that cgroups (v1 and v2) allow this process, in CPUs: the smallest quota / period from its
/// own cgroup up to the highest visible one. nullopt without a quota.
///
/// root    of the file system, for tests
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace ddprun::launcher
