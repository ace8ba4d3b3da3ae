#include "launcher/plan/placement.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using Lists = std::vector<CpuList>;
using Texts = std::vector<std::string>;
constexpr auto kNode = NumaBinding::kNode;
constexpr auto kSocket = NumaBinding::kSocket;
constexpr auto kExclusive = NumaBinding::kExclusive;
constexpr auto kCoreComplex = NumaBinding::kCoreComplex;

/// Two sockets of two nodes, each node of two L3 caches of two cores, core c with the threads c and c + 16:
/// node n has the cores 4n to 4n + 3. Without the CPUs that are forbidden.
CpuMap machine(const CpuList& forbidden = {}) {
  std::map<int, CpuList> nodes, packages, caches, cores;
  for (int cpu = 0; cpu < 32; ++cpu) {
    if (std::find(forbidden.begin(), forbidden.end(), cpu) != forbidden.end()) continue;
    const int core = cpu % 16;
    nodes[core / 4].push_back(cpu);
    packages[core / 8].push_back(cpu);
    caches[core / 2].push_back(cpu);
    cores[core].push_back(cpu);
  }
  CpuMap map;
  for (int i = 0; i < 4; ++i) map.nodes.push_back({i, nodes[i], packages[i / 2]});
  for (const auto& [i, cpus] : packages)
    if (!cpus.empty()) map.packages.push_back(cpus);
  for (const auto& [i, cpus] : caches) map.caches.push_back(cpus);
  for (const auto& [i, cpus] : cores) map.cores.push_back(cpus);
  return map;
}

