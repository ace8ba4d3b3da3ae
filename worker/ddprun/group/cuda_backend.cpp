#include <ddprun/group/cuda_backend.h>

#include <dlfcn.h>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <utility>

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/StringUtil.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/flight/flight_analysis.h>

namespace ddprun::ddp {
namespace {

// From cuda.h, to build without it.
using Result = int;  // CUresult; 0 is success
struct Uuid {
  unsigned char bytes[16];
};
constexpr Result kNoDevice = 100;                                               // CUDA_ERROR_NO_DEVICE
constexpr int kComputeMode = 20, kCapabilityMajor = 75, kCapabilityMinor = 76;  // CU_DEVICE_ATTRIBUTE_...
constexpr int kProhibited = 2;                                                  // CU_COMPUTEMODE_PROHIBITED

class Library {
 public:
  Library() : handle_(::dlopen("libcuda.so.1", RTLD_NOW)) {}  // stays loaded: LibTorch needs it next

  explicit operator bool() const { return handle_ != nullptr; }

  /// Calls a function of the driver; -1 if it is missing.
  template <typename... Parameters, typename... Arguments>
  Result call(const char* name, Result (*)(Parameters...), Arguments... arguments) const {
    const auto function = reinterpret_cast<Result (*)(Parameters...)>(::dlsym(handle_, name));
    return function == nullptr ? -1 : function(arguments...);
  }

 private:
  void* handle_;
};

template <typename... Parameters>
constexpr Result (*takes)(Parameters...) = nullptr;

Gpu describe_gpu(const Library& library, int device) {
  Gpu gpu;
  char name[256] = "unknown";
  library.call("cuDeviceGetName", takes<char*, int, int>, name, static_cast<int>(sizeof name), device);
  gpu.name = name;
  library.call("cuDeviceTotalMem_v2", takes<std::size_t*, int>, &gpu.memory_bytes, device);
  const auto uuid = [&](const char* function) -> std::string {
    Uuid found{};
    if (library.call(function, takes<Uuid*, int>, &found, device) != 0) return "";
    std::string digits;
    for (const unsigned char byte : found.bytes)
      for (const int digit : {byte >> 4, byte & 15}) digits += "0123456789abcdef"[digit];
    return digits;
  };
  gpu.whole_uuid = uuid("cuDeviceGetUuid");
  gpu.uuid = uuid("cuDeviceGetUuid_v2");  // a MIG instance's
  if (gpu.uuid.empty()) gpu.uuid = gpu.whole_uuid;
  if (gpu.whole_uuid.empty()) gpu.whole_uuid = gpu.uuid;
  const auto attribute = [&](int which) {
    int value = 0;
    library.call("cuDeviceGetAttribute", takes<int*, int, int>, &value, which, device);
    return value;
  };
  gpu.capability = 10 * attribute(kCapabilityMajor) + attribute(kCapabilityMinor);
  gpu.prohibited = attribute(kComputeMode) == kProhibited;
  return gpu;
}

/// "13.0" of 13000
std::string cuda_name(int version) { return c10::str(version / 1000, ".", version % 1000 / 10); }

/// A program may choose its device before ProcessGroup::connect() does.
void warn_once(const std::string& line) {
  static std::string said;
  if (line != std::exchange(said, line)) log_warning(line);
}

constexpr const char* kName = "libddprun_cuda.so";

std::string plugin_path() {
  if (const char* given = std::getenv("DDPRUN_CUDA_PLUGIN"); given != nullptr && *given != '\0') return given;
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const auto& path : {folder / ".." / DDPRUN_CUDA_PLUGIN_FOLDER / kName, folder / kName})
    if (std::filesystem::exists(path, error)) return path.string();
  return kName;
}

const CudaPlugin& load() {
  const std::string path = plugin_path();
  // Global: LibTorch's libraries look up each other's symbols.
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr)
    throw UsageError(c10::str(
        "--device=cuda: the CUDA plug-in cannot be loaded: ", ::dlerror(),
        "; build it with scripts/setup.sh --cuda and a new build, or set DDPRUN_CUDA_PLUGIN to its path"));
  const auto getter = reinterpret_cast<CudaPluginGetter>(::dlsym(handle, kCudaPluginSymbol));
  const CudaPlugin* plugin = getter == nullptr ? nullptr : getter();
  if (plugin == nullptr || plugin->build != std::string(kCudaPluginBuild))
    throw UsageError(c10::str("--device=cuda: expected a CUDA plug-in of build ", kCudaPluginBuild, ", got ",
                              plugin == nullptr ? "something else" : plugin->build, " in ", path));
  if (!at::detail::getCUDAHooks().hasCUDART())
    throw std::logic_error(
        "--device=cuda: the CUDA plug-in was loaded too late: choose the device (connect the process group) "
        "before anything uses autograd, a random generator or torch::cuda");
  return *plugin;
}

