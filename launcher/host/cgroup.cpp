#include "launcher/host/cgroup.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>

#include <ddprun/common/files.h>
#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

/// The usual mount points of hierarchies that limit CPU time. Parsing /proc/self/mountinfo would double the
/// cost of every start.
struct CgroupMount {
  const char* point;
  bool version2;
};
constexpr CgroupMount kMounts[] = {{"sys/fs/cgroup", true},
                                   {"sys/fs/cgroup/unified", true},
                                   {"sys/fs/cgroup/cpu", false},
                                   {"sys/fs/cgroup/cpu,cpuacct", false}};

/// The cgroup's path below the mount point. A container may see the host's path but only its own part of the
/// hierarchy, so drops missing leading folders; the result may be empty.
fs::path below_mount(const fs::path& point, const std::string& cgroup) {
  if (cgroup.find("/..") != std::string::npos) return {};  // outside the visible part
  fs::path below = fs::path(cgroup).relative_path();
  while (!below.empty() && ::access((point / below).c_str(), F_OK) != 0)
    below = below.lexically_relative(*below.begin());
  return below == "." ? fs::path() : below;
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

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// Lines are "ID:CONTROLLERS:PATH"; version 2's line lists no controllers.
std::string own_cgroup(const std::string& cgroups, const std::string& controller) {
  for (const std::string& line : split(cgroups, '\n')) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? controllers.empty() : has_word(controllers, controller))
      return line.substr(second + 1);
  }
  return {};
}

std::optional<double> cpu_quota(const fs::path& root) {
  const std::string cgroups = read_or_empty(root / "proc/self/cgroup");
  std::optional<double> least;
  for (const CgroupMount& mount : kMounts) {
    const fs::path point = root / mount.point;
    if (::access(point.c_str(), F_OK) != 0) continue;
    fs::path below = below_mount(point, own_cgroup(cgroups, mount.version2 ? "" : "cpu"));
    for (;;) {
      const auto quota = quota_of(point / below, mount.version2);
      if (quota) least = std::min(*quota, least.value_or(*quota));
      if (below.empty()) break;
      below = below.parent_path();
    }
  }
  return least;
}

}  // namespace ddprun::launcher
