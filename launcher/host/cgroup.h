#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace ddprun::launcher {

/// The path of this process's cgroup that has this controller in version 1, or in version 2 with ""; empty if
/// it has none.
///
/// cgroups  the text of /proc/self/cgroup
std::string own_cgroup(const std::string& cgroups, const std::string& controller);

/// Whether a list with commas has the word.
bool has_word(const std::string& list, const std::string& word);

/// The CPU time that cgroups (v1 and v2) allow this process, in CPUs: the least quota / period from its own
/// cgroup up to the highest visible one. nullopt without a quota.
///
/// root    of the file system, for tests
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace ddprun::launcher
