#include "launcher/host/topology.h"

#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "tests/support/fake_nvml.h"

namespace ddprun::launcher {
namespace {

using Entries = std::vector<std::string>;

/// A made-up sysfs.
struct Sysfs {
  void add(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((folder.path() / file).parent_path());
    write_file_atomic(folder.path() / file, text);
  }
  void add_amd(int node, const std::string& gpu_id) const {
    add("class/kfd/kfd/topology/nodes/" + std::to_string(node) + "/gpu_id", gpu_id + "\n");
  }
  /// A card with its PCI device.
  void add_card(int number, const std::string& bus_id, const std::string& vendor) const {
    const std::string card = "class/drm/card" + std::to_string(number);
    add("devices/" + bus_id + "/vendor", vendor + "\n");
    std::filesystem::create_directories(folder.path() / card);
    std::filesystem::create_directory_symlink(folder.path() / "devices" / bus_id,
                                              folder.path() / card / "device");
  }
  TempDir folder;
};

/// Only these variables that choose GPUs, while it lives.
struct GpuVariables {
  explicit GpuVariables(std::initializer_list<std::pair<const char*, const char*>> values) {
    clear();
    for (const auto& [name, value] : values) ::setenv(name, value, 1);
  }
  ~GpuVariables() { clear(); }
  static void clear() {
    for (const char* name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                             "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"})
      ::unsetenv(name);
  }
};

TEST_CASE("AMD's GPUs are the nodes with an id", "[sysfs_gpus]") {
  const Sysfs sysfs;
  CHECK(amd_gpus(sysfs.folder.path()).entries.empty());
  sysfs.add_amd(0, "0");  // the CPU
  sysfs.add_amd(1, "4098");
  sysfs.add_amd(2, "51236");
  sysfs.add_amd(10, "777");
  {
    const GpuVariables none({});
    CHECK(amd_gpus(sysfs.folder.path()).entries == Entries{"0", "1", "2"});
  }
  {
    const GpuVariables some({{"ROCR_VISIBLE_DEVICES", "2, 0,7,1"}, {"HIP_VISIBLE_DEVICES", "1"}});
    CHECK(amd_gpus(sysfs.folder.path()).entries == Entries{"0"});
  }
  const GpuVariables none_visible({{"HIP_VISIBLE_DEVICES", ""}});
  CHECK(amd_gpus(sysfs.folder.path()).entries.empty());
}

TEST_CASE("Intel's GPUs are cards and their tiles, without the one inside the CPU", "[sysfs_gpus]") {
  const Sysfs sysfs;
  sysfs.add_card(0, "0000:00:02.0", "0x8086");
  sysfs.add_card(1, "0000:03:00.0", "0x8086");
  sysfs.add_card(2, "0000:04:00.0", "0x1002");
  sysfs.add_card(3, "0000:05:00.0", "0x8086");
  sysfs.add("class/drm/card1-DP-1/status", "connected");
  sysfs.add("devices/0000:05:00.0/tile0/gt0/id", "0");
  sysfs.add("devices/0000:05:00.0/tile1/gt1/id", "1");
  {
    const GpuVariables none({});
    CHECK(intel_gpus(sysfs.folder.path()).entries == Entries{"0", "1", "2"});
  }
  {
    const GpuVariables whole({{"ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE"}});
    CHECK(intel_gpus(sysfs.folder.path()).entries == Entries{"0", "1"});
  }
  const GpuVariables some({{"ZE_AFFINITY_MASK", "1.0,1.1"}});
  CHECK(intel_gpus(sysfs.folder.path()).entries == Entries{"1.0", "1.1"});
}

TEST_CASE("NVIDIA's GPUs come before AMD's, and those before Intel's", "[sysfs_gpus]") {
  const GpuVariables none({});
  const Sysfs sysfs;
  sysfs.add_card(0, "0000:03:00.0", "0x8086");
  {
    const test::FakeNvml nvml("error=9");
    Topology topology = detect_topology(WantedGpus::kAny, sysfs.folder.path());
    CHECK(topology.gpus == 1);
    CHECK(topology.gpu_variable == "ZE_AFFINITY_MASK");
    sysfs.add_amd(1, "1");
    sysfs.add_amd(2, "2");
    topology = detect_topology(WantedGpus::kAny, sysfs.folder.path());
    CHECK(topology.gpus == 2);
    CHECK(topology.gpu_variable == "ROCR_VISIBLE_DEVICES");
    CHECK(topology.visible.at(1).name == "1");
  }
  const test::FakeNvml nvml("uuid=GPU-aaaa");
  CHECK(detect_topology(WantedGpus::kAny, sysfs.folder.path()).gpu_variable == "CUDA_VISIBLE_DEVICES");
  CHECK(detect_topology(WantedGpus::kIntel, sysfs.folder.path()).gpu_variable == "ZE_AFFINITY_MASK");
  CHECK(detect_topology(WantedGpus::kNone, sysfs.folder.path()).gpus == 0);
}

}  // namespace
}  // namespace ddprun::launcher
