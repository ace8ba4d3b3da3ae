#include <ddprun/report/resource_usage.h>

#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include <ddprun/common/recovery.h>
#include "tests/support/catch.h"
#include "tests/support/fake_nvml.h"

namespace ddprun::report {
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
  CHECK(busy.cpu_percent > 0);
  CHECK(busy.cpu_percent < 150);  // one thread
  ::usleep(50000);
  CHECK(usage.sample().cpu_percent < busy.cpu_percent);
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
  CHECK(before.rss_mb > 1);
  CHECK(before.peak_rss_mb >= before.rss_mb);
  double during = 0;
  {
    std::vector<char> block(64 << 20);
    std::memset(block.data(), 1, block.size());
    during = usage.sample().rss_mb;
  }
  CHECK(during > before.rss_mb + 60);
  const auto after = usage.sample();
  CHECK(after.rss_mb < during);
  CHECK(after.peak_rss_mb >= during - 1);
}

TEST_CASE("without a GPU nothing is told of one", "[resource_usage]") {
  for (const char* uuid : {"", "GPU-aaaa"}) {
    const auto sample = ResourceUsage(uuid).sample();
    CHECK(!sample.gpu_percent);
    CHECK(!sample.gpu_memory_mb);
  }
}

TEST_CASE("a GPU is found by its UUID, in either spelling", "[resource_usage]") {
  const test::FakeNvml nvml("uuid=GPU-aa-11 busy=5;uuid=GPU-bb-22 busy=37 total=1000 used=300 reserved=50");
  for (const char* uuid : {"GPU-bb-22", "BB22"}) {
    ResourceUsage usage(uuid);
    const auto sample = usage.sample();
    CHECK(sample.gpu_percent == 37.0);
    CHECK(sample.gpu_memory_mb == 300.0);
  }
  CHECK(!ResourceUsage("GPU-cc-33").sample().gpu_percent);
}

TEST_CASE("the ranks' samples make one row", "[resource_usage]") {
  ResourceSample cpu_only{50, 100, 200}, with_gpu{60, 110, 210, 90, 4000};
  with_gpu.gpu_peak_mb = 3000;
  CHECK(resource_row({cpu_only}) == MetricRow{{"cpu_percent", 50}, {"rss_mb", 100}, {"peak_rss_mb", 200}});
  CHECK(resource_row({cpu_only, with_gpu}) == MetricRow{{"cpu_percent_rank0", 50},
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
  CHECK(resource_row(many) == MetricRow{{"cpu_percent_min", 50},
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

TEST_CASE("a sample survives being sent as numbers", "[resource_usage]") {
  ResourceSample sample{50, 100, 200, {}, 4000};
  sample.gpu_reserved_mb = 5000;
  const auto same = sample_of(numbers_of(sample));
  CHECK(same.gpu_reserved_mb == 5000.0);
  CHECK(!same.gpu_allocated_mb);
  CHECK(same.cpu_percent == 50);
  CHECK(same.peak_rss_mb == 200);
  CHECK(!same.gpu_percent);
  CHECK(same.gpu_memory_mb == 4000.0);
  CHECK_THROWS_AS(sample_of({1, 2}), std::invalid_argument);
}

}  // namespace
}  // namespace ddprun::report
