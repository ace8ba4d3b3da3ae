// The reducer, full sharding and PowerSGD over NCCL with a single rank and GPU (ctest -L gpu); skipped
// without.
#include "tests/worker/ddprun/world_of_one.h"

#include "tests/support/catch.h"
#include "tests/support/gpu.h"

using namespace ddprun;

TEST_CASE("what a rank exchanges over NCCL is used only once it is there", "[gpu]") {
  test::skip_without_a_gpu();
  const std::string kind = GENERATE("ddp", "fsdp", "powersgd");
  CAPTURE(kind);
  spawn(1, [&](const WorkerEnv& env) {
    auto group = ddp::ProcessGroup::connect(
        env, {.device = ddp::DeviceChoice::kCuda, .backend = ddp::BackendChoice::kNccl});
    test::check_world_of_one(group, 4096, kind);
    group.close();
  });
}
