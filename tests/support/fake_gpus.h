#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>

#include <ddprun/group/process_group.h>
#include <ddprun/group/spawn.h>

namespace ddprun::test {

/// Runs ranks in processes of their own, each with a fake GPU (fake_gpu.cpp).
///
/// ranks  1 or 2
inline void run_on_fake_gpus(int ranks, const std::function<void(const ddp::ProcessGroup&)>& body) {
  if (::dlopen(DDPRUN_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL) == nullptr) throw std::runtime_error(::dlerror());
  ::setenv("FAKE_CUDA", "version=13000;name=Fake capability=90 uuid=1;name=Fake capability=90 uuid=2", 1);
  ::setenv("DDPRUN_CUDA_PLUGIN", DDPRUN_FAKE_GPU, 1);
  spawn(ranks, [&](const WorkerEnv& env) {
    auto group = ddp::ProcessGroup::connect(env, {.device = ddp::DeviceChoice::kCuda});
    body(group);
    group.close();
  });
}

}  // namespace ddprun::test
