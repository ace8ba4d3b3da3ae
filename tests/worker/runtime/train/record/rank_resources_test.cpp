#include <ddprun/train/record/rank_resources.h>

#include "tests/support/catch.h"

using namespace ddprun::train;

TEST_CASE("a rank's GPU memory is told in GB", "[resources]") {
  CHECK(describe(GpuMemory{1280, 2048, 1843.2, 4096}, 3) ==
        "GPU memory of rank 3: 1.25 GB allocated, 2.00 GB reserved, 1.80 GB allocated at its peak");
  CHECK_FALSE(gpu_memory(at::kCPU));
}
