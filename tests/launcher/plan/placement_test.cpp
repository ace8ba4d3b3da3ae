#include "launcher/plan/placement.h"

#include <sstream>

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using test::ContainsSubstring;

const std::vector<NumaNode> kNodes = {{0, {0, 1, 2, 3}, {}}, {1, {4, 5, 6, 7}, {}}};

TEST_CASE("the CPU table has a heading and a line a rank", "[placement]") {
  CHECK(cpu_table({{8, 0, "", {0, 1, 2, 3}}, {9, 1, "", {2, 3, 4, 5}}, {10, 2, "", {7}}}, kNodes) ==
        "rank  local rank  NUMA  CPUs\n"
        "   8           0  0     0-3\n"
        "   9           1  0-1   2-5\n"
        "  10           2  1     7\n");
}

TEST_CASE("the CPU table shows GPUs where there are any", "[placement]") {
  CHECK(cpu_table({{0, 0, "0 (0000:3b:00.0)", {0}}, {1, 1, "", {4}}}, kNodes) ==
        "rank  local rank  GPU               NUMA  CPUs\n"
        "   0           0  0 (0000:3b:00.0)  0     0\n"
        "   1           1  -                 1     4\n");
}

TEST_CASE("the CPU table says so when nodes are not known", "[placement]") {
  CHECK(cpu_table({{0, 0, "", {0, 1}}}, {}) ==
        "rank  local rank  NUMA  CPUs\n"
        "   0           0  -     0-1\n");
}

TEST_CASE("the CPU table fits a hundred columns, whatever is in it", "[placement]") {
  CpuList scattered;
  for (int cpu = 0; cpu < 2000; cpu += 2) scattered.push_back(cpu);
  std::vector<NumaNode> nodes;
  for (int i = 0; i < 200; i += 2) nodes.push_back({i, {10 * i}, {}});
  const std::string text =
      cpu_table({{1234567, 4095, "MIG-01234567-89ab-cdef-0123-456789abcdef", scattered}}, nodes);
  std::istringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) CHECK(line.size() <= 100);
  CHECK(count == 2);
  CHECK_THAT(text, ContainsSubstring("0,2,4,6,"));
  CHECK_THAT(text, ContainsSubstring(",... (1000 CPUs)\n"));
  CHECK_THAT(text, ContainsSubstring("MIG-01234567-89ab-cdef-01..."));
}

TEST_CASE("no number of a long list is cut in two", "[placement]") {
  for (int extra = 0; extra < 12; ++extra) {
    CpuList cpus;
    for (int cpu = 100; cpu < 400; cpu += 2) cpus.push_back(cpu);
    for (int i = 0; i < extra; ++i) cpus.insert(cpus.begin(), 90 - 3 * i);
    const std::string text = cpu_table({{0, 0, "", cpus}}, {});
    const auto end = text.find(",... (");
    REQUIRE(end != std::string::npos);
    const std::string last = text.substr(text.rfind(',', end - 1) + 1, end - text.rfind(',', end - 1) - 1);
    CHECK(last.size() == 3);
  }
}

}  // namespace
}  // namespace ddprun::launcher
