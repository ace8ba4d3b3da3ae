#include "launcher/cpu_limits.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <memory>
#include <sstream>
#include <string>

#include "common/errors.h"
#include "common/files.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

/// A mounted cgroup hierarchy that limits CPU time.
struct Mount {
  bool version2 = false;
  std::string root;  ///< the cgroup that is seen at the mount point
  fs::path point;
};

/// Empty if it cannot be read: not every file is there in every cgroup.
std::string read_or_empty(const fs::path& path) {
  try {
    return read_file(path, std::size_t{1} << 24);
  } catch (const IoError&) {
    return {};
  }
}

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

/// A line of /proc/self/mountinfo: "31 23 0:28 ROOT POINT OPTIONS [TAGS...] - TYPE SOURCE SUPER_OPTIONS".
std::optional<Mount> parse_mount(const std::string& line) {
  const auto separator = line.find(" - cgroup");
  if (separator == std::string::npos) return {};  // most lines
  Mount mount;
  std::string skipped, point, type, super_options;
  std::istringstream(line) >> skipped >> skipped >> skipped >> mount.root >> point;
  std::istringstream(line.substr(separator + 3)) >> type >> skipped >> super_options;
  mount.version2 = type == "cgroup2";
  mount.point = point;
  if (!mount.version2 && (type != "cgroup" || !has_word(super_options, "cpu"))) return {};
  return mount;
}

/// Lines of /proc/self/cgroup are "ID:CONTROLLERS:PATH"; version 2 has no controllers in its one.
std::string own_cgroup(const std::string& cgroups, bool version2) {
  std::istringstream lines(cgroups);
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version2 ? controllers.empty() : has_word(controllers, "cpu")) return line.substr(second + 1);
  }
  return {};
}

/// Where a cgroup lies below the mount point: "" for the point itself, also if the cgroup is outside of what
/// is mounted here, as in some containers.
fs::path below_mount(const std::string& cgroup, const std::string& root) {
  const std::string prefix = root == "/" ? root : root + "/";
  if (cgroup.find("/..") != std::string::npos || cgroup.compare(0, prefix.size(), prefix) != 0) return {};
  return cgroup.substr(prefix.size());
}

std::optional<double> quota_of(const fs::path& folder, bool version2) {
  const std::string text = version2 ? read_or_empty(folder / "cpu.max")
                                    : read_or_empty(folder / "cpu.cfs_quota_us") + " " +
                                          read_or_empty(folder / "cpu.cfs_period_us");
  double quota = 0, period = 0;  // "max PERIOD" and "-1 PERIOD" mean none
  if (!(std::istringstream(text) >> quota >> period) || quota <= 0 || period <= 0) return {};
  return quota / period;
}

}  // namespace

CpuList allowed_cpus() {
  // The kernel refuses a set smaller than its own: grow until it fits.
  for (int bits = 1024; bits <= 1 << 20; bits *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(bits),
                                                               [](cpu_set_t* p) { CPU_FREE(p); });
    const std::size_t size = CPU_ALLOC_SIZE(bits);
    if (set && ::sched_getaffinity(0, size, set.get()) == 0) {
      CpuList cpus;
      for (int cpu = 0; cpu < bits; ++cpu)
        if (CPU_ISSET_S(static_cast<std::size_t>(cpu), size, set.get())) cpus.push_back(cpu);
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  return {};
}

std::optional<double> cpu_quota(const fs::path& root) {
  const std::string cgroups = read_or_empty(root / "proc/self/cgroup");
  std::istringstream lines(read_or_empty(root / "proc/self/mountinfo"));
  std::optional<double> least;
  for (std::string line; std::getline(lines, line);) {
    const auto mount = parse_mount(line);
    if (!mount) continue;
    fs::path below = below_mount(own_cgroup(cgroups, mount->version2), mount->root);
    for (;;) {
      const auto quota = quota_of(root / mount->point.relative_path() / below, mount->version2);
      if (quota) least = std::min(*quota, least.value_or(*quota));
      if (below.empty()) break;
      below = below.parent_path();
    }
  }
  return least;
}

int usable_cpus(const CpuList& allowed, const std::optional<double>& quota) {
  const int cpus = std::max(1, static_cast<int>(allowed.size()));
  if (!quota || *quota >= cpus) return cpus;
  return std::max(1, static_cast<int>(std::ceil(*quota)));
}

}  // namespace ddprun
