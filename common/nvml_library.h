#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun {

/// NVIDIA's management library (libnvidia-ml.so.1, part of the driver), loaded and initialised while this
/// lives. With a driver this takes tens of milliseconds.
///
/// Looks functions up by name and declares them itself, so building needs no NVIDIA headers; types and
/// numbers are ABI. An old driver may lack some functions.
class NvmlLibrary {
 public:
  using Device = struct nvmlDevice_st*;
  static constexpr int kSuccess = 0;

  NvmlLibrary();
  ~NvmlLibrary();
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  /// Why an installed library does not work: "Driver/library version mismatch". Empty without a library.
  std::string problem() const;

  /// How many GPUs there are; 0 if the library does not work.
  unsigned count() const { return count_; }
  /// nullptr if it is unreachable
  Device device(unsigned index) const;
  /// "GPU-8f3c...", "MIG-..." for an instance; empty if unknown
  std::string uuid(Device device) const;

  struct Memory {
    std::uint64_t total_bytes = 0;
    std::uint64_t used_bytes = 0;  ///< by programs, without the driver's reserve
  };
  std::optional<Memory> memory(Device device) const;

  /// Points function to the library's function with that name, or to nullptr.
  template <typename Function>
  void load(Function*& function, const char* name) const {
    function = library_ == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(library_, name));
  }

 private:
  void* library_;
  bool initialised_ = false;
  int status_ = -1;  // of the first failed call
  unsigned count_ = 0;
  const char* (*error_string_)(int) = nullptr;
  int (*shutdown_)() = nullptr;
  int (*handle_)(unsigned, Device*) = nullptr;
  int (*uuid_)(Device, char*, unsigned) = nullptr;
  int (*memory_)(Device, void*) = nullptr;
};

}  // namespace ddprun
