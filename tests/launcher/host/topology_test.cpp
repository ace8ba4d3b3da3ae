#include "launcher/host/topology.h"

#include <thread>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "launcher/host/cpus.h"
#include "tests/support/catch.h"
#include "tests/support/fake_nvml.h"

namespace ddprun::launcher {
namespace {

using test::FakeNvml;

/// CUDA_VISIBLE_DEVICES while it lives.
struct VisibleDevices {
  explicit VisibleDevices(const char* value) { ::setenv("CUDA_VISIBLE_DEVICES", value, 1); }
  ~VisibleDevices() { ::unsetenv("CUDA_VISIBLE_DEVICES"); }
};

TEST_CASE("this host has CPUs, and no more may compute at once than are allowed", "[topology]") {
  const Topology topology = detect_topology(WantedGpus::kNone);
  CHECK(topology.cpus >= 1);
  CHECK(topology.allowed_cpus == allowed_cpus());
  CHECK(static_cast<std::size_t>(topology.cpus) <= topology.allowed_cpus.size());
}

TEST_CASE("GPUs are looked for only when wanted", "[topology]") {
  const FakeNvml nvml("uuid=GPU-aaaa;uuid=GPU-bbbb");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const Topology without = detect_topology(WantedGpus::kNone);
  CHECK(without.gpus == 0);
  CHECK(without.host_gpus.empty());
  const Topology with = detect_topology(WantedGpus::kAny);
  CHECK(with.gpus == 2);
  CHECK(with.host_gpus.size() == 2);
  CHECK(with.visible.size() == 2);
}

TEST_CASE("CUDA_VISIBLE_DEVICES chooses among the host's GPUs", "[topology]") {
  const FakeNvml nvml("uuid=GPU-aaaa;uuid=GPU-bbbb mig=MIG-1 mig=MIG-2");
  {
    const VisibleDevices visible("1");
    const Topology topology = detect_topology(WantedGpus::kAny);
    CHECK(topology.gpus == 1);
    CHECK(topology.host_gpus.size() == 2);
    CHECK(topology.visible.at(0).gpu == 1);
  }
  {
    const VisibleDevices visible("MIG-1,MIG-2");
    const Topology topology = detect_topology(WantedGpus::kAny);
    CHECK(topology.gpus == 1);
    CHECK(topology.visible.size() == 2);
  }
  const VisibleDevices twice("0,GPU-aaaa");
  CHECK_THROWS_AS(detect_topology(WantedGpus::kAny), UsageError);
}

TEST_CASE("a broken driver means no GPUs, and a reason", "[topology]") {
  const FakeNvml nvml("error=18");
  const Topology topology = detect_topology(WantedGpus::kAny);
  CHECK(topology.gpus == 0);
  CHECK(topology.gpu_problem == "Driver/library version mismatch");
}

using test::Approx;

/// A file system's root with cgroups in it.
class Root {
 public:
  explicit Root(const std::string& own_cgroups) { write("proc/self/cgroup", own_cgroups); }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((folder_.path() / path).parent_path());
    write_file_atomic(folder_.path() / path, text);
  }
  std::optional<double> quota() const { return cpu_quota(folder_.path()); }

 private:
  TempDir folder_{"ddprun-test"};
};

Root version2(const std::string& own) { return Root("0::" + own + "\n"); }

Root version1(const std::string& own) {
  return Root("12:memory:/elsewhere\n4:cpu,cpuacct:" + own + "\n0::/unified\n");
}

TEST_CASE("without cgroups there is no quota", "[cpu_limits]") {
  CHECK(!Root("").quota());
  CHECK(!cpu_quota("/nowhere"));
  CHECK(!version2("/job").quota());
  CHECK(!version1("/job").quota());
}

TEST_CASE("the quota of cgroup version 2 is read", "[cpu_limits]") {
  const Root root = version2("/job");
  root.write("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  CHECK(root.quota() == Approx(1.5));
  root.write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  CHECK(!root.quota());
}

TEST_CASE("the quota of cgroup version 1 is read", "[cpu_limits]") {
  const Root root = version1("/docker/job");
  root.write("sys/fs/cgroup/cpu,cpuacct/docker/job/cpu.cfs_quota_us", "400000\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/docker/job/cpu.cfs_period_us", "100000\n");
  CHECK(root.quota() == Approx(4));
  root.write("sys/fs/cgroup/cpu,cpuacct/docker/job/cpu.cfs_quota_us", "-1\n");
  CHECK(!root.quota());
}

TEST_CASE("the least quota of all cgroups above counts", "[cpu_limits]") {
  const Root root = version2("/pod/container/job");
  root.write("sys/fs/cgroup/pod/container/job/cpu.max", "800000 100000\n");
  root.write("sys/fs/cgroup/pod/cpu.max", "300000 100000\n");
  root.write("sys/fs/cgroup/cpu.max", "max 100000\n");
  CHECK(root.quota() == Approx(3));
}

TEST_CASE("the least quota of both versions counts", "[cpu_limits]") {
  const Root root("4:cpu:/job\n0::/job\n");
  root.write("sys/fs/cgroup/unified/job/cpu.max", "600000 100000\n");
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "500000\n");
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  CHECK(root.quota() == Approx(5));
}

TEST_CASE("a container that sees only its part of the hierarchy finds its cgroup in it", "[cpu_limits]") {
  const Root itself = version1("/docker/abc");
  itself.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n");
  itself.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  CHECK(itself.quota() == Approx(2.5));
  const Root below = version2("/docker/abc/job");
  below.write("sys/fs/cgroup/job/cpu.max", "200000 100000\n");
  below.write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  CHECK(below.quota() == Approx(2));
  const Root outside = version2("/../other");
  outside.write("sys/fs/cgroup/cpu.max", "100000 100000\n");
  outside.write("sys/fs/other/cpu.max", "50000 100000\n");
  CHECK(outside.quota() == Approx(1));
}

TEST_CASE("usable CPUs are the allowed ones, or what the quota pays for, and at least one", "[cpu_limits]") {
  const CpuList eight = {0, 1, 2, 3, 4, 5, 6, 7};
  CHECK(usable_cpus(eight, std::nullopt) == 8);
  CHECK(usable_cpus(eight, 1.5) == 2);
  CHECK(usable_cpus(eight, 2.0) == 2);
  CHECK(usable_cpus(eight, 0.1) == 1);
  CHECK(usable_cpus(eight, 1e12) == 8);
  CHECK(usable_cpus({}, std::nullopt) == 1);
}

TEST_CASE("the allowed CPUs follow the affinity", "[cpu_limits]") {
  const CpuList before = allowed_cpus();
  REQUIRE(!before.empty());
  CpuList within;
  std::thread([&] {  // affinity is a thread's: the others keep theirs
    const CpuSet last({before.back()});
    if (::sched_setaffinity(0, last.bytes(), last.data()) == 0) within = allowed_cpus();
  })
      .join();
  CHECK(within == CpuList{before.back()});
}

}  // namespace
}  // namespace ddprun::launcher
