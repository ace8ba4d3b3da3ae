#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>

#include <ddprun/group/process_group.h>
#include <ddprun/group/spawn.h>

namespace ddprun::test {

/// Gives this process and those that it forks GPUs, each of which is the process that uses it (fake_gpu.cpp).
/// The target must define DDPRUN_FAKE_CUDA and DDPRUN_FAKE_GPU.
inline void make_fake_gpus(int count) {
  if (::dlopen(DDPRUN_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL) == nullptr) throw std::runtime_error(::dlerror());
  std::string gpus = "version=13000";
  for (int gpu = 1; gpu <= count; ++gpu) gpus += ";name=Fake capability=90 uuid=" + std::to_string(gpu);
  ::setenv("FAKE_CUDA", gpus.c_str(), 1);
  ::setenv("DDPRUN_CUDA_PLUGIN", DDPRUN_FAKE_GPU, 1);
}

/// Runs the body on ranks that each have a fake GPU, in a group over NCCL. Only forked ranks use CUDA.
inline void on_fake_gpus(int ranks, const std::function<void(const ddp::ProcessGroup&)>& body) {
  make_fake_gpus(ranks);
  spawn(ranks, [&](const WorkerEnv& env) {
    auto group = ddp::ProcessGroup::connect(env, {.device = ddp::DeviceChoice::kCuda});
    body(group);
    group.close();
  });
}

}  // namespace ddprun::test