std::map<std::string, std::vector<int>> ranks_by_gpu(const std::vector<std::string>& gpus) {
  std::map<std::string, std::vector<int>> ranks;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) ranks[gpus[rank]].push_back(static_cast<int>(rank));
  return ranks;
}

int sync_debug_mode() {
  static const auto mode = process_env("DDPRUN_SYNC_DEBUG_MODE").value_or("default");
  if (mode == "default") return 0;
  if (mode == "warn") return 1;
  if (mode == "error") return 2;
  throw UsageError("DDPRUN_SYNC_DEBUG_MODE: expected default, warn or error, got '" + mode + "'");
}

}  // namespace

bool has_cuda_driver() { return static_cast<bool>(Library()); }

CudaDriver query_cuda_driver() {
  CudaDriver driver;
  const Library library;
  if (!library) {
    driver.problem = "this machine has no NVIDIA driver (libcuda.so.1 cannot be loaded)";
    return driver;
  }
  library.call("cuDriverGetVersion", takes<int*>, &driver.version);
  int count = 0;
  Result error = library.call("cuInit", takes<unsigned>, 0U);
  if (error == 0) error = library.call("cuDeviceGetCount", takes<int*>, &count);
  if (error != 0) {
    const char* text = nullptr;
    library.call("cuGetErrorString", takes<Result, const char**>, error, &text);
    driver.problem =
        c10::str("the NVIDIA driver reports: ", text == nullptr ? "unknown" : text, " (", error, ")");
  }
  driver.broken = error != 0 && error != kNoDevice;
  for (int index = 0; index < count; ++index) {
    int device = 0;
    if (library.call("cuDeviceGet", takes<int*, int>, &device, index) == 0)
      driver.gpus.push_back(describe_gpu(library, device));
  }
  if (driver.gpus.empty() && driver.problem.empty())
    driver.problem = "the NVIDIA driver reports no GPU (CUDA_VISIBLE_DEVICES?)";
  return driver;
}

std::string unseen_gpu(const CudaDriver& driver, const std::filesystem::path& dev) {
  const auto hidden = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!driver.gpus.empty() || (hidden != nullptr && (*hidden == '\0' || std::string(hidden) == "-1")))
    return "";
  std::error_code error;
  if (std::filesystem::exists(dev / "nvidia0", error))
    return "this host has an NVIDIA GPU, but " + driver.problem;
  if (std::filesystem::exists(dev / "kfd", error))
    return "this host has an AMD GPU, which this build cannot use";
  return "";
}

std::string gpu_problem(const CudaDriver& driver, std::size_t index, int built_for) {
  const Gpu& gpu = driver.gpus.at(index);
  const auto name = c10::str("GPU ", index, " (", gpu.name, ") ");
  if (gpu.prohibited) return name + "is in the compute mode 'prohibited' (nvidia-smi -c 0 ends it)";
  // Within one major version any driver runs any build.
  if (driver.version / 1000 < built_for / 1000)
    return "the NVIDIA driver runs CUDA up to " + cuda_name(driver.version) + ", and this build needs " +
           cuda_name(built_for) + ": update the driver";
  const int oldest = built_for >= 13000 ? 75 : 50;  // in LibTorch's builds for CUDA 13 and 12
  if (built_for != 0 && gpu.capability != 0 && gpu.capability < oldest)
    return c10::str(name, "has compute capability ", gpu.capability / 10, ".", gpu.capability % 10,
                    ", and a build for CUDA ", cuda_name(built_for), " needs at least ", oldest / 10, ".",
                    oldest % 10);
  return "";
}

