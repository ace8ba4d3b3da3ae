#include <algorithm>
#include <cstdio>
#include <fstream>

#include <ddprun/common/nvml_library.h>
#include "launcher/host/gpu_list.h"

namespace ddprun::launcher {
namespace {

// The part of NVIDIA's nvml.h that we use, so that building does not need it. It is a stable ABI.
using Device = NvmlLibrary::Device;

struct PciInfo {  // nvmlPciInfo_t
  char legacy_bus_id[16];
  unsigned domain, bus, device;
  unsigned device_id, subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

struct ProcessInfo {  // nvmlProcessInfo_v2_t, filled by version _v3 of the function
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(ProcessInfo) == 24);

struct Utilization {  // nvmlUtilization_t, in percent
  unsigned gpu, memory;
};

constexpr unsigned long long kNotAvailable = ~0ULL;  // NVML_VALUE_NOT_AVAILABLE
constexpr int kSuccess = NvmlLibrary::kSuccess;
constexpr int kInsufficientSize = 7;
constexpr int kUncorrected = 1;  // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
constexpr int kVolatile = 0;     // NVML_VOLATILE_ECC: since the driver was loaded

/// The NVML functions that we use. An old driver may lack any; their information then stays unknown.
class Nvml {
 public:
  Nvml() {
    library_.load(name_, "nvmlDeviceGetName");
    library_.load(pci_, "nvmlDeviceGetPciInfo_v3");
    library_.load(utilization_, "nvmlDeviceGetUtilizationRates");
    library_.load(ecc_, "nvmlDeviceGetTotalEccErrors");
    library_.load(compute_, "nvmlDeviceGetComputeRunningProcesses_v3");
    library_.load(graphics_, "nvmlDeviceGetGraphicsRunningProcesses_v3");
    library_.load(mig_count_, "nvmlDeviceGetMaxMigDeviceCount");
    library_.load(mig_handle_, "nvmlDeviceGetMigDeviceHandleByIndex");
  }

  GpuReading read(const std::filesystem::path& sysfs) const {
    GpuReading reading;
    reading.problem = library_.problem();
    for (unsigned i = 0; i < library_.count(); ++i) {
      const Device device = library_.device(i);
      Gpu gpu;
      gpu.index = static_cast<int>(i);
      if (device == nullptr || (gpu.uuid = library_.uuid(device)).empty()) continue;
      if (char name[96] = ""; name_ && name_(device, name, sizeof name) == kSuccess) gpu.name = name;
      read_place(device, sysfs, gpu);
      read_memory(device, gpu);
      read_instances(device, gpu);
      reading.gpus.push_back(std::move(gpu));
    }
    return reading;
  }

 private:
  void read_place(Device device, const std::filesystem::path& sysfs, Gpu& gpu) const {
    PciInfo pci{};
    if (!pci_ || pci_(device, &pci) != kSuccess) return;
    char name[32];
    std::snprintf(name, sizeof name, "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
    gpu.bus_id = name;
    std::ifstream file(sysfs / "bus/pci/devices" / name / "numa_node");
    if (int node = -1; file >> node) gpu.numa_node = node;
  }

  void read_memory(Device device, Gpu& gpu) const {
    if (const auto memory = library_.memory(device)) {
      gpu.memory_bytes = memory->total_bytes;
      gpu.used_bytes = memory->used_bytes;
    }
    if (Utilization use{}; utilization_ && utilization_(device, &use) == kSuccess)
      gpu.percent_used = static_cast<int>(use.gpu);
    unsigned long long errors = 0;
    if (ecc_ && ecc_(device, kUncorrected, kVolatile, &errors) == kSuccess) gpu.ecc_errors = errors;
    read_processes(compute_, device, gpu);
    read_processes(graphics_, device, gpu);
  }

  static void read_processes(int (*function)(Device, unsigned*, ProcessInfo*), Device device, Gpu& gpu) {
    std::vector<ProcessInfo> list(64);
    int status = kInsufficientSize;
    auto count = static_cast<unsigned>(list.size());
    while (function && (status = function(device, &count, list.data())) == kInsufficientSize &&
           list.size() < (1U << 16)) {
      list.resize(2 * list.size());  // the number of processes may change between two calls
      count = static_cast<unsigned>(list.size());
    }
    if (status != kSuccess) return;
    for (unsigned i = 0; i < count; ++i) {
      const auto pid = static_cast<int>(list[i].pid);
      const std::uint64_t bytes = list[i].bytes == kNotAvailable ? 0 : list[i].bytes;
      // A process that both computes and draws is in both lists, with the same figure.
      const auto known =
          std::ranges::find_if(gpu.processes, [&](const GpuProcess& process) { return process.pid == pid; });
      if (known == gpu.processes.end()) {
        gpu.processes.push_back({pid, bytes});
      } else {
        known->bytes = std::max(known->bytes, bytes);
      }
    }
  }

  void read_instances(Device device, Gpu& gpu) const {
    unsigned count = 0;
    if (!mig_count_ || !mig_handle_ || mig_count_(device, &count) != kSuccess) return;
    for (unsigned i = 0; i < count; ++i) {
      Device instance = nullptr;
      if (mig_handle_(device, i, &instance) != kSuccess) continue;  // an empty slot
      if (std::string name = library_.uuid(instance); !name.empty()) gpu.mig_uuids.push_back(std::move(name));
    }
  }

  NvmlLibrary library_;
  int (*name_)(Device, char*, unsigned) = nullptr;
  int (*pci_)(Device, PciInfo*) = nullptr;
  int (*utilization_)(Device, Utilization*) = nullptr;
  int (*ecc_)(Device, int, int, unsigned long long*) = nullptr;
  int (*compute_)(Device, unsigned*, ProcessInfo*) = nullptr;
  int (*graphics_)(Device, unsigned*, ProcessInfo*) = nullptr;
  int (*mig_count_)(Device, unsigned*) = nullptr;
  int (*mig_handle_)(Device, unsigned, Device*) = nullptr;
};

}  // namespace

GpuReading read_gpus(const std::filesystem::path& sysfs) { return Nvml().read(sysfs); }

}  // namespace ddprun::launcher
