#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// A process that uses memory of a GPU.
struct GpuProcess {
  int pid = 0;
  std::uint64_t bytes = 0;
};

/// An NVIDIA GPU of this host, as NVML describes it.
struct Gpu {
  int index = 0;                       ///< NVML's, in the order of PCI bus ids
  std::string uuid;                    ///< "GPU-..."
  std::string name;                    ///< "NVIDIA A100-SXM4-80GB"; empty if unknown
  std::string bus_id;                  ///< "0000:3b:00.0", as under /sys/bus/pci/devices
  int numa_node = -1;                  ///< -1: unknown to the kernel
  std::uint64_t memory_bytes = 0;      ///< total
  std::uint64_t used_bytes = 0;        ///< excluding what the driver reserves
  std::uint64_t ecc_errors = 0;        ///< uncorrected, since the driver was loaded; 0 also without ECC
  int percent_used = -1;               ///< share of the last moment spent computing; -1: unknown
  std::vector<GpuProcess> processes;   ///< as listed by NVML: none from other containers
  std::vector<std::string> mig_uuids;  ///< "MIG-..." of its instances; empty if undivided
};

/// What NVIDIA's management library (NVML) reports of this host.
struct GpuReading {
  std::vector<Gpu> gpus;
  std::string problem;  ///< why an installed driver fails: "Driver/library version mismatch"; otherwise empty
};

/// Loads libnvidia-ml.so.1, which takes tens of milliseconds with a driver, and asks it. Without the library
/// there are no GPUs and no problem.
///
/// sysfs    for a PCI device's NUMA node; another one for tests
GpuReading read_gpus(const std::filesystem::path& sysfs = "/sys");

/// A process's use of GPUs.
struct GpuUse {
  double percent = -1;  ///< of the busiest; -1: unknown
  double bytes = 0;
};

/// GPU use of this host's processes, by pid.
std::map<int, GpuUse> gpu_use();

/// The entries of a comma-separated list, without surrounding blanks.
std::vector<std::string> entries_of(const std::string& list);

/// A GPU or MIG instance that CUDA_VISIBLE_DEVICES makes visible.
struct VisibleGpu {
  std::string name;  ///< its entry in CUDA_VISIBLE_DEVICES
  int gpu = -1;      ///< position in the host's list; -1: an instance of a GPU that NVML does not list

  bool is_mig() const { return name.starts_with("MIG-"); }
};

/// The GPUs that CUDA_VISIBLE_DEVICES makes visible, in its order, up to the first entry that names no GPU,
/// where CUDA stops reading too.
///
/// visible   value of CUDA_VISIBLE_DEVICES, if set: indices, or UUIDs (or prefixes) of GPUs or MIG instances
/// throws    UsageError if an entry is repeated: CUDA then sees no GPU at all
std::vector<VisibleGpu> visible_gpus(const std::vector<Gpu>& host, const std::optional<std::string>& visible);

/// --gpus: these of the visible GPUs, in this order.
///
/// entries   numbers, which count the visible GPUs as CUDA does, or UUIDs (or prefixes) of GPUs or MIG
/// instances throws    UsageError if one is not visible, or is named twice
std::vector<VisibleGpu> chosen_gpus(const std::vector<Gpu>& host, const std::vector<VisibleGpu>& visible,
                                    const std::vector<std::string>& entries);

/// The GPUs that a process given the whole list sees: CUDA stops at the first MIG instance, and shows only
/// that one if it comes first.
std::vector<VisibleGpu> gpus_of_one_process(const std::vector<VisibleGpu>& visible);

/// The NUMA node of each, for bind_workers(); -1: unknown.
std::vector<int> numa_nodes(const std::vector<Gpu>& host, const std::vector<VisibleGpu>& visible);

/// --virtual-local-rank: each worker's CUDA_VISIBLE_DEVICES by local rank, one of our entries each.
///
/// Without NVML (host is empty) entries are used as written, since other vendors' libraries read the variable
/// too. throws UsageError if there are fewer GPUs than workers
std::vector<std::string> one_gpu_each(const std::vector<Gpu>& host, const std::optional<std::string>& visible,
                                      int workers);

/// The names of the first GPUs of the list. throws UsageError, with `why`, if there are too few
std::vector<std::string> one_gpu_each(const std::vector<VisibleGpu>& list, int workers,
                                      const std::string& why);

/// Whether CUDA may number these GPUs differently from NVML: by speed, if they are of several kinds.
bool numbered_by_speed(const std::vector<Gpu>& host);

/// "GPU 3 (0000:3b:00.0)"
std::string describe(const Gpu& gpu);

/// GPU memory that may be in use before a job starts: a display, a monitor, or the driver's rounding.
constexpr std::uint64_t kHeldMemoryTolerance = std::uint64_t{512} << 20;

/// Problems that may soon make a job on these GPUs fail, one line each:
///
/// - a foreign process, or one that NVML does not list (in another container, or a zombie), holds more memory
///   than kHeldMemoryTolerance;
/// - uncorrected ECC errors since the driver was loaded.
///
/// visible    the GPUs that the job will use, once each
/// ours       process ids of this job, such as workers of an attempt that just ended
std::vector<std::string> gpu_problems(const std::vector<Gpu>& host, const std::vector<VisibleGpu>& visible,
                                      const std::vector<int>& ours = {});

}  // namespace ddprun::launcher
