#include "launcher/host/gpu_list.h"

#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "tests/support/fake_nvml.h"

namespace ddprun::launcher {
namespace {

using test::FakeNvml;

constexpr std::uint64_t kNvmlMiB = 1 << 20;

TEST_CASE("NVML tells each GPU's name, place and state", "[nvml]") {
  const FakeNvml nvml(
      "uuid=GPU-aaaa bus=3b total=81920 used=3100 reserved=500 ecc=2 busy=37 process=42:3000;uuid=GPU-bbbb "
      "bus=86");
  const TempDir sysfs("ddprun-test");
  const auto device = sysfs.path() / "bus/pci/devices/0000:86:00.0";
  std::filesystem::create_directories(device);
  write_file_atomic(device / "numa_node", "1\n");

  const auto [gpus, problem] = read_gpus(sysfs.path());
  CHECK(problem.empty());
  REQUIRE(gpus.size() == 2);
  CHECK(gpus[0].index == 0);
  CHECK(gpus[0].uuid == "GPU-aaaa");
  CHECK(gpus[0].bus_id == "0000:3b:00.0");
  CHECK(gpus[0].numa_node == -1);  // no such file
  CHECK(gpus[0].memory_bytes == 81920 * kNvmlMiB);
  CHECK(gpus[0].used_bytes == 3100 * kNvmlMiB);
  CHECK(gpus[0].ecc_errors == 2);
  CHECK(gpus[0].percent_used == 37);
  REQUIRE(gpus[0].processes.size() == 1);
  CHECK(gpus[0].processes[0].pid == 42);
  CHECK(gpus[0].processes[0].bytes == 3000 * kNvmlMiB);
  CHECK(gpus[1].index == 1);
  CHECK(gpus[1].numa_node == 1);
  CHECK(gpus[1].ecc_errors == 0);
  CHECK(gpus[1].processes.empty());
  CHECK(gpus[1].mig_uuids.empty());
}

TEST_CASE("NVML's MIG instances belong to their GPU", "[nvml]") {
  const FakeNvml nvml("uuid=GPU-aaaa;uuid=GPU-bbbb mig=MIG-1 mig=MIG-2");
  const auto gpus = read_gpus().gpus;
  REQUIRE(gpus.size() == 2);
  CHECK(gpus[0].mig_uuids.empty());
  CHECK(gpus[1].mig_uuids == std::vector<std::string>{"MIG-1", "MIG-2"});
}

TEST_CASE("a process that computes and draws is one process", "[nvml]") {
  const FakeNvml nvml("uuid=GPU-aaaa process=42:3000 process=43:unknown graphics=42:3000 graphics=7:10");
  const auto gpus = read_gpus().gpus;
  REQUIRE(gpus.size() == 1);
  REQUIRE(gpus[0].processes.size() == 3);
  CHECK(gpus[0].processes[0].pid == 42);
  CHECK(gpus[0].processes[0].bytes == 3000 * kNvmlMiB);
  CHECK(gpus[0].processes[1].bytes == 0);
  CHECK(gpus[0].processes[2].pid == 7);
}

TEST_CASE("more processes than NVML is first asked for are all read", "[nvml]") {
  std::string gpu = "uuid=GPU-aaaa";
  for (int pid = 1; pid <= 300; ++pid) gpu += " process=" + std::to_string(pid) + ":1";
  const FakeNvml nvml(gpu);
  const auto gpus = read_gpus().gpus;
  REQUIRE(gpus.size() == 1);
  CHECK(gpus[0].processes.size() == 300);
}

TEST_CASE("a driver that does not work says why", "[nvml]") {
  const FakeNvml nvml("error=18");
  const auto [gpus, problem] = read_gpus();
  CHECK(gpus.empty());
  CHECK(problem == "Driver/library version mismatch");
}

}  // namespace
}  // namespace ddprun::launcher