const CudaPlugin& cuda_plugin() {
  static const CudaPlugin& plugin = load();
  return plugin;
}

RankDevice choose_device(DeviceChoice wanted, int local_rank, int local_world_size) {
  if (wanted == DeviceChoice::kCpu) return {};
  const CudaDriver driver = query_cuda_driver();
  if (driver.gpus.empty() && !driver.broken && wanted == DeviceChoice::kAuto) {
    const auto unseen = unseen_gpu(driver);
    if (!unseen.empty() && local_rank == 0) warn_once(unseen + "; computing on the CPU");
    return {};
  }
  try {
    const auto index = static_cast<std::size_t>(local_rank) % std::max<std::size_t>(driver.gpus.size(), 1);
    const auto problem =
        driver.gpus.empty() ? driver.problem : gpu_problem(driver, index, DDPRUN_CUDA_VERSION);
    if (!problem.empty()) throw UsageError("--device=cuda: expected an NVIDIA GPU, but " + problem);
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    cuda_plugin().set_device(device);
    const int idle = static_cast<int>(driver.gpus.size()) - local_world_size;
    if (local_rank == 0 && local_world_size > 0 && idle > 0)
      log_info(c10::str(idle, " of this host's ", driver.gpus.size(),
                        " GPUs stay idle (ddprun --nproc-per-node=gpu starts a rank for each)"));
    const Gpu& gpu = driver.gpus[index];
    return {device, gpu.uuid, gpu.whole_uuid, gpu.name};
  } catch (const UsageError& error) {
    if (wanted != DeviceChoice::kAuto) throw;
    warn_once(std::string(error.what()) + "; this rank computes on the CPU");
    return {};
  }
}

SyncDebugScope::SyncDebugScope(c10::Device device) : mode_(device.is_cuda() ? sync_debug_mode() : 0) {
  if (mode_ != 0) cuda_plugin().set_sync_debug_mode(mode_);
}

SyncDebugScope::~SyncDebugScope() {
  if (mode_ != 0) cuda_plugin().set_sync_debug_mode(0);
}

std::string shared_gpu(const std::vector<std::string>& gpus) {
  for (const auto& [gpu, ranks] : ranks_by_gpu(gpus))
    if (gpu != "cpu" && ranks.size() > 1) return describe_ranks(ranks) + " share GPU " + gpu;
  return "";
}

bool use_nccl(BackendChoice wanted, const std::vector<std::string>& gpus) {
  const auto ranks_of = ranks_by_gpu(gpus);
  const auto on_cpu = ranks_of.find("cpu");
  const bool gpu_for_all = on_cpu == ranks_of.end();
  if (!gpu_for_all && ranks_of.size() > 1)
    throw UsageError("--device: expected a GPU for every rank or for none, got none for " +
                     describe_ranks(on_cpu->second) + "; --device=cpu trains all of them on the CPU");
  const auto shared =
      std::find_if(ranks_of.begin(), ranks_of.end(), [](const auto& gpu) { return gpu.second.size() > 1; });
  if (wanted != BackendChoice::kNccl)
    return wanted == BackendChoice::kAuto && gpu_for_all && shared == ranks_of.end();
  if (!gpu_for_all)
    throw UsageError(
        "--backend=nccl: expected --device=cuda, got tensors on the CPU; --backend=gloo works with both");
  if (shared != ranks_of.end())
    throw UsageError("--backend=nccl: expected a separate GPU for every rank, got " +
                     describe_ranks(shared->second) + " on GPU " + shared->first +
                     "; start fewer ranks, or choose --backend=gloo, which lets ranks share one");
  return true;
}

}  // namespace ddprun::ddp
