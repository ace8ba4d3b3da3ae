#include "launcher/host/gpu_list.h"

#include <algorithm>
#include <charconv>

#include <ddprun/common/errors.h>
#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace {

constexpr const char* kVariable = "CUDA_VISIBLE_DEVICES";

/// The only GPU for which fits() holds; nullopt for none or several.
std::optional<int> unique_match(const std::vector<Gpu>& host, const auto& fits) {
  std::optional<int> match;
  for (std::size_t i = 0; i < host.size(); ++i) {
    if (!fits(host[i])) continue;
    if (match) return {};
    match = static_cast<int>(i);
  }
  return match;
}

/// The GPU of a MIG instance: "MIG-UUID", or with drivers before 470 "MIG-GPU-UUID/INSTANCE/COMPUTE".
std::optional<int> find_mig(const std::vector<Gpu>& host, const std::string& entry) {
  const auto by_uuid = unique_match(host, [&](const Gpu& gpu) {
    return std::ranges::any_of(gpu.mig_uuids,
                               [&](const std::string& uuid) { return uuid.starts_with(entry); });
  });
  if (by_uuid) return by_uuid;
  const std::string parent = entry.substr(4, entry.find('/') - 4);
  return unique_match(host, [&](const Gpu& gpu) { return gpu.uuid == parent; });
}

std::optional<int> find_gpu(const std::vector<Gpu>& host, const std::string& entry) {
  if (entry.starts_with("GPU-"))
    return unique_match(host, [&](const Gpu& gpu) { return gpu.uuid.starts_with(entry); });
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (error != std::errc() || end != entry.data() + entry.size() || index >= host.size()) return {};
  return static_cast<int>(index);
}

/// Whether both name the same GPU or instance: a GPU can be spelled in two ways.
bool is_same(const VisibleGpu& a, const VisibleGpu& b) {
  if (a.name == b.name) return true;
  return a.gpu >= 0 && a.gpu == b.gpu && !a.is_mig() && !b.is_mig();
}

void add(std::vector<VisibleGpu>& list, VisibleGpu gpu, const std::string& value,
         const std::string& source = kVariable) {
  for (const VisibleGpu& other : list)
    if (is_same(other, gpu))
      throw UsageError(source + ": expected each GPU once, got '" + gpu.name + "' after '" + other.name +
                       "' in '" + value + "'");
  list.push_back(std::move(gpu));
}

/// The entries as they are, without a list of GPUs.
std::vector<VisibleGpu> as_written(const std::string& value) {
  std::vector<VisibleGpu> list;
  for (const std::string& entry : entries_of(value)) {
    if (entry.empty() || entry == "-1") break;
    add(list, {entry, -1}, value);
  }
  return list;
}

/// The visible GPU that an entry of --gpus names.
std::optional<VisibleGpu> find_visible(const std::vector<Gpu>& host, const std::vector<VisibleGpu>& visible,
                                       const std::string& entry) {
  if (const auto index = parse_integer<std::size_t>(entry, 0, SIZE_MAX))
    return *index < visible.size() ? std::optional(visible[*index]) : std::nullopt;
  const bool mig = entry.starts_with("MIG-");
  const auto gpu = mig ? find_mig(host, entry) : find_gpu(host, entry);
  if (!gpu) return {};
  for (const VisibleGpu& each : visible)
    if (each.is_mig() ? each.name == entry : each.gpu == *gpu) return VisibleGpu{entry, *gpu};
  return {};
}

std::string mebibytes(std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

void add_memory_problems(const Gpu& gpu, const std::vector<int>& ours, std::vector<std::string>& problems) {
  std::uint64_t named = 0;
  for (const GpuProcess& process : gpu.processes) {
    named += process.bytes;
    if (process.bytes <= kHeldMemoryTolerance) continue;
    if (std::ranges::find(ours, process.pid) != ours.end()) continue;
    problems.push_back(describe(gpu) + ": process " + std::to_string(process.pid) +
                       " (not of this job) holds " + mebibytes(process.bytes) + " of " +
                       mebibytes(gpu.memory_bytes));
  }
  if (gpu.used_bytes > named + kHeldMemoryTolerance)
    problems.push_back(describe(gpu) + ": " + mebibytes(gpu.used_bytes - named) + " of " +
                       mebibytes(gpu.memory_bytes) +
                       " are held by processes not visible here (another container?)");
}

}  // namespace

std::map<int, GpuUse> gpu_use() {
  std::map<int, GpuUse> use;
  for (const Gpu& gpu : read_gpus().gpus)
    for (const GpuProcess& process : gpu.processes) {
      GpuUse& of = use[process.pid];
      of.bytes += static_cast<double>(process.bytes);
      of.percent = std::max(of.percent, static_cast<double>(gpu.percent_used));
    }
  return use;
}

