#include <ddprun/common/nvml_library.h>

#include <algorithm>

namespace ddprun {
namespace {

struct MemoryInfo {  // nvmlMemory_v2_t
  unsigned version;
  unsigned long long total, reserved, free, used;
};
static_assert(sizeof(MemoryInfo) == 40);
constexpr unsigned kMemoryVersion = sizeof(MemoryInfo) | (2U << 24);

}  // namespace

NvmlLibrary::NvmlLibrary() : library_(::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL)) {
  if (library_ == nullptr) return;
  int (*init)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  load(init, "nvmlInit_v2");
  load(count, "nvmlDeviceGetCount_v2");
  load(error_string_, "nvmlErrorString");
  load(shutdown_, "nvmlShutdown");
  load(handle_, "nvmlDeviceGetHandleByIndex_v2");
  load(uuid_, "nvmlDeviceGetUUID");
  load(memory_, "nvmlDeviceGetMemoryInfo_v2");
  if (!init || !count || !shutdown_ || !handle_ || !uuid_) return;
  status_ = init();
  initialised_ = status_ == kSuccess;
  if (initialised_ && (status_ = count(&count_)) != kSuccess) count_ = 0;
}

NvmlLibrary::~NvmlLibrary() {
  if (initialised_) shutdown_();
  if (library_ != nullptr) ::dlclose(library_);
}

std::string NvmlLibrary::problem() const {
  if (library_ == nullptr || status_ == kSuccess) return {};
  if (status_ < 0) return "libnvidia-ml.so.1 is too old";
  return error_string_ ? error_string_(status_) : "NVML error " + std::to_string(status_);
}

NvmlLibrary::Device NvmlLibrary::device(unsigned index) const {
  Device device = nullptr;
  return index < count_ && handle_(index, &device) == kSuccess ? device : nullptr;
}

std::string NvmlLibrary::uuid(Device device) const {
  char text[96] = "";
  return uuid_(device, text, sizeof text) == kSuccess ? text : "";
}

std::optional<NvmlLibrary::Memory> NvmlLibrary::memory(Device device) const {
  MemoryInfo info{};
  info.version = kMemoryVersion;
  if (!memory_ || memory_(device, &info) != kSuccess) return std::nullopt;
  // Drivers differ on whether "used" includes reserved memory; this is right for both.
  return Memory{info.total, info.total - std::min(info.total, info.free + info.reserved)};
}

}  // namespace ddprun
