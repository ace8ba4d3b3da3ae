#include <ddprun/train/record/rank_resources.h>

#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <string>

#include <ddprun/common/recovery.h>
#include "tests/support/catch.h"
#include "tests/support/fake_nvml.h"

namespace ddprun::train {
namespace {

/// Keeps the processor busy for so much of its time.
void compute(double cpu_seconds) {
  volatile double sink = 0;
  for (const auto end = std::clock() + static_cast<std::clock_t>(cpu_seconds * CLOCKS_PER_SEC);
       std::clock() < end;)
    sink = sink + 1;
}

TEST_CASE("the CPU's share is of the time since the sample before", "[resource_usage]") {
  ResourceUsage usage;
  compute(0.1);
  const auto busy = usage.sample();
  CHECK(busy[kCpu] > 0);
  CHECK(busy[kCpu] < 150);  // one thread
  ::usleep(50000);
  CHECK(usage.sample()[kCpu] < busy[kCpu]);
}

TEST_CASE("a process that stood by is as old as its order to become a worker", "[resource_usage]") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  ::setenv("DDPRUN_STANDBY_FD", std::to_string(ends[1]).c_str(), 1);
  REQUIRE(send_order(ends[0], {}));
  compute(0.1);
  const double before = process_seconds();
  stand_by();
  CHECK(process_seconds() < before);
  ::close(ends[0]);
}

TEST_CASE("memory is told as it grows, and the peak stays", "[resource_usage]") {
  ResourceUsage usage;
  const auto before = usage.sample();
  CHECK(before[kRss] > 1);
  CHECK(before[kPeakRss] >= before[kRss]);
  double during = 0;
  {
    std::vector<char> block(64 << 20);
    std::memset(block.data(), 1, block.size());
    during = usage.sample()[kRss];
  }
  CHECK(during > before[kRss] + 60);
  const auto after = usage.sample();
  CHECK(after[kRss] < during);
  CHECK(after[kPeakRss] >= during - 1);
}

TEST_CASE("without a GPU nothing is told of one", "[resource_usage]") {
  for (const char* uuid : {"", "GPU-aaaa"}) {
    const auto sample = ResourceUsage(uuid).sample();
    CHECK(std::isnan(sample[kGpu]));
    CHECK(std::isnan(sample[kGpuMemory]));
  }
}

TEST_CASE("a GPU is found by its UUID, in either spelling", "[resource_usage]") {
  const test::FakeNvml nvml("uuid=GPU-aa-11 busy=5;uuid=GPU-bb-22 busy=37 total=1000 used=300 reserved=50");
  for (const char* uuid : {"GPU-bb-22", "BB22"}) {
    ResourceUsage usage(uuid);
    const auto sample = usage.sample();
    CHECK(sample[kGpu] == 37.0);
    CHECK(sample[kGpuMemory] == 300.0);
  }
  CHECK(std::isnan(ResourceUsage("GPU-cc-33").sample()[kGpu]));
}

TEST_CASE("the ranks' samples make one row", "[resource_usage]") {
  constexpr double kNotKnown = std::numeric_limits<double>::quiet_NaN();
  ResourceSample cpu_only{50, 100, 200}, with_gpu{60, 110, 210, 90, 4000, kNotKnown, kNotKnown, 3000};
  for (const auto figure : {kGpu, kGpuMemory, kGpuAllocated, kGpuReserved, kGpuPeak})
    cpu_only[figure] = kNotKnown;
  CHECK(resource_row({cpu_only}) ==
        report::MetricRow{{"cpu_percent", 50}, {"rss_mb", 100}, {"peak_rss_mb", 200}});
  CHECK(resource_row({cpu_only, with_gpu}) == report::MetricRow{{"cpu_percent_rank0", 50},
                                                                {"cpu_percent_rank1", 60},
                                                                {"rss_mb_rank0", 100},
                                                                {"rss_mb_rank1", 110},
                                                                {"peak_rss_mb_rank0", 200},
                                                                {"peak_rss_mb_rank1", 210},
                                                                {"gpu_percent_rank1", 90},
                                                                {"gpu_memory_mb_rank1", 4000},
                                                                {"gpu_peak_mb_rank1", 3000}});
  std::vector<ResourceSample> many(20, cpu_only);
  many[7] = with_gpu;
  CHECK(resource_row(many) == report::MetricRow{{"cpu_percent_min", 50},
                                                {"cpu_percent_max", 60},
                                                {"rss_mb_min", 100},
                                                {"rss_mb_max", 110},
                                                {"peak_rss_mb_min", 200},
                                                {"peak_rss_mb_max", 210},
                                                {"gpu_percent_min", 90},
                                                {"gpu_percent_max", 90},
                                                {"gpu_memory_mb_min", 4000},
                                                {"gpu_memory_mb_max", 4000},
                                                {"gpu_peak_mb_min", 3000},
                                                {"gpu_peak_mb_max", 3000}});
}

TEST_CASE("every name of a row is among the columns", "[resource_usage]") {
  const ResourceSample sample{1, 2, 3, 4, 5, 6, 7, 8};
  for (const int ranks : {1, 2, 16, 17}) {
    std::vector<std::string> names;
    for (const auto& [name, value] : resource_row(std::vector(static_cast<std::size_t>(ranks), sample)))
      names.push_back(name);
    CHECK(names == resource_columns(ranks, true));
  }
  CHECK(resource_columns(1, false) == std::vector<std::string>{"cpu_percent", "rss_mb", "peak_rss_mb"});
}

TEST_CASE("a rank's GPU memory is told in GB", "[resources]") {
  CHECK(describe(GpuMemory{1280, 2048, 1843.2, 4096}, 3) ==
        "GPU memory of rank 3: 1.25 GB allocated, 2.00 GB reserved, 1.80 GB allocated at its peak");
  CHECK_FALSE(gpu_memory(at::kCPU));
}

}  // namespace
}  // namespace ddprun::train
