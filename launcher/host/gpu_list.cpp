#include "launcher/host/gpu_list.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include <ddprun/common/errors.h>

namespace ddprun::launcher {
namespace {

constexpr const char* kVariable = "CUDA_VISIBLE_DEVICES";

bool starts_with(std::string_view text, std::string_view beginning) {
  return text.substr(0, beginning.size()) == beginning;
}

std::string without_blanks(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::vector<std::string> entries_of(const std::string& list) {
  std::vector<std::string> entries;
  for (std::size_t begin = 0; begin <= list.size();) {
    const auto end = std::min(list.find(',', begin), list.size());
    entries.push_back(without_blanks(list.substr(begin, end - begin)));
    begin = end + 1;
  }
  return entries;
}

/// The one GPU for which fits() holds; nullopt if there are none or several.
template <typename Fits>
std::optional<int> only_one(const std::vector<Gpu>& host, Fits fits) {
  std::optional<int> match;
  for (std::size_t i = 0; i < host.size(); ++i) {
    if (!fits(host[i])) continue;
    if (match) return {};
    match = static_cast<int>(i);
  }
  return match;
}

/// The GPU of a MIG instance: "MIG-UUID", or of drivers before 470 "MIG-GPU-UUID/INSTANCE/COMPUTE".
std::optional<int> find_mig(const std::vector<Gpu>& host, const std::string& entry) {
  const auto by_uuid = only_one(host, [&](const Gpu& gpu) {
    return std::any_of(gpu.mig_uuids.begin(), gpu.mig_uuids.end(),
                       [&](const std::string& uuid) { return starts_with(uuid, entry); });
  });
  if (by_uuid) return by_uuid;
  const std::string parent = entry.substr(4, entry.find('/') - 4);
  return only_one(host, [&](const Gpu& gpu) { return gpu.uuid == parent; });
}

std::optional<int> find_gpu(const std::vector<Gpu>& host, const std::string& entry) {
  if (starts_with(entry, "GPU-"))
    return only_one(host, [&](const Gpu& gpu) { return starts_with(gpu.uuid, entry); });
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (error != std::errc() || end != entry.data() + entry.size() || index >= host.size()) return {};
  return static_cast<int>(index);
}

/// Whether both name the same: a GPU may be spelt in two ways, and has several instances.
bool is_same(const VisibleGpu& a, const VisibleGpu& b) {
  if (a.name == b.name) return true;
  return a.gpu >= 0 && a.gpu == b.gpu && !a.is_mig() && !b.is_mig();
}

void add(std::vector<VisibleGpu>& list, VisibleGpu gpu, const std::string& value) {
  for (const VisibleGpu& other : list)
    if (is_same(other, gpu))
      throw UsageError(std::string(kVariable) + ": expected each GPU once, got '" + gpu.name + "' after '" +
                       other.name + "' in '" + value + "'");
  list.push_back(std::move(gpu));
}

/// The entries without knowing the GPUs.
std::vector<VisibleGpu> as_written(const std::string& value) {
  std::vector<VisibleGpu> list;
  for (const std::string& entry : entries_of(value)) {
    if (entry.empty() || entry == "-1") break;
    add(list, {entry, -1}, value);
  }
  return list;
}

}  // namespace

std::vector<VisibleGpu> visible_gpus(const std::vector<Gpu>& host,
                                     const std::optional<std::string>& visible) {
  std::vector<VisibleGpu> list;
  if (!visible) {
    for (std::size_t i = 0; i < host.size(); ++i) list.push_back({std::to_string(i), static_cast<int>(i)});
    return list;
  }
  if (host.empty()) return list;
  for (const std::string& entry : entries_of(*visible)) {
    const bool mig = starts_with(entry, "MIG-");
    const auto gpu = mig ? find_mig(host, entry) : find_gpu(host, entry);
    if (!gpu && !mig) break;
    add(list, {entry, gpu.value_or(-1)}, *visible);
  }
  return list;
}

std::vector<VisibleGpu> gpus_of_one_process(const std::vector<VisibleGpu>& visible) {
  const auto mig =
      std::find_if(visible.begin(), visible.end(), [](const VisibleGpu& g) { return g.is_mig(); });
  return {visible.begin(), mig == visible.begin() && mig != visible.end() ? mig + 1 : mig};
}

std::vector<int> numa_nodes(const std::vector<Gpu>& host, const std::vector<VisibleGpu>& visible) {
  std::vector<int> nodes;
  for (const VisibleGpu& gpu : visible)
    nodes.push_back(gpu.gpu < 0 ? -1 : host[static_cast<std::size_t>(gpu.gpu)].numa_node);
  return nodes;
}

std::vector<std::string> one_gpu_each(const std::vector<Gpu>& host, const std::optional<std::string>& visible,
                                      int workers) {
  const auto list = host.empty() && visible ? as_written(*visible) : visible_gpus(host, visible);
  if (list.size() < static_cast<std::size_t>(workers))
    throw UsageError("--virtual-local-rank: expected a GPU for each of " + std::to_string(workers) +
                     " workers, got " + std::to_string(list.size()) +
                     (visible ? " (" + std::string(kVariable) + "='" + *visible + "')" : ""));
  std::vector<std::string> names;
  for (int i = 0; i < workers; ++i) names.push_back(list[static_cast<std::size_t>(i)].name);
  return names;
}

std::string describe(const Gpu& gpu) { return "GPU " + std::to_string(gpu.index) + " (" + gpu.bus_id + ")"; }

}  // namespace ddprun::launcher
