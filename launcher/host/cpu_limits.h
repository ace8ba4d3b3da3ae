#pragma once

#include <filesystem>
#include <optional>

#include "launcher/host/cpu_list.h"

namespace ddprun::launcher {

/// The CPUs that this process may use by its affinity and its cgroup's cpuset. Empty if unknown.
CpuList allowed_cpus();

/// The CPU time that cgroups (v1 and v2) allow this process, in CPUs: the least quota / period from its own
/// cgroup up to the highest visible one. nullopt without a quota.
///
/// root    of the file system, for tests
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

/// How many processes can compute at once: the allowed CPUs, limited by the quota (rounded up); at least 1.
int usable_cpus(const CpuList& allowed, const std::optional<double>& quota);

}  // namespace ddprun::launcher
