#pragma once

#include <stdexcept>

#include <ddprun/group/cuda_backend.h>
#include <ddprun/group/spawn.h>
#include "tests/support/catch.h"

namespace ddprun::test {

/// Skips the test without an NVIDIA GPU or the plug-in for it. Checks in another process, because a process
/// that has used CUDA cannot fork.
inline void skip_without_a_gpu() {
  try {
    spawn(1, [](const WorkerEnv&) {
      const auto driver = ddp::query_cuda_driver();
      if (driver.gpus.empty()) throw std::runtime_error(driver.problem);
      ddp::cuda_plugin();
    });
  } catch (const std::runtime_error& error) {
    skip(error.what());
  }
}

}  // namespace ddprun::test
