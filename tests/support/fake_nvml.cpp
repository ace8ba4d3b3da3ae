// A libnvidia-ml.so.1 without GPUs: reports what FAKE_NVML describes at initialisation.
//
// FAKE_NVML    GPUs separated by semicolons, each of words "key=value" in any order:
//                uuid=GPU-aaaa     name=A100     bus=3b (hexadecimal)     ecc=2     busy=37
//                mig=MIG-1111 (may be repeated)     total=81920 used=100 reserved=500 (MiB)
//                process=PID:MIB, graphics=PID:MIB (may be repeated)
//              or "error=18": the result of nvmlInit
//
// A program finds it through LD_LIBRARY_PATH=DDPRUN_FAKE_NVML_DIR. A test loads the file (DDPRUN_FAKE_NVML):
// dlopen("libnvidia-ml.so.1") then finds what is loaded under that name.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Process {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};

struct FakeGpu {
  std::string uuid, name = "GPU";
  unsigned bus = 0;
  unsigned long long total = 0, used = 0, reserved = 0, ecc = 0;
  unsigned busy = 0;
  std::vector<Process> compute, graphics;
  std::vector<FakeGpu> instances;
};

struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct Memory {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

constexpr int kSuccess = 0, kNotSupported = 3, kNotFound = 6, kInsufficientSize = 7;

std::vector<FakeGpu> gpus;

unsigned long long mebibytes(const std::string& text) { return std::stoull(text) << 20; }

Process process(const std::string& text) {
  const auto colon = text.find(':');
  const auto memory = text.substr(colon + 1);
  return {static_cast<unsigned>(std::stoul(text)), memory == "unknown" ? ~0ULL : mebibytes(memory), 0, 0};
}

void set(FakeGpu& gpu, const std::string& key, const std::string& value) {
  if (key == "uuid") gpu.uuid = value;
  if (key == "name") gpu.name = value;
  if (key == "bus") gpu.bus = static_cast<unsigned>(std::stoul(value, nullptr, 16));
  if (key == "ecc") gpu.ecc = std::stoull(value);
  if (key == "busy") gpu.busy = static_cast<unsigned>(std::stoul(value));
  if (key == "total") gpu.total = mebibytes(value);
  if (key == "used") gpu.used = mebibytes(value);
  if (key == "reserved") gpu.reserved = mebibytes(value);
  if (key == "process") gpu.compute.push_back(process(value));
  if (key == "graphics") gpu.graphics.push_back(process(value));
  if (key != "mig") return;
  FakeGpu instance;
  instance.uuid = value;
  gpu.instances.push_back(instance);
}

int list(const std::vector<Process>& processes, unsigned* count, Process* infos) {
  const unsigned room = *count;
  *count = static_cast<unsigned>(processes.size());
  if (room < processes.size()) return kInsufficientSize;
  for (std::size_t i = 0; i < processes.size(); ++i) infos[i] = processes[i];
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  gpus.clear();
  const char* value = std::getenv("FAKE_NVML");
  std::istringstream description(value == nullptr ? "" : value);
  for (std::string text; std::getline(description, text, ';');) {
    std::istringstream words(text);
    FakeGpu gpu;
    for (std::string word; words >> word;) {
      const auto equals = word.find('=');
      if (word.substr(0, equals) == "error") return std::stoi(word.substr(equals + 1));
      set(gpu, word.substr(0, equals), word.substr(equals + 1));
    }
    gpus.push_back(gpu);
  }
  return kSuccess;
}

int nvmlShutdown() { return kSuccess; }

const char* nvmlErrorString(int error) { return error == 18 ? "Driver/library version mismatch" : "other"; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(gpus.size());
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, FakeGpu** device) {
  *device = &gpus[index];
  return kSuccess;
}

int nvmlDeviceGetUUID(FakeGpu* device, char* text, unsigned size) {
  std::snprintf(text, size, "%s", device->uuid.c_str());
  return kSuccess;
}

int nvmlDeviceGetName(FakeGpu* device, char* text, unsigned size) {
  std::snprintf(text, size, "%s", device->name.c_str());
  return kSuccess;
}

int nvmlDeviceGetPciInfo_v3(FakeGpu* device, PciInfo* info) {
  std::memset(info, 0, sizeof *info);
  info->bus = device->bus;
  return kSuccess;
}

int nvmlDeviceGetMemoryInfo_v2(FakeGpu* device, Memory* memory) {
  if (memory->version != (sizeof(Memory) | (2U << 24))) return kNotSupported;
  memory->total = device->total;
  memory->reserved = device->reserved;
  memory->used = device->used;
  memory->free = device->total - device->used - device->reserved;
  return kSuccess;
}

int nvmlDeviceGetUtilizationRates(FakeGpu* device, unsigned* percents) {
  percents[0] = device->busy;  // time
  percents[1] = 0;             // memory time
  return kSuccess;
}

int nvmlDeviceGetTotalEccErrors(FakeGpu* device, int type, int counter, unsigned long long* errors) {
  if (type != 1 || counter != 0) return kNotSupported;
  *errors = device->ecc;
  return kSuccess;
}

int nvmlDeviceGetComputeRunningProcesses_v3(FakeGpu* device, unsigned* count, Process* infos) {
  return list(device->compute, count, infos);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(FakeGpu* device, unsigned* count, Process* infos) {
  return list(device->graphics, count, infos);
}

int nvmlDeviceGetMaxMigDeviceCount(FakeGpu*, unsigned* count) {
  *count = 7;
  return kSuccess;
}

int nvmlDeviceGetMigDeviceHandleByIndex(FakeGpu* device, unsigned index, FakeGpu** instance) {
  if (index >= device->instances.size()) return kNotFound;
  *instance = &device->instances[index];
  return kSuccess;
}
}
