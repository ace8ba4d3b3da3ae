// A libcuda.so.1 without GPUs: answers cuda_backend.cpp's queries to the driver, as described by FAKE_CUDA.
//
// FAKE_CUDA    "version=12040;" and then GPUs separated by semicolons, each of words "key=value" in any
//              order:
//                name=A100     capability=80     mode=2 (prohibited)     uuid=3b (its last byte)
//                mig=3c: it is the instance with this UUID of the GPU with the other one
//              or "error=803": the result of cuInit
//
// A test loads the file (DDPRUN_FAKE_CUDA): dlopen("libcuda.so.1") then finds what is loaded under that name.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct FakeGpu {
  std::string name = "GPU";
  int capability = 80, mode = 0, uuid = 0, instance = 0;
};

int version = 0;
std::vector<FakeGpu> gpus;

/// returns the result of cuInit
int read_description() {
  version = 0;
  gpus.clear();
  const char* value = std::getenv("FAKE_CUDA");
  std::istringstream description(value == nullptr ? "" : value);
  for (std::string text; std::getline(description, text, ';');) {
    std::istringstream words(text);
    FakeGpu gpu;
    bool is_gpu = false;
    for (std::string word; words >> word;) {
      const auto equals = word.find('=');
      const auto key = word.substr(0, equals), rest = word.substr(equals + 1);
      if (key == "error") return std::stoi(rest);
      if (key == "version") version = std::stoi(rest);
      is_gpu = is_gpu || key != "version";
      if (key == "name") gpu.name = rest;
      if (key == "capability") gpu.capability = std::stoi(rest);
      if (key == "mode") gpu.mode = std::stoi(rest);
      if (key == "uuid") gpu.uuid = std::stoi(rest, nullptr, 16);
      if (key == "mig") gpu.instance = std::stoi(rest, nullptr, 16);
    }
    if (is_gpu) gpus.push_back(gpu);
  }
  return gpus.empty() ? 100 : 0;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return read_description(); }

int cuDriverGetVersion(int* result) {
  read_description();
  *result = version;
  return 0;
}

int cuGetErrorString(int error, const char** text) {
  *text = error == 803 ? "system has unsupported display driver / cuda driver combination" : "no device";
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(gpus.size());
  return 0;
}

int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}

int cuDeviceGetName(char* text, int size, int device) {
  std::snprintf(text, static_cast<std::size_t>(size), "%s",
                gpus[static_cast<std::size_t>(device)].name.c_str());
  return 0;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{80} << 30;
  return 0;
}

/// The whole GPU's.
int cuDeviceGetUuid(unsigned char* bytes, int device) {
  std::memset(bytes, 0, 16);
  bytes[15] = static_cast<unsigned char>(gpus[static_cast<std::size_t>(device)].uuid);
  return 0;
}

int cuDeviceGetUuid_v2(unsigned char* bytes, int device) {
  cuDeviceGetUuid(bytes, device);
  const int instance = gpus[static_cast<std::size_t>(device)].instance;
  if (instance != 0) bytes[15] = static_cast<unsigned char>(instance);
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const FakeGpu& gpu = gpus[static_cast<std::size_t>(device)];
  if (attribute == 20) *value = gpu.mode;
  if (attribute == 75) *value = gpu.capability / 10;
  if (attribute == 76) *value = gpu.capability % 10;
  return 0;
}
}
