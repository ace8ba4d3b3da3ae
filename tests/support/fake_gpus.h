#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>

#include <ddprun/group/process_group.h>
#include <ddprun/group/spawn.h>

namespace ddprun::test {

/// Runs the body on ranks that each have a GPU, of which this process is one (fake_gpu.cpp), in a group over
/// NCCL. CUDA is used in forked ranks only. The target must define DDPRUN_FAKE_CUDA and DDPRUN_FAKE_GPU.
inline void on_fake_gpus(int ranks, const std::function<void(const ddp::ProcessGroup&)>& body) {
  if (::dlopen(DDPRUN_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL) == nullptr) throw std::runtime_error(::dlerror());
  std::string gpus = "version=13000";
  for (int rank = 1; rank <= ranks; ++rank) gpus += ";name=Fake capability=90 uuid=" + std::to_string(rank);
  ::setenv("FAKE_CUDA", gpus.c_str(), 1);
  ::setenv("DDPRUN_CUDA_PLUGIN", DDPRUN_FAKE_GPU, 1);
  spawn(ranks, [&](const WorkerEnv& env) {
    auto group = ddp::ProcessGroup::connect(env, {.device = ddp::DeviceChoice::kCuda});
    body(group);
    group.close();
  });
}

}  // namespace ddprun::test
