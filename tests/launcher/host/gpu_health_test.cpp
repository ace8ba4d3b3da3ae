#include "launcher/host/gpu_list.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using Lines = std::vector<std::string>;

constexpr std::uint64_t kMiB = 1 << 20;
const std::vector<VisibleGpu> kFirst = {{"0", 0}};

std::vector<Gpu> two() {
  std::vector<Gpu> gpus(2);
  gpus[1].index = 1;
  gpus[0].bus_id = "0000:3b:00.0";
  gpus[1].bus_id = "0000:86:00.0";
  gpus[0].memory_bytes = gpus[1].memory_bytes = 81920 * kMiB;
  return gpus;
}

TEST_CASE("idle GPUs have no problems", "[gpu_health]") {
  auto gpus = two();
  gpus[0].used_bytes = 512 * kMiB;
  gpus[0].processes = {{42, 512 * kMiB}};
  CHECK(gpu_problems(gpus, kFirst).empty());
}

TEST_CASE("a stranger that holds memory is named", "[gpu_health]") {
  auto gpus = two();
  gpus[0].used_bytes = 3600 * kMiB;
  gpus[0].processes = {{42, 3000 * kMiB}, {43, 513 * kMiB}, {44, 80 * kMiB}};
  CHECK(gpu_problems(gpus, kFirst) ==
        Lines{"GPU 0 (0000:3b:00.0): process 42 (not of this job) holds 3000 MiB of 81920 MiB",
              "GPU 0 (0000:3b:00.0): process 43 (not of this job) holds 513 MiB of 81920 MiB"});
  CHECK(gpu_problems(gpus, kFirst, {43, 42}).empty());
}

TEST_CASE("memory that nobody owns up to is a problem", "[gpu_health]") {
  auto gpus = two();
  gpus[0].used_bytes = 5000 * kMiB;
  gpus[0].processes = {{42, 100 * kMiB}};
  CHECK(gpu_problems(gpus, kFirst) ==
        Lines{"GPU 0 (0000:3b:00.0): 4900 MiB of 81920 MiB are held by processes not visible "
              "here (another container?)"});
}

TEST_CASE("uncorrected ECC errors are a problem", "[gpu_health]") {
  auto gpus = two();
  gpus[0].ecc_errors = 3;
  CHECK(gpu_problems(gpus, kFirst) ==
        Lines{"GPU 0 (0000:3b:00.0): uncorrected ECC errors since the driver was loaded: 3"});
}

TEST_CASE("GPUs that the job does not use are not looked at", "[gpu_health]") {
  auto gpus = two();
  gpus[0].ecc_errors = 3;
  gpus[0].processes = {{42, 3000 * kMiB}};
  CHECK(gpu_problems(gpus, {{"1", 1}}).empty());
  CHECK(gpu_problems(gpus, {{"MIG-9999", -1}}).empty());
}

TEST_CASE("neighbours on a divided GPU are fine, its errors are reported", "[gpu_health]") {
  auto gpus = two();
  gpus[0].processes = {{42, 3000 * kMiB}};
  const std::vector<VisibleGpu> instances = {{"MIG-1", 0}, {"MIG-2", 0}};
  CHECK(gpu_problems(gpus, instances).empty());
  gpus[0].ecc_errors = 1;
  CHECK(gpu_problems(gpus, instances).size() == 1);
}

}  // namespace
}  // namespace ddprun::launcher
