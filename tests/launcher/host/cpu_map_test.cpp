#include "launcher/host/cpus.h"

#include <cstdlib>
#include <numeric>

#include <ddprun/common/errors.h>
#include "launcher/host/topology.h"
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using test::ContainsSubstring;
using Groups = std::vector<CpuList>;

CpuList range(int first, int last) {
  CpuList cpus(static_cast<std::size_t>(last - first + 1));
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

/// What hwloc makes of one of its descriptions of a machine.
CpuMap synthetic(const char* machine, const CpuList& allowed) {
  ::setenv("HWLOC_SYNTHETIC", machine, 1);
  CpuMap map = read_cpu_map(allowed);
  ::unsetenv("HWLOC_SYNTHETIC");
  return map;
}

// Two packages of two nodes, each node of two caches of two cores with two threads.
constexpr const char* kLarge = "pack:2 numa:2 l3:2 core:2 pu:2";

TEST_CASE("the map shows nodes, packages, caches and cores", "[cpu_map]") {
  const CpuMap map = synthetic(kLarge, range(0, 31));
  REQUIRE(map.nodes.size() == 4);
  for (int i = 0; i < 4; ++i) {
    const NumaNode& node = map.nodes[static_cast<std::size_t>(i)];
    CHECK(node.index == i);
    CHECK(node.cpus == range(8 * i, 8 * i + 7));
    CHECK(node.package_cpus == (i < 2 ? range(0, 15) : range(16, 31)));
  }
  CHECK(map.packages == Groups{range(0, 15), range(16, 31)});
  CHECK(map.caches.size() == 8);
  CHECK(map.caches[1] == range(4, 7));
  CHECK(map.cores.size() == 16);
  CHECK(map.cores[15] == CpuList{30, 31});
}

TEST_CASE("the map keeps to the allowed CPUs", "[cpu_map]") {
  const CpuMap map = synthetic(kLarge, {1, 2, 3, 9, 12});
  REQUIRE(map.nodes.size() == 4);
  CHECK(map.nodes[0].cpus == CpuList{1, 2, 3});
  CHECK(map.nodes[1].cpus == CpuList{9, 12});
  CHECK(map.nodes[2].cpus.empty());
  CHECK(map.nodes[0].package_cpus == CpuList{1, 2, 3, 9, 12});
  CHECK(map.nodes[2].package_cpus.empty());
  CHECK(map.packages == Groups{{1, 2, 3, 9, 12}});
  CHECK(map.caches == Groups{{1, 2, 3}, {9}, {12}});
  CHECK(map.cores == Groups{{1}, {2, 3}, {9}, {12}});
}

TEST_CASE("cores are in the order of place and not of number", "[cpu_map]") {
  // As many machines count: all cores first, then their second threads, going round the packages.
  const CpuMap map = synthetic("pack:2 core:2 pu:2(indexes=0,4,2,6,1,5,3,7)", range(0, 7));
  CHECK(map.packages == Groups{{0, 2, 4, 6}, {1, 3, 5, 7}});
  CHECK(map.cores == Groups{{0, 4}, {2, 6}, {1, 5}, {3, 7}});
}

TEST_CASE("one node over two packages belongs to both", "[cpu_map]") {
  const CpuMap map = synthetic("numa:1 pack:2 core:2 pu:1", range(0, 3));
  REQUIRE(map.nodes.size() == 1);
  CHECK(map.nodes[0].package_cpus == range(0, 3));
  CHECK(map.packages == Groups{{0, 1}, {2, 3}});
}

TEST_CASE("what hwloc does not know is replaced by the next that it knows", "[cpu_map]") {
  const CpuMap bare = synthetic("numa:2 pu:2", range(0, 3));
  CHECK(bare.packages == Groups{range(0, 3)});
  CHECK(bare.caches == Groups{range(0, 3)});
  CHECK(bare.cores == Groups{{0}, {1}, {2}, {3}});
  REQUIRE(bare.nodes.size() == 2);
  CHECK(bare.nodes[1].package_cpus == CpuList{2, 3});
  const CpuMap small = synthetic("pack:1 l2:2 core:1 pu:2", range(0, 3));
  CHECK(small.caches == Groups{{0, 1}, {2, 3}});
  const CpuMap outer = synthetic("pack:1 l4:1 l3:2 core:1 pu:2", range(0, 3));
  CHECK(outer.caches == Groups{range(0, 3)});
}

TEST_CASE("this host's map holds each allowed CPU once and leaves the affinity alone", "[cpu_map]") {
  const CpuList allowed = allowed_cpus();
  const CpuMap map = read_cpu_map(allowed);
  CHECK(allowed_cpus() == allowed);
  CpuList in_nodes, in_cores;
  for (const NumaNode& node : map.nodes) in_nodes.insert(in_nodes.end(), node.cpus.begin(), node.cpus.end());
  for (const CpuList& core : map.cores) in_cores.insert(in_cores.end(), core.begin(), core.end());
  std::sort(in_nodes.begin(), in_nodes.end());
  std::sort(in_cores.begin(), in_cores.end());
  CHECK(in_nodes == allowed);
  CHECK(in_cores == allowed);
}

TEST_CASE("a missing hwloc is one line that says what to install", "[cpu_map]") {
  CHECK_THROWS_AS(read_cpu_map({0}, "libhwloc.so.none"), UsageError);
  CHECK_THROWS_WITH(read_cpu_map({0}, "libhwloc.so.none"),
                    ContainsSubstring("--numa-binding needs libhwloc (Debian: libhwloc15)"));
  CHECK_THROWS_WITH(read_cpu_map({0}, "libc.so.6"), ContainsSubstring("needs libhwloc 2"));
}

}  // namespace
}  // namespace ddprun::launcher
