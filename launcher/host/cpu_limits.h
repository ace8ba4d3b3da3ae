#pragma once

#include <filesystem>
#include <optional>

#include "launcher/host/cpu_list.h"

namespace ddprun::launcher {

/// The CPUs that this process's affinity, and with it the cgroup's cpuset, leave it. Empty if the kernel will
/// not say.
CpuList allowed_cpus();

/// How many CPUs' worth of time the cgroups of this process leave it: the least of quota / period from its
/// own cgroup up to the highest one that it can see, of version 1 and 2. nullopt if none is set.
///
/// root    the file system's, for tests
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

/// How many processes can compute at once: no more than there are CPUs, nor than the quota (rounded up) pays
/// for, and at least 1.
int usable_cpus(const CpuList& allowed, const std::optional<double>& quota);

}  // namespace ddprun::launcher
