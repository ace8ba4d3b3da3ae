#pragma once

#include <string>
#include <vector>

namespace ddprun::ddp {

/// Where a rank's tensors live. kAuto: on a GPU if this host has one and the plug-in is there, else on the
/// CPU.
enum class DeviceChoice { kAuto, kCpu, kCuda };

/// The backend for CUDA tensors; CPU tensors always use Gloo. kAuto: NCCL if no ranks share a GPU, else Gloo.
enum class BackendChoice { kAuto, kGloo, kNccl };

/// From the text of a flag. throws UsageError naming the flag and what was expected
DeviceChoice parse_device_choice(const std::string& flag, const std::string& text);
BackendChoice parse_backend_choice(const std::string& flag, const std::string& text);

/// True for NCCL, false for Gloo.
///
/// gpus    what each rank, in their order, computes on: its GPU's UUID, or "cpu"
/// throws  UsageError naming the ranks if only some have a GPU, or if NCCL is asked for and some have none or
///         share one
bool use_nccl(BackendChoice wanted, const std::vector<std::string>& gpus);

}  // namespace ddprun::ddp
