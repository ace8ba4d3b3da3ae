#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// A process that holds memory of a GPU.
struct GpuProcess {
  int pid = 0;
  std::uint64_t bytes = 0;
};

/// An NVIDIA GPU of this host, as NVML describes it.
struct Gpu {
  int index = 0;                       ///< NVML's, in the order of PCI bus ids
  std::string uuid;                    ///< "GPU-..."
  std::string bus_id;                  ///< "0000:3b:00.0", as under /sys/bus/pci/devices
  int numa_node = -1;                  ///< -1: the kernel does not know
  std::uint64_t memory_bytes = 0;      ///< all of it
  std::uint64_t used_bytes = 0;        ///< without what the driver keeps for itself
  std::uint64_t ecc_errors = 0;        ///< uncorrected, since the driver was loaded; 0 also without ECC
  std::vector<GpuProcess> processes;   ///< those that NVML shows us; none of other containers
  std::vector<std::string> mig_uuids;  ///< "MIG-..." of its instances; empty if it is whole
};

/// One GPU, or one MIG instance, that CUDA_VISIBLE_DEVICES leaves.
struct VisibleGpu {
  std::string name;  ///< what stands for it in CUDA_VISIBLE_DEVICES
  int gpu = -1;      ///< position in the host's list; -1: an instance of a GPU that NVML does not tell us

  bool is_mig() const { return name.rfind("MIG-", 0) == 0; }
};

/// The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order.
///
/// host          the host's GPUs
/// visible       value of CUDA_VISIBLE_DEVICES, if set: indices, or (beginnings of) UUIDs of GPUs or MIG
/// instances returns       the entries before the first one that names no GPU: there CUDA stops reading, too
/// throws        UsageError if one is there twice, which makes CUDA see none at all
std::vector<VisibleGpu> visible_gpus(const std::vector<Gpu>& host, const std::optional<std::string>& visible);

/// What a process that is left with the whole list sees of it. A MIG instance ends it: CUDA shows a process
/// one of them and nothing else.
std::vector<VisibleGpu> gpus_of_one_process(const std::vector<VisibleGpu>& visible);

/// NUMA node of each, for bind_workers(); -1 where it is not known.
std::vector<int> numa_nodes(const std::vector<Gpu>& host, const std::vector<VisibleGpu>& visible);

/// --virtual-local-rank: the value of CUDA_VISIBLE_DEVICES of each worker, one entry of ours by local rank.
///
/// Without NVML's word (host is empty) the entries of a value that is set count as they are written: other
/// vendors' libraries read the variable, too. throws UsageError if there are fewer than workers
std::vector<std::string> one_gpu_each(const std::vector<Gpu>& host, const std::optional<std::string>& visible,
                                      int workers);

/// "GPU 3 (0000:3b:00.0)"
std::string describe(const Gpu& gpu);

}  // namespace ddprun::launcher
