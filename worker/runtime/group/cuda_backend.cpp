#include <ddprun/group/cuda_backend.h>

#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>

namespace ddprun::ddp {
namespace {

constexpr const char* kName = "libddprun_cuda.so";

std::vector<std::string> candidates() {
  if (const char* given = std::getenv("DDPRUN_CUDA_PLUGIN"); given != nullptr && *given != '\0')
    return {given};
  std::vector<std::string> paths;
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const auto& path : {folder / ".." / DDPRUN_CUDA_PLUGIN_FOLDER / kName, folder / kName})
    if (std::filesystem::exists(path, error)) paths.push_back(path.string());
  paths.push_back(kName);
  return paths;
}

const CudaPlugin& load() {
  const std::string path = candidates().front();
  // Global: LibTorch's own libraries look each other's symbols up.
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr)
    throw UsageError(
        "device cuda: the CUDA plug-in cannot be loaded: " + std::string(::dlerror()) +
        "; scripts/setup.sh --cuda and a new build make it, DDPRUN_CUDA_PLUGIN names another place");
  const auto getter = reinterpret_cast<CudaPluginGetter>(::dlsym(handle, kCudaPluginSymbol));
  const CudaPlugin* plugin = getter == nullptr ? nullptr : getter();
  if (plugin == nullptr || plugin->build != std::string(kCudaPluginBuild))
    throw UsageError("device cuda: expected a CUDA plug-in of build " + std::string(kCudaPluginBuild) +
                     ", got " + (plugin == nullptr ? "something else" : plugin->build) + " in " + path);
  if (!at::detail::getCUDAHooks().hasCUDART())
    throw std::logic_error(
        "device cuda: the CUDA plug-in came too late: choose the device (connect the process group) "
        "before anything uses autograd, a random generator or torch::cuda");
  return *plugin;
}

}  // namespace

const CudaPlugin& cuda_plugin() {
  static const CudaPlugin& plugin = load();
  return plugin;
}

RankDevice choose_device(DeviceChoice wanted, int local_rank) {
  if (wanted == DeviceChoice::kCpu) return {};
  const CudaDriver driver = query_cuda_driver();
  if (driver.gpus.empty()) {
    if (wanted == DeviceChoice::kAuto) return {};
    throw UsageError("device cuda: expected an NVIDIA GPU, but " + driver.problem);
  }
  const auto index = static_cast<std::size_t>(local_rank) % driver.gpus.size();
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  try {
    cuda_plugin().set_device(device);
  } catch (const UsageError& error) {
    if (wanted != DeviceChoice::kAuto) throw;
    log_warning(std::string(error.what()) + "; this rank computes on the CPU");
    return {};
  }
  return {device, driver.gpus[index].uuid};
}

}  // namespace ddprun::ddp
