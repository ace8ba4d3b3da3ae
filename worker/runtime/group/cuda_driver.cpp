#include <ddprun/group/cuda_driver.h>

#include <dlfcn.h>

#include <memory>

namespace ddprun::ddp {
namespace {

// The few declarations of cuda.h that this needs, so that it builds without.
using Result = int;  // CUresult; 0 is success
struct Uuid {
  unsigned char bytes[16];
};

class Library {
 public:
  Library() : handle_(::dlopen("libcuda.so.1", RTLD_NOW)) {}  // stays loaded: LibTorch needs it next

  explicit operator bool() const { return handle_ != nullptr; }

  /// Calls a function of the driver; -1 if it has none of that name.
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

std::string error_text(const Library& library, Result error) {
  const char* text = nullptr;
  library.call("cuGetErrorString", takes<Result, const char**>, error, &text);
  return (text == nullptr ? "unknown" : text) + std::string(" (") + std::to_string(error) + ")";
}

Gpu describe_gpu(const Library& library, int device) {
  Gpu gpu;
  char name[256] = "unknown";
  library.call("cuDeviceGetName", takes<char*, int, int>, name, static_cast<int>(sizeof name), device);
  gpu.name = name;
  library.call("cuDeviceTotalMem_v2", takes<std::size_t*, int>, &gpu.memory_bytes, device);
  Uuid uuid{};
  if (library.call("cuDeviceGetUuid_v2", takes<Uuid*, int>, &uuid, device) != 0)  // tells MIG instances apart
    library.call("cuDeviceGetUuid", takes<Uuid*, int>, &uuid, device);
  for (const unsigned char byte : uuid.bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    gpu.uuid += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return gpu;
}

}  // namespace

CudaDriver query_cuda_driver() {
  CudaDriver driver;
  const Library library;
  if (!library) {
    driver.problem = "no NVIDIA driver here (libcuda.so.1 cannot be loaded)";
    return driver;
  }
  library.call("cuDriverGetVersion", takes<int*>, &driver.version);
  int count = 0;
  Result error = library.call("cuInit", takes<unsigned>, 0U);
  if (error == 0) error = library.call("cuDeviceGetCount", takes<int*>, &count);
  if (error != 0) driver.problem = "the NVIDIA driver says: " + error_text(library, error);
  for (int index = 0; index < count; ++index) {
    int device = 0;
    if (library.call("cuDeviceGet", takes<int*, int>, &device, index) == 0)
      driver.gpus.push_back(describe_gpu(library, device));
  }
  if (driver.gpus.empty() && driver.problem.empty())
    driver.problem = "the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES?)";
  return driver;
}

}  // namespace ddprun::ddp
