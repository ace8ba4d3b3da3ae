#include "launcher/host/topology.h"

#include <ddprun/common/errors.h>
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

}  // namespace
}  // namespace ddprun::launcher