std::vector<std::string> entries_of(const std::string& list) {
  auto entries = split(list, ',');
  for (std::string& entry : entries) entry = trimmed(entry, " \t");
  return entries;
}

std::vector<VisibleGpu> visible_gpus(const std::vector<Gpu>& host,
                                     const std::optional<std::string>& visible) {
  std::vector<VisibleGpu> list;
  if (!visible) {
    for (std::size_t i = 0; i < host.size(); ++i) list.push_back({std::to_string(i), static_cast<int>(i)});
    return list;
  }
  if (host.empty()) return list;
  for (const std::string& entry : entries_of(*visible)) {
    const bool mig = entry.starts_with("MIG-");
    const auto gpu = mig ? find_mig(host, entry) : find_gpu(host, entry);
    if (!gpu && !mig) break;
    add(list, {entry, gpu.value_or(-1)}, *visible);
  }
  return list;
}

std::vector<VisibleGpu> chosen_gpus(const std::vector<Gpu>& host, const std::vector<VisibleGpu>& visible,
                                    const std::vector<std::string>& entries) {
  std::vector<VisibleGpu> list;
  for (const std::string& entry : entries) {
    const auto gpu = find_visible(host, visible, entry);
    if (!gpu)
      throw UsageError("--gpus: expected " +
                       (visible.empty() ? std::string("nothing, because no GPU is visible")
                                        : "numbers from 0 to " + std::to_string(visible.size() - 1) +
                                              ", or UUIDs of visible GPUs") +
                       ", got '" + printable(entry) + "'");
    add(list, *gpu, joined(entries, ","), "--gpus");
  }
  return list;
}

std::vector<VisibleGpu> gpus_of_one_process(const std::vector<VisibleGpu>& visible) {
  const auto mig = std::ranges::find_if(visible, [](const VisibleGpu& g) { return g.is_mig(); });
  return {visible.begin(), mig == visible.begin() && mig != visible.end() ? mig + 1 : mig};
}

std::vector<int> numa_nodes(const std::vector<Gpu>& host, const std::vector<VisibleGpu>& visible) {
  std::vector<int> nodes;
  for (const VisibleGpu& gpu : visible)
    nodes.push_back(gpu.gpu < 0 ? -1 : host[static_cast<std::size_t>(gpu.gpu)].numa_node);
  return nodes;
}

std::vector<std::string> one_gpu_each(const std::vector<VisibleGpu>& list, int workers,
                                      const std::string& why) {
  if (list.size() < static_cast<std::size_t>(workers))
    throw UsageError("--virtual-local-rank: expected a GPU for each worker (" + std::to_string(workers) +
                     "), found " + (list.empty() ? "none" : std::to_string(list.size())) + why);
  std::vector<std::string> names;
  for (int i = 0; i < workers; ++i) names.push_back(list[static_cast<std::size_t>(i)].name);
  return names;
}

std::vector<std::string> one_gpu_each(const std::vector<Gpu>& host, const std::optional<std::string>& visible,
                                      int workers) {
  return one_gpu_each(host.empty() && visible ? as_written(*visible) : visible_gpus(host, visible), workers,
                      visible ? " (" + std::string(kVariable) + "='" + *visible + "')" : "");
}

bool numbered_by_speed(const std::vector<Gpu>& host) {
  return std::ranges::adjacent_find(host, [](const Gpu& a, const Gpu& b) { return a.name != b.name; }) !=
         host.end();
}

std::string describe(const Gpu& gpu) { return "GPU " + std::to_string(gpu.index) + " (" + gpu.bus_id + ")"; }

std::vector<std::string> gpu_problems(const std::vector<Gpu>& host, const std::vector<VisibleGpu>& visible,
                                      const std::vector<int>& ours) {
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < host.size(); ++i) {
    const auto used = [&](const VisibleGpu& gpu) { return gpu.gpu == static_cast<int>(i); };
    const auto entry = std::ranges::find_if(visible, used);
    if (entry == visible.end()) continue;
    const Gpu& gpu = host[i];
    // Memory of a GPU divided into instances may legitimately belong to the neighbours.
    if (!entry->is_mig()) add_memory_problems(gpu, ours, problems);
    if (gpu.ecc_errors > 0)
      problems.push_back(describe(gpu) + ": uncorrected ECC errors since the driver was loaded: " +
                         std::to_string(gpu.ecc_errors));
  }
  return problems;
}

}  // namespace ddprun::launcher
