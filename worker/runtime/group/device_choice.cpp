#include <ddprun/group/device_choice.h>

#include <algorithm>
#include <map>

#include <ddprun/common/errors.h>
#include <ddprun/flight/missing_ranks.h>

namespace ddprun::ddp {

DeviceChoice parse_device_choice(const std::string& flag, const std::string& text) {
  if (text == "auto") return DeviceChoice::kAuto;
  if (text == "cpu") return DeviceChoice::kCpu;
  if (text == "cuda") return DeviceChoice::kCuda;
  throw UsageError(flag + ": expected auto, cpu or cuda, got '" + text + "'");
}

BackendChoice parse_backend_choice(const std::string& flag, const std::string& text) {
  if (text == "auto") return BackendChoice::kAuto;
  if (text == "gloo") return BackendChoice::kGloo;
  if (text == "nccl") return BackendChoice::kNccl;
  throw UsageError(flag + ": expected auto, gloo or nccl, got '" + text + "'");
}

bool use_nccl(BackendChoice wanted, const std::vector<std::string>& gpus) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank)
    ranks_of[gpus[rank]].push_back(static_cast<int>(rank));
  const auto on_cpu = ranks_of.find("cpu");
  const bool gpu_for_all = on_cpu == ranks_of.end();
  if (!gpu_for_all && ranks_of.size() > 1)
    throw UsageError("device: expected a GPU for every rank or for none, got none for " +
                     describe_ranks(on_cpu->second) + "; device cpu trains all of them on the CPU");
  const auto shared =
      std::find_if(ranks_of.begin(), ranks_of.end(), [](const auto& gpu) { return gpu.second.size() > 1; });
  if (wanted != BackendChoice::kNccl)
    return wanted == BackendChoice::kAuto && gpu_for_all && shared == ranks_of.end();
  if (!gpu_for_all)
    throw UsageError("backend nccl: expected device cuda, got tensors on the CPU; backend gloo serves both");
  if (shared != ranks_of.end())
    throw UsageError("backend nccl: expected a separate GPU for every rank, got " +
                     describe_ranks(shared->second) + " on GPU " + shared->first +
                     "; start fewer ranks, or choose backend gloo, which lets ranks share one");
  return true;
}

}  // namespace ddprun::ddp
