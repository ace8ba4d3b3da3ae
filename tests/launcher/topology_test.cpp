#include "launcher/topology.h"

#include "tests/support/catch.h"

namespace ddprun {
namespace {

const std::vector<std::string> kFour = {"GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333", "GPU-cccc4444"};

TEST_CASE("without CUDA_VISIBLE_DEVICES all GPUs are visible", "[topology]") {
  CHECK(visible_gpus(kFour, std::nullopt) == 4);
  CHECK(visible_gpus({}, std::nullopt) == 0);
}

TEST_CASE("CUDA_VISIBLE_DEVICES chooses by index and by UUID", "[topology]") {
  CHECK(visible_gpus(kFour, "0") == 1);
  CHECK(visible_gpus(kFour, "3,1") == 2);
  CHECK(visible_gpus(kFour, " 0 , 2 ") == 2);
  CHECK(visible_gpus(kFour, "GPU-bbbb3333") == 1);
  CHECK(visible_gpus(kFour, "GPU-b,GPU-c,0") == 3);
}

TEST_CASE("an empty list or -1 hides all GPUs", "[topology]") {
  CHECK(visible_gpus(kFour, "") == 0);
  CHECK(visible_gpus(kFour, "-1") == 0);
}

TEST_CASE("what names no GPU ends the list", "[topology]") {
  CHECK(visible_gpus(kFour, "0,1,9,2") == 2);
  CHECK(visible_gpus(kFour, "0,-1,2") == 1);
  CHECK(visible_gpus(kFour, "0,,2") == 1);
  CHECK(visible_gpus(kFour, "1x") == 0);
  CHECK(visible_gpus(kFour, "GPU-aaaa,0") == 0);  // ambiguous
  CHECK(visible_gpus(kFour, "GPU-dddd") == 0);
}

TEST_CASE("a GPU named twice leaves none", "[topology]") {
  CHECK(visible_gpus(kFour, "0,0") == 0);
  CHECK(visible_gpus(kFour, "0,GPU-aaaa1") == 0);
}

TEST_CASE("one MIG instance is visible at most", "[topology]") {
  CHECK(visible_gpus(kFour, "MIG-1234,MIG-5678") == 1);
  CHECK(visible_gpus({}, "MIG-1234") == 0);
}

TEST_CASE("this host has a CPU", "[topology]") { CHECK(detect_topology(false).cpus >= 1); }

}  // namespace
}  // namespace ddprun
