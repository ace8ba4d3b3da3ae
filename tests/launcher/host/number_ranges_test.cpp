#include "launcher/host/cpus.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

TEST_CASE("CPUs are described in ranges", "[cpu_list]") {
  CHECK(describe_cpus({}) == "none");
  CHECK(describe_cpus({5}) == "5");
  CHECK(describe_cpus({0, 1, 2, 3, 8}) == "0-3,8");
  CHECK(describe_cpus({0, 2, 4, 5}) == "0,2,4-5");
}

TEST_CASE("a CPU set holds exactly its CPUs", "[cpu_list]") {
  const CpuSet set({0, 3, 64, 1023});
  CHECK(set.bytes() == sizeof(cpu_set_t));
  CHECK(CPU_COUNT_S(set.bytes(), set.data()) == 4);
  for (const std::size_t cpu : {0, 3, 64, 1023}) CHECK(CPU_ISSET_S(cpu, set.bytes(), set.data()));
}

TEST_CASE("a CPU set grows beyond the plain cpu_set_t", "[cpu_list]") {
  const CpuSet set({1, 1024, 5000});
  CHECK(set.bytes() >= 5001 / 8);
  CHECK(CPU_COUNT_S(set.bytes(), set.data()) == 3);
  CHECK(CPU_ISSET_S(std::size_t{5000}, set.bytes(), set.data()));
  CHECK(CPU_COUNT_S(CpuSet({}).bytes(), CpuSet({}).data()) == 0);
}

}  // namespace
}  // namespace ddprun::launcher
