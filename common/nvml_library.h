#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun {

/// NVIDIA's management library (libnvidia-ml.so.1, which comes with the driver), loaded where the dynamic
/// linker finds it and initialised as long as this lives. Takes tens of milliseconds with a driver.
///
/// Its functions are looked up by name and called through declarations of one's own, so that building takes
/// no header of NVIDIA's; types and numbers are ABI. One may be missing: an old driver has not all.
class NvmlLibrary {
 public:
  using Device = struct nvmlDevice_st*;
  static constexpr int kSuccess = 0;

  NvmlLibrary();
  ~NvmlLibrary();
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  /// Why a library that is there tells nothing: "Driver/library version mismatch". Empty if it is not there.
  std::string problem() const;

  /// How many GPUs there are; 0 if the library tells nothing.
  unsigned count() const { return count_; }
  /// nullptr if it cannot be reached
  Device device(unsigned index) const;
  /// "GPU-8f3c...", "MIG-..." for an instance; empty if it is not told
  std::string uuid(Device device) const;

  struct Memory {
    std::uint64_t total_bytes = 0;
    std::uint64_t used_bytes = 0;  ///< by programs; not what the driver reserves
  };
  std::optional<Memory> memory(Device device) const;

  /// Points function to the library's of that name, or to nothing.
  template <typename Function>
  void load(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;

  void* library_;
  bool initialised_ = false;
  int status_ = -1;  // of what was asked for first and failed
  unsigned count_ = 0;
  const char* (*error_string_)(int) = nullptr;
  int (*shutdown_)() = nullptr;
  int (*handle_)(unsigned, Device*) = nullptr;
  int (*uuid_)(Device, char*, unsigned) = nullptr;
  int (*memory_)(Device, void*) = nullptr;
};

}  // namespace ddprun
