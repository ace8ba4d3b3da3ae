#pragma once

#include <string>
#include <vector>

namespace ddprun::ddp {

/// Where a rank's tensors are to live. kAuto: on a GPU if this host has one and the plug-in, else on the CPU.
enum class DeviceChoice { kAuto, kCpu, kCuda };

/// What carries collectives of CUDA tensors; those of CPU tensors always go over Gloo. kAuto: NCCL if every
/// rank has a GPU of its own, else Gloo.
enum class BackendChoice { kAuto, kGloo, kNccl };

/// From the text of a flag. throws UsageError naming the flag and what was expected
DeviceChoice parse_device_choice(const std::string& flag, const std::string& text);
BackendChoice parse_backend_choice(const std::string& flag, const std::string& text);

/// One answer for all ranks.
///
/// gpus     what each rank, in their order, computes on: its GPU's UUID, or "cpu"
/// returns  true for NCCL, false for Gloo
/// throws   UsageError if only some ranks have a GPU, or if NCCL is asked for and there are ranks without a
///          GPU or that share one: it names them
bool use_nccl(BackendChoice wanted, const std::vector<std::string>& gpus);

}  // namespace ddprun::ddp
