#include "launcher/host/topology.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <fstream>
#include <memory>
#include <utility>

#include <ddprun/common/worker_env.h>

namespace ddprun::launcher {
namespace fs = std::filesystem;
namespace {

namespace fs = std::filesystem;

std::string first_word(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

/// The entries NAME0, NAME1, ... of a folder.
std::vector<fs::path> numbered(const fs::path& folder, const std::string& name) {
  std::vector<fs::path> list;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string file = entry.path().filename();
    const bool is_number = std::all_of(file.begin() + static_cast<long>(std::min(name.size(), file.size())),
                                       file.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    if (file.size() > name.size() && file.starts_with(name) && is_number) list.push_back(entry.path());
  }
  return list;
}

std::vector<std::string> indices(std::size_t count) {
  std::vector<std::string> list;
  for (std::size_t i = 0; i < count; ++i) list.push_back(std::to_string(i));
  return list;
}

/// The items that a variable selects from a list by index, in its order, up to the first invalid entry.
std::vector<std::string> chosen(const std::vector<std::string>& list,
                                const std::optional<std::string>& value) {
  if (!value) return list;
  std::vector<std::string> result;
  for (const std::string& entry : entries_of(*value)) {
    const auto all = indices(list.size());
    const auto index = std::ranges::find(all, entry);
    if (index == all.end() && !entry.starts_with("GPU-")) break;
    result.push_back(index == all.end() ? entry : list[static_cast<std::size_t>(index - all.begin())]);
  }
  return result;
}

std::size_t tiles_of(const fs::path& card) {
  const auto hierarchy = process_env("ZE_FLAT_DEVICE_HIERARCHY");
  if (hierarchy && *hierarchy == "COMPOSITE") return 1;
  const auto tiles = std::max(numbered(card / "device", "tile").size(),  // the driver xe
                              numbered(card / "gt", "gt").size());       // i915
  return std::max<std::size_t>(tiles, 1);
}

}  // namespace

SysfsGpus amd_gpus(const fs::path& sysfs) {
  std::size_t count = 0;
  // CPU nodes have id 0; nodes of GPUs that a container may not use are unreadable.
  for (const fs::path& node : numbered(sysfs / "class/kfd/kfd/topology/nodes", ""))
    if (const std::string id = first_word(node / "gpu_id"); !id.empty() && id != "0") ++count;
  SysfsGpus gpus{"ROCR_VISIBLE_DEVICES", chosen(indices(count), process_env("ROCR_VISIBLE_DEVICES"))};
  const auto hip = process_env("HIP_VISIBLE_DEVICES");
  gpus.entries = chosen(gpus.entries, hip ? hip : process_env("CUDA_VISIBLE_DEVICES"));
  return gpus;
}

SysfsGpus intel_gpus(const fs::path& sysfs) {
  std::size_t count = 0;
  std::error_code ignored;
  for (const fs::path& card : numbered(sysfs / "class/drm", "card")) {
    const bool inside_cpu = fs::canonical(card / "device", ignored).filename() == "0000:00:02.0";
    if (first_word(card / "device/vendor") == "0x8086" && !inside_cpu) count += tiles_of(card);
  }
  const auto mask = process_env("ZE_AFFINITY_MASK");
  return {"ZE_AFFINITY_MASK", count > 0 && mask && !mask->empty() ? entries_of(*mask) : indices(count)};
}

CpuList allowed_cpus() {
  // The kernel rejects a set smaller than its own: grow until it fits.
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

int usable_cpus(const CpuList& allowed, const std::optional<double>& quota) {
  const int cpus = std::max(1, static_cast<int>(allowed.size()));
  if (!quota || *quota >= cpus) return cpus;
  const int whole = static_cast<int>(*quota);
  return std::max(1, whole < *quota ? whole + 1 : whole);
}

Topology detect_topology(WantedGpus wanted, const fs::path& sysfs) {
  Topology topology;
  topology.allowed_cpus = allowed_cpus();
  topology.cpus = usable_cpus(topology.allowed_cpus, cpu_quota());
  if (wanted == WantedGpus::kNone) return topology;
  if (wanted == WantedGpus::kAny) {
    GpuReading reading = read_gpus(sysfs);
    topology.host_gpus = std::move(reading.gpus);
    topology.gpu_problem = std::move(reading.problem);
    topology.visible = visible_gpus(topology.host_gpus, process_env("CUDA_VISIBLE_DEVICES"));
    topology.gpus = static_cast<int>(gpus_of_one_process(topology.visible).size());
    if (!topology.host_gpus.empty()) return topology;
  }
  SysfsGpus found = wanted == WantedGpus::kAny ? amd_gpus(sysfs) : SysfsGpus();
  if (found.entries.empty()) found = intel_gpus(sysfs);
  if (found.entries.empty()) return topology;
  topology.gpu_variable = found.variable;
  topology.gpus = static_cast<int>(found.entries.size());
  for (std::string& entry : found.entries) topology.visible.push_back({std::move(entry), -1});
  return topology;
}

}  // namespace ddprun::launcher