CpuList range(int first, int last) {
  CpuList cpus(static_cast<std::size_t>(last - first + 1));
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

Texts bound(const CpuMap& map, const std::vector<int>& gpu_nodes, NumaBinding mode, int workers) {
  Texts texts;
  for (const CpuList& cpus : bind_workers(map, gpu_nodes, mode, workers))
    texts.push_back(describe_cpus(cpus));
  return texts;
}

TEST_CASE("workers without GPUs are spread over nodes, packages and caches", "[binding]") {
  CHECK(bound(machine(), {}, kNode, 4) == Texts{"0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"});
  CHECK(bound(machine(), {}, kNode, 2) == Texts{"0-3,16-19", "8-11,24-27"});  // one a package
  CHECK(bound(machine(), {}, kNode, 1) == Texts{"0-3,16-19"});
  CHECK(bound(machine(), {}, kSocket, 2) == Texts{"0-7,16-23", "8-15,24-31"});
  CHECK(bound(machine(), {}, kCoreComplex, 4) == Texts{"0-1,16-17", "4-5,20-21", "8-9,24-25", "12-13,28-29"});
}

TEST_CASE("more workers than units share them evenly and in order", "[binding]") {
  CHECK(bound(machine(), {}, kSocket, 4) == Texts{"0-7,16-23", "0-7,16-23", "8-15,24-31", "8-15,24-31"});
  CHECK(bound(machine(), {}, kSocket, 3) == Texts{"0-7,16-23", "0-7,16-23", "8-15,24-31"});
  const auto nodes = bound(machine(), {}, kNode, 8);
  for (std::size_t i = 0; i < 8; i += 2) CHECK(nodes[i] == nodes[i + 1]);
  CHECK(nodes[0] != nodes[2]);
}

TEST_CASE("exclusive divides all cores, with both threads, and the rest goes to the lowest", "[binding]") {
  CHECK(bound(machine(), {}, kExclusive, 2) == Texts{"0-7,16-23", "8-15,24-31"});
  CHECK(bound(machine(), {}, kExclusive, 3) == Texts{"0-5,16-21", "6-10,22-26", "11-15,27-31"});
  CHECK(bound(machine(), {}, kExclusive, 16)[15] == "15,31");
  CHECK_THROWS_WITH(bind_workers(machine(), {}, kExclusive, 17),
                    "--numa-binding=exclusive: expected a physical core for each of 17 workers, got 16 that "
                    "this process may use");
}

TEST_CASE("exclusive gives every allowed CPU to exactly one worker", "[binding]") {
  const CpuMap map = machine({0, 3, 19, 20, 31});
  for (int workers = 1; workers <= static_cast<int>(map.cores.size()); ++workers) {
    CpuList all;
    for (const CpuList& cpus : bind_workers(map, {}, kExclusive, workers)) {
      CHECK(!cpus.empty());
      all.insert(all.end(), cpus.begin(), cpus.end());
    }
    std::sort(all.begin(), all.end());
    CpuList expected;
    for (const NumaNode& node : map.nodes)
      expected.insert(expected.end(), node.cpus.begin(), node.cpus.end());
    std::sort(expected.begin(), expected.end());
    CHECK(all == expected);
  }
}

TEST_CASE("units where nothing is allowed are passed over", "[binding]") {
  // Only the second socket, and of it only a part of node 2 and one thread of node 3.
  CpuList forbidden = range(0, 7);
  for (const int cpu : {16, 17, 18, 19, 20, 21, 22, 23, 8, 24, 12, 13, 14, 28, 29, 30, 31})
    forbidden.push_back(cpu);
  const CpuMap map = machine(forbidden);
  CHECK(bound(map, {}, kNode, 2) == Texts{"9-11,25-27", "15"});
  CHECK(bound(map, {}, kSocket, 2) == Texts{"9-11,15,25-27", "9-11,15,25-27"});
  CHECK(bound(map, {}, kCoreComplex, 3) == Texts{"9,25", "10-11,26-27", "15"});
  CHECK(bound(map, {}, kExclusive, 2) == Texts{"9-10,25-26", "11,15,27"});
}

TEST_CASE("a map without a CPU is refused", "[binding]") {
  CHECK_THROWS_WITH(bind_workers({}, {}, kNode, 1),
                    "--numa-binding=node: hwloc reports none of the CPUs that this process may use");
}

// -- near GPUs --

TEST_CASE("workers are bound near their GPUs", "[binding]") {
  const std::vector<int> gpus = {3, 0, 2, 0};
  CHECK(bound(machine(), gpus, kNode, 4) == Texts{"12-15,28-31", "0-3,16-19", "8-11,24-27", "0-3,16-19"});
  CHECK(bound(machine(), gpus, kSocket, 3) == Texts{"8-15,24-31", "0-7,16-23", "8-15,24-31"});
}

TEST_CASE("exclusive divides a node among its GPUs, whether or not each has a worker", "[binding]") {
  CHECK(bound(machine(), {1, 0, 1, 1}, kExclusive, 4) == Texts{"4-5,20-21", "0-3,16-19", "6,22", "7,23"});
  CHECK(bound(machine(), {1, 0, 1, 1}, kExclusive, 1) == Texts{"4-5,20-21"});
  CHECK_THROWS_WITH(
      bind_workers(machine({5, 6, 21, 22}), {0, 1, 1, 1}, kExclusive, 4),
      "--numa-binding=exclusive: expected a physical core for each of the 3 GPUs on NUMA node 1, "
      "got 2 allowed there");
}

TEST_CASE("core-complex takes the node's caches in turn, the largest first", "[binding]") {
  CHECK(bound(machine(), {1, 1, 1}, kCoreComplex, 3) == Texts{"4-5,20-21", "6-7,22-23", "4-5,20-21"});
  CHECK(bound(machine({4}), {0, 1, 1}, kCoreComplex, 3) == Texts{"0-1,16-17", "6-7,22-23", "5,20-21"});
}

TEST_CASE("a GPU whose node is not known is on node 0", "[binding]") {
  CHECK(bound(machine(), {-1, 1, 0}, kNode, 3) == Texts{"0-3,16-19", "4-7,20-23", "0-3,16-19"});
  CHECK(bound(machine(), {-1, 1, 0}, kExclusive, 3) == Texts{"0-1,16-17", "4-7,20-23", "2-3,18-19"});
}

TEST_CASE("more workers than GPUs are spread as if there were none", "[binding]") {
  CHECK(bound(machine(), {3, 3}, kNode, 4) == bound(machine(), {}, kNode, 4));
}

TEST_CASE("a GPU on a node where nothing is allowed is refused, but its socket will do", "[binding]") {
  const CpuMap map = machine({4, 5, 6, 7, 20, 21, 22, 23});
  CHECK_THROWS_WITH(
      bind_workers(map, {0, 1}, kNode, 2),
      "--numa-binding=node: expected CPUs near the GPU of local rank 1, got none that this process "
      "may use on NUMA node 1");
  CHECK_THROWS_AS(bind_workers(map, {0, 1}, kCoreComplex, 2), UsageError);
  CHECK_THROWS_AS(bind_workers(map, {0, 1}, kExclusive, 2), UsageError);
  CHECK_THROWS_AS(bind_workers(map, {0, 9}, kSocket, 2), UsageError);  // no such node
  CHECK(bound(map, {0, 1}, kSocket, 2) == Texts{"0-3,16-19", "0-3,16-19"});
}

}  // namespace
}  // namespace ddprun::launcher
