#include "launcher/host/gpu_list.h"

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using test::ContainsSubstring;
using Names = std::vector<std::string>;

std::vector<Gpu> four() {
  std::vector<Gpu> gpus(4);
  const char* uuids[] = {"GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333", "GPU-cccc4444"};
  for (int i = 0; i < 4; ++i) {
    Gpu& gpu = gpus[static_cast<std::size_t>(i)];
    gpu.index = i;
    gpu.uuid = uuids[i];
    gpu.numa_node = i / 2;
  }
  return gpus;
}

/// Two of its four GPUs are divided.
std::vector<Gpu> divided() {
  auto gpus = four();
  gpus[2].mig_uuids = {"MIG-1111", "MIG-1222"};
  gpus[3].mig_uuids = {"MIG-3333"};
  return gpus;
}

std::vector<int> positions(const std::vector<Gpu>& host, const std::optional<std::string>& visible) {
  std::vector<int> list;
  for (const VisibleGpu& gpu : visible_gpus(host, visible)) list.push_back(gpu.gpu);
  return list;
}

std::size_t in_one_process(const std::vector<Gpu>& host, const std::string& visible) {
  return gpus_of_one_process(visible_gpus(host, visible)).size();
}

TEST_CASE("without CUDA_VISIBLE_DEVICES all GPUs are visible", "[gpu_list]") {
  CHECK(positions(four(), std::nullopt) == std::vector<int>{0, 1, 2, 3});
  CHECK(positions({}, std::nullopt).empty());
}

TEST_CASE("CUDA_VISIBLE_DEVICES chooses by index and by UUID, in its order", "[gpu_list]") {
  CHECK(positions(four(), "0") == std::vector<int>{0});
  CHECK(positions(four(), "3,1") == std::vector<int>{3, 1});
  CHECK(positions(four(), " 0 , 2 ") == std::vector<int>{0, 2});
  CHECK(positions(four(), "GPU-bbbb3333") == std::vector<int>{2});
  CHECK(positions(four(), "GPU-b,GPU-c,0") == std::vector<int>{2, 3, 0});
}

TEST_CASE("an empty CUDA_VISIBLE_DEVICES or -1 hides all GPUs", "[gpu_list]") {
  CHECK(positions(four(), "").empty());
  CHECK(positions(four(), "-1").empty());
}

TEST_CASE("what names no GPU ends the list", "[gpu_list]") {
  CHECK(positions(four(), "0,1,9,2") == std::vector<int>{0, 1});
  CHECK(positions(four(), "0,-1,2") == std::vector<int>{0});
  CHECK(positions(four(), "0,,2") == std::vector<int>{0});
  CHECK(positions(four(), "1x").empty());
  CHECK(positions(four(), "GPU-aaaa,0").empty());  // ambiguous
  CHECK(positions(four(), "GPU-dddd").empty());
  CHECK(positions(four(), "0,9,0") == std::vector<int>{0});
  CHECK(positions({}, "0,0").empty());
}

TEST_CASE("a GPU named twice is refused", "[gpu_list]") {
  CHECK_THROWS_AS(visible_gpus(four(), "0,0"), UsageError);
  CHECK_THROWS_AS(visible_gpus(divided(), "MIG-1111,MIG-1111"), UsageError);
  CHECK_THROWS_WITH(visible_gpus(four(), "2,0,GPU-aaaa1"),
                    "CUDA_VISIBLE_DEVICES: expected each GPU once, got 'GPU-aaaa1' after '0' in "
                    "'2,0,GPU-aaaa1'");
}

TEST_CASE("MIG instances are found on their GPU", "[gpu_list]") {
  CHECK(positions(divided(), "MIG-3,MIG-1222,MIG-1111") == std::vector<int>{3, 2, 2});
  CHECK(positions(divided(), "MIG-GPU-aaaa2222/7/0") == std::vector<int>{1});
  CHECK(positions(divided(), "MIG-9999") == std::vector<int>{-1});  // NVML does not tell
  CHECK(positions({}, "MIG-1111").empty());
}

TEST_CASE("one process sees one MIG instance at most", "[gpu_list]") {
  CHECK(in_one_process(four(), "0,2") == 2);
  CHECK(in_one_process(divided(), "MIG-1111,MIG-1222,0") == 1);
  CHECK(in_one_process(divided(), "0,1,MIG-1222") == 2);
  CHECK(in_one_process(four(), "") == 0);
}

TEST_CASE("the NUMA nodes of visible GPUs are in their order", "[gpu_list]") {
  CHECK(numa_nodes(divided(), visible_gpus(divided(), "3,0,MIG-1111,MIG-9999")) ==
        std::vector<int>{1, 0, 1, -1});
}

TEST_CASE("virtual local ranks get an entry each", "[gpu_list]") {
  CHECK(one_gpu_each(four(), std::nullopt, 2) == Names{"0", "1"});
  CHECK(one_gpu_each(four(), "3, GPU-aaaa1111,2", 2) == Names{"3", "GPU-aaaa1111"});
  CHECK(one_gpu_each(divided(), "MIG-1111,MIG-1222,MIG-3333", 3) ==
        Names{"MIG-1111", "MIG-1222", "MIG-3333"});
}

TEST_CASE("virtual local ranks take entries as they are written where NVML is missing", "[gpu_list]") {
  CHECK(one_gpu_each({}, "4,7", 2) == Names{"4", "7"});
  CHECK_THROWS_AS(one_gpu_each({}, "4,4", 2), UsageError);
  CHECK_THROWS_AS(one_gpu_each({}, "4,-1,5", 2), UsageError);
}

TEST_CASE("more virtual local ranks than GPUs are refused", "[gpu_list]") {
  CHECK_THROWS_WITH(one_gpu_each(four(), "1,2", 3),
                    "--virtual-local-rank: expected a GPU for each worker (3), found 2 "
                    "(CUDA_VISIBLE_DEVICES='1,2')");
  CHECK_THROWS_AS(one_gpu_each(four(), std::nullopt, 5), UsageError);
  CHECK_THROWS_AS(one_gpu_each(four(), "", 1), UsageError);
  CHECK_THROWS_WITH(one_gpu_each({}, std::nullopt, 1),
                    "--virtual-local-rank: expected a GPU for each worker (1), found none");
}

}  // namespace
}  // namespace ddprun::launcher
