#include "launcher/host/cpus.h"

#include <dlfcn.h>
#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <sstream>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace {

/// The hwloc functions that we use, while the library is loaded.
class Hwloc {
 public:
  explicit Hwloc(const char* name) : library_(::dlopen(name, RTLD_LAZY | RTLD_LOCAL), ::dlclose) {
    if (library_ == nullptr)
      throw UsageError(std::string("--numa-binding needs libhwloc (Debian: libhwloc15): ") + ::dlerror());
    load(api_version, "hwloc_get_api_version");
    load(init, "hwloc_topology_init");
    load(set_flags, "hwloc_topology_set_flags");
    load(discover, "hwloc_topology_load");
    load(destroy, "hwloc_topology_destroy");
    load(type_depth, "hwloc_get_type_depth");
    load(count_at, "hwloc_get_nbobjs_by_depth");
    load(object_at, "hwloc_get_obj_by_depth");
    load(next_bit, "hwloc_bitmap_next");
    if (api_version() >> 16 != HWLOC_API_VERSION >> 16) throw UsageError(wrong_version());
  }

  decltype(&hwloc_get_api_version) api_version = nullptr;
  decltype(&hwloc_topology_init) init = nullptr;
  decltype(&hwloc_topology_set_flags) set_flags = nullptr;
  decltype(&hwloc_topology_load) discover = nullptr;
  decltype(&hwloc_topology_destroy) destroy = nullptr;
  decltype(&hwloc_get_type_depth) type_depth = nullptr;
  decltype(&hwloc_get_nbobjs_by_depth) count_at = nullptr;
  decltype(&hwloc_get_obj_by_depth) object_at = nullptr;
  decltype(&hwloc_bitmap_next) next_bit = nullptr;

 private:
  static std::string wrong_version() { return "--numa-binding needs libhwloc 2 (Debian: libhwloc15)"; }

  template <typename Function>
  void load(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(library_.get(), name));
    if (function == nullptr) throw UsageError(wrong_version());
  }

  std::unique_ptr<void, int (*)(void*)> library_;
};

/// A discovered topology. All its lists contain only allowed CPUs.
class Discovery {
 public:
  Discovery(const Hwloc& hwloc, const CpuList& allowed) : hwloc_(hwloc), allowed_(allowed) {
    if (hwloc_.init(&topology_) != 0) fail("hwloc_topology_init");
    // Include nodes without an allowed CPU, since a GPU may be there. Do not rebind this thread for the
    // discovery by CPUID (a flag that hwloc before 2.5 does not know).
    constexpr unsigned long kAll = HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED;
    if (hwloc_.set_flags(topology_, kAll | HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING) != 0)
      hwloc_.set_flags(topology_, kAll);
    if (hwloc_.discover(topology_) != 0) {
      const int error = errno;
      hwloc_.destroy(topology_);
      errno = error;
      fail("hwloc_topology_load");
    }
  }
  ~Discovery() { hwloc_.destroy(topology_); }
  Discovery(const Discovery&) = delete;
  Discovery& operator=(const Discovery&) = delete;

  std::vector<hwloc_obj_t> objects(hwloc_obj_type_t type) const {
    std::vector<hwloc_obj_t> list;
    const int depth = hwloc_.type_depth(topology_, type);
    if (depth == HWLOC_TYPE_DEPTH_UNKNOWN || depth == HWLOC_TYPE_DEPTH_MULTIPLE) return list;
    const unsigned count = hwloc_.count_at(topology_, depth);
    for (unsigned i = 0; i < count; ++i) list.push_back(hwloc_.object_at(topology_, depth, i));
    return list;
  }

  CpuList all_cpus(hwloc_obj_t object) const {
    CpuList cpus;
    if (object->cpuset == nullptr) return cpus;
    for (int cpu = hwloc_.next_bit(object->cpuset, -1); cpu >= 0; cpu = hwloc_.next_bit(object->cpuset, cpu))
      cpus.push_back(cpu);
    return cpus;
  }

  CpuList cpus(hwloc_obj_t object) const { return common_cpus(all_cpus(object), allowed_); }

  /// The objects with an allowed CPU, of the first type that has any.
  std::vector<CpuList> groups(std::initializer_list<hwloc_obj_type_t> types) const {
    std::vector<CpuList> list;
    for (const hwloc_obj_type_t type : types) {
      for (const hwloc_obj_t object : objects(type))
        if (CpuList group = cpus(object); !group.empty()) list.push_back(std::move(group));
      if (!list.empty()) break;
    }
    return list;
  }

 private:
  [[noreturn]] static void fail(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
  }

  const Hwloc& hwloc_;
  const CpuList& allowed_;
  hwloc_topology_t topology_ = nullptr;
};

bool overlap(const CpuList& a, const CpuList& b) { return std::ranges::find_first_of(a, b) != a.end(); }

CpuList merged(const CpuList& a, const CpuList& b) {
  CpuList both;
  std::ranges::set_union(a, b, std::back_inserter(both));
  return both;
}

std::vector<NumaNode> read_nodes(const Discovery& found) {
  std::vector<NumaNode> nodes;
  for (const hwloc_obj_t object : found.objects(HWLOC_OBJ_NUMANODE)) {
    const CpuList all = found.all_cpus(object);
    if (all.empty()) continue;  // memory only
    NumaNode node{static_cast<int>(object->os_index), found.cpus(object), {}};
    for (const hwloc_obj_t package : found.objects(HWLOC_OBJ_PACKAGE))
      if (overlap(all, found.all_cpus(package)))
        node.package_cpus = merged(node.package_cpus, found.cpus(package));
    if (node.package_cpus.empty()) node.package_cpus = node.cpus;
    nodes.push_back(std::move(node));
  }
  return nodes;
}

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

std::vector<std::string> number_ranges(const std::vector<int>& numbers) {
  std::vector<std::string> ranges;
  for (std::size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    for (end = begin + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    ranges.push_back(std::to_string(numbers[begin]));
    if (end - begin > 1) ranges.back() += "-" + std::to_string(numbers[end - 1]);
  }
  return ranges;
}

std::string describe_cpus(const CpuList& cpus) {
  return cpus.empty() ? "none" : joined(number_ranges(cpus), ",");
}

CpuList common_cpus(const CpuList& a, const CpuList& b) {
  CpuList both;
  std::ranges::set_intersection(a, b, std::back_inserter(both));
  return both;
}

CpuSet::CpuSet(const CpuList& cpus) {
  const int highest = cpus.empty() ? 0 : *std::ranges::max_element(cpus);
  const std::size_t bytes = CPU_ALLOC_SIZE(std::max(highest + 1, CPU_SETSIZE));
  words_.resize(bytes / sizeof(unsigned long));
  for (const int cpu : cpus)
    CPU_SET_S(static_cast<std::size_t>(cpu), bytes, reinterpret_cast<cpu_set_t*>(words_.data()));
}

CpuMap read_cpu_map(const CpuList& allowed, const char* library) {
  const Hwloc hwloc(library);
  const Discovery found(hwloc, allowed);
  CpuMap map;
  map.nodes = read_nodes(found);
  map.packages = found.groups({HWLOC_OBJ_PACKAGE, HWLOC_OBJ_MACHINE});
  map.caches = found.groups({HWLOC_OBJ_L5CACHE, HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE,
                             HWLOC_OBJ_PACKAGE, HWLOC_OBJ_MACHINE});
  map.cores = found.groups({HWLOC_OBJ_CORE, HWLOC_OBJ_PU});
  return map;
}

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
