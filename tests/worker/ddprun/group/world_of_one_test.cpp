// world_of_one_gpu_test.cpp on the fake GPU.
#include "tests/worker/ddprun/world_of_one.h"

#include "tests/support/catch.h"
#include "tests/support/fake_gpus.h"

using namespace ddprun;

TEST_CASE("a rank that exchanges with itself trains as one of two equal ranks", "[world_of_one]") {
  const std::string kind = GENERATE("ddp", "fsdp", "powersgd");
  CAPTURE(kind);
  test::on_fake_gpus(1, [&](const ddp::ProcessGroup& group) { test::check_world_of_one(group, 8, kind); });
}
