#include "launcher/topology.h"

#include <dlfcn.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <memory>

#include "common/worker_env.h"

namespace ddprun {
namespace {

int allowed_cpus() {
  // The kernel refuses a set smaller than its own: grow until it fits.
  for (int bits = 1024; bits <= 1 << 20; bits *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(bits),
                                                               [](cpu_set_t* p) { CPU_FREE(p); });
    const std::size_t size = CPU_ALLOC_SIZE(bits);
    if (set && ::sched_getaffinity(0, size, set.get()) == 0) return std::max(1, CPU_COUNT_S(size, set.get()));
    if (errno != EINVAL) break;
  }
  return 1;
}

/// The four functions of NVML that listing GPUs takes (nvml.h is not needed to build).
class Nvml {
 public:
  using Device = struct nvmlDevice_st*;

  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    init_ = symbol<int()>("nvmlInit_v2");
    shutdown_ = symbol<int()>("nvmlShutdown");
    count_ = symbol<int(unsigned*)>("nvmlDeviceGetCount_v2");
    handle_ = symbol<int(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2");
    uuid_ = symbol<int(Device, char*, unsigned)>("nvmlDeviceGetUUID");
    ready_ = init_ && shutdown_ && count_ && handle_ && uuid_ && init_() == 0;
  }
  ~Nvml() {
    if (ready_) shutdown_();
    if (library_ != nullptr) ::dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::vector<std::string> uuids() const {
    std::vector<std::string> list;
    unsigned count = 0;
    if (!ready_ || count_(&count) != 0) return list;
    for (unsigned i = 0; i < count; ++i) {
      Device device = nullptr;
      char uuid[96] = "";
      if (handle_(i, &device) == 0 && uuid_(device, uuid, sizeof uuid) == 0) list.emplace_back(uuid);
    }
    return list;
  }

 private:
  template <typename Function>
  Function* symbol(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(library_, name));
  }

  void* library_;
  bool ready_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*handle_)(unsigned, Device*) = nullptr;
  int (*uuid_)(Device, char*, unsigned) = nullptr;
};

std::string without_blanks(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// The GPU that one entry of CUDA_VISIBLE_DEVICES names: its position in uuids.
std::optional<std::size_t> find_gpu(const std::vector<std::string>& uuids, const std::string& entry) {
  if (entry.rfind("GPU-", 0) == 0) {
    std::optional<std::size_t> match;
    for (std::size_t i = 0; i < uuids.size(); ++i) {
      if (uuids[i].rfind(entry, 0) != 0) continue;
      if (match) return {};  // ambiguous
      match = i;
    }
    return match;
  }
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (error != std::errc() || end != entry.data() + entry.size() || index >= uuids.size()) return {};
  return index;
}

}  // namespace

int visible_gpus(const std::vector<std::string>& uuids, const std::optional<std::string>& visible) {
  if (!visible) return static_cast<int>(uuids.size());
  std::vector<std::size_t> seen;
  for (std::size_t begin = 0; begin <= visible->size();) {
    const auto end = std::min(visible->find(',', begin), visible->size());
    const std::string entry = without_blanks(visible->substr(begin, end - begin));
    begin = end + 1;
    if (entry.rfind("MIG-", 0) == 0)
      return seen.empty() && !uuids.empty() ? 1 : static_cast<int>(seen.size());
    const auto gpu = find_gpu(uuids, entry);
    if (!gpu) break;
    if (std::find(seen.begin(), seen.end(), *gpu) != seen.end()) return 0;
    seen.push_back(*gpu);
  }
  return static_cast<int>(seen.size());
}

Topology detect_topology(bool want_gpus) {
  Topology topology;
  topology.cpus = allowed_cpus();
  if (want_gpus) topology.gpus = visible_gpus(Nvml().uuids(), process_env("CUDA_VISIBLE_DEVICES"));
  return topology;
}

}  // namespace ddprun
