#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace ddprun::test {

/// While it lives, this process finds a fake NVML that reports these GPUs; fake_nvml.cpp explains the text.
/// The target must define DDPRUN_FAKE_NVML.
class FakeNvml {
 public:
  explicit FakeNvml(const std::string& gpus) : library_(::dlopen(DDPRUN_FAKE_NVML, RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw std::runtime_error(::dlerror());
    ::setenv("FAKE_NVML", gpus.c_str(), 1);
  }
  ~FakeNvml() {
    ::unsetenv("FAKE_NVML");
    ::dlclose(library_);
  }
  FakeNvml(const FakeNvml&) = delete;
  FakeNvml& operator=(const FakeNvml&) = delete;

 private:
  void* library_;
};

}  // namespace ddprun::test
