// What can be tested of the GPU without one; gpu_test.cpp has the rest.
#include <ddprun/group/cuda_backend.h>

#include <ATen/detail/CUDAHooksInterface.h>

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <torch/types.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/group/process_group.h>
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::ddp;
using ddprun::test::ContainsSubstring;

namespace {

/// While it lives, this process finds a driver that says so; fake_cuda.cpp explains the text.
class FakeCuda {
 public:
  explicit FakeCuda(const std::string& driver) {
    if (::dlopen(DDPRUN_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL) == nullptr) throw std::runtime_error(::dlerror());
    ::setenv("FAKE_CUDA", driver.c_str(), 1);
  }
  ~FakeCuda() { ::unsetenv("FAKE_CUDA"); }
};

void skip_with_a_gpu() {
  if (!query_cuda_driver().gpus.empty()) test::skip("there is a GPU here");
}

/// Loads the plug-in, or skips the test where it was not built or NVIDIA's libraries are not there.
void load_or_skip() {
  try {
    cuda_plugin();
  } catch (const UsageError& error) {
    test::skip(error.what());
  }
}

std::string output_of(const std::string& command) {
  std::string text;
  std::array<char, 4096> buffer{};
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  while (pipe && std::fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr) text += buffer.data();
  return text;
}

}  // namespace

TEST_CASE("NCCL is chosen if no ranks share a GPU, else Gloo", "[cuda_backend]") {
  CHECK(use_nccl(BackendChoice::kAuto, {"a", "b"}));
  CHECK_FALSE(use_nccl(BackendChoice::kAuto, {"a", "a"}));
  CHECK_FALSE(use_nccl(BackendChoice::kAuto, {"cpu", "cpu"}));
  CHECK_FALSE(use_nccl(BackendChoice::kGloo, {"a", "b"}));
  CHECK_FALSE(use_nccl(BackendChoice::kGloo, {"a", "a"}));
  CHECK(use_nccl(BackendChoice::kNccl, {"a"}));
  CHECK_THROWS_WITH(
      use_nccl(BackendChoice::kNccl, {"a", "b", "c", "b", "b"}),
      ContainsSubstring(
          "--backend=nccl: expected a separate GPU for every rank, got ranks 1, 3 and 4 on GPU b"));
  CHECK_THROWS_WITH(use_nccl(BackendChoice::kNccl, {"cpu"}),
                    ContainsSubstring("--backend=nccl: expected --device=cuda, got tensors on the CPU"));
  CHECK_THROWS_WITH(
      use_nccl(BackendChoice::kAuto, {"a", "cpu"}),
      ContainsSubstring("--device: expected a GPU for every rank or for none, got none for rank 1"));
}

TEST_CASE("a GPU that is not there is refused with the driver's reason", "[cuda_backend]") {
  skip_with_a_gpu();
  CHECK_THROWS_AS(ProcessGroup::connect(WorkerEnv{}, {.device = DeviceChoice::kCuda}), UsageError);
  CHECK_THROWS_WITH(ProcessGroup::connect(WorkerEnv{}, {.device = DeviceChoice::kCuda}),
                    "--device=cuda: expected an NVIDIA GPU, but " + query_cuda_driver().problem);
  CHECK_THROWS_WITH(ProcessGroup::connect(WorkerEnv{}, {.backend = BackendChoice::kNccl}),
                    ContainsSubstring("--backend=nccl: expected --device=cuda"));
}

TEST_CASE("without a GPU the device chosen by itself is the CPU", "[cuda_backend]") {
  skip_with_a_gpu();
  const auto group = ProcessGroup::connect(WorkerEnv{}, {.device = DeviceChoice::kAuto});
  CHECK(group.device() == at::Device(at::kCPU));
  CHECK(group.backend() == "gloo");
}

TEST_CASE("a GPU is refused if the driver, its mode or its architecture rules it out", "[cuda_backend]") {
  const auto gpu = [](const char* name, int capability) {
    Gpu made;
    made.name = name;
    made.capability = capability;
    return made;
  };
  CudaDriver driver;
  driver.version = 12040;
  driver.gpus = {gpu("A100", 80), gpu("P100", 60)};
  CHECK(gpu_problem(driver, 0, 12060).empty());  // any driver of the same major version
  CHECK(gpu_problem(driver, 0, 13000) ==
        "the NVIDIA driver runs CUDA up to 12.4, and this build needs 13.0: update the driver");
  CHECK(gpu_problem(driver, 1, 12060).empty());
  driver.version = 13000;
  CHECK(gpu_problem(driver, 1, 13000) ==
        "GPU 1 (P100) has compute capability 6.0, and a build for CUDA 13.0 needs at least 7.5");
  CHECK(gpu_problem(driver, 1, 0).empty());
  driver.gpus[0].prohibited = true;
  CHECK(gpu_problem(driver, 0, 0) ==
        "GPU 0 (A100) is in the compute mode 'prohibited' (nvidia-smi -c 0 ends it)");
}

TEST_CASE("the driver is asked for versions, modes and architectures", "[cuda_backend]") {
  const FakeCuda fake("version=12040;name=A100 capability=80 uuid=3b;name=T4 capability=75 mode=2");
  const CudaDriver driver = query_cuda_driver();
  CHECK(driver.version == 12040);
  CHECK_FALSE(driver.broken);
  REQUIRE(driver.gpus.size() == 2);
  CHECK(driver.gpus[0].name == "A100");
  CHECK(driver.gpus[0].capability == 80);
  CHECK(driver.gpus[0].uuid == "0000000000000000000000000000003b");
  CHECK_FALSE(driver.gpus[0].prohibited);
  CHECK(driver.gpus[1].prohibited);
}

TEST_CASE("an instance of a divided GPU has a UUID of its own, and its GPU's", "[cuda_backend]") {
  const FakeCuda fake("version=12040;uuid=3b mig=41;uuid=3b mig=42;uuid=3c");
  const auto gpus = query_cuda_driver().gpus;
  REQUIRE(gpus.size() == 3);
  const auto check = [](const Gpu& gpu, const std::string& own, const std::string& whole) {
    CHECK(gpu.uuid == std::string(30, '0') + own);
    CHECK(gpu.whole_uuid == std::string(30, '0') + whole);
  };
  check(gpus[0], "41", "3b");
  check(gpus[1], "42", "3b");
  check(gpus[2], "3c", "3c");
}

TEST_CASE("a driver that fails is named, and auto computes on the CPU", "[cuda_backend]") {
  for (const char* text : {"error=803", "version=12040;name=T4 capability=75 mode=2"}) {
    const FakeCuda fake(text);
    CAPTURE(text);
    const auto reason = std::string(text) == "error=803" ? "the NVIDIA driver reports: system has unsupported"
                                                         : "GPU 0 (T4) is in the compute mode 'prohibited'";
    CHECK_THROWS_WITH(
        choose_device(DeviceChoice::kCuda, 0),
        ContainsSubstring("--device=cuda: expected an NVIDIA GPU, but ") && ContainsSubstring(reason));
    int warnings = 0;
    configure_logging("test");
    log_to([&](const std::string&) { ++warnings; });
    CHECK(choose_device(DeviceChoice::kAuto, 0).device == at::Device(at::kCPU));
    log_to({});
    CHECK(warnings == 1);
  }
}

TEST_CASE("a GPU that is there but not seen is told", "[cuda_backend]") {
  const TempDir dev;
  CudaDriver driver;
  driver.problem = "no NVIDIA driver here";
  CHECK(unseen_gpu(driver, dev.path()).empty());
  write_file_atomic(dev.path() / "kfd", "");
  CHECK(unseen_gpu(driver, dev.path()) == "this host has an AMD GPU, which this build cannot use");
  write_file_atomic(dev.path() / "nvidia0", "");
  CHECK(unseen_gpu(driver, dev.path()) == "this host has an NVIDIA GPU, but no NVIDIA driver here");
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  CHECK(unseen_gpu(driver, dev.path()).empty());
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_CASE("ranks that share a GPU are named", "[cuda_backend]") {
  CHECK(shared_gpu({"a", "b"}).empty());
  CHECK(shared_gpu({"cpu", "cpu"}).empty());
  CHECK(shared_gpu({"b", "a", "b"}) == "ranks 0 and 2 share GPU b");
}

TEST_CASE("a plug-in that cannot be loaded is refused with the way to get it", "[cuda_backend]") {
  ::setenv("DDPRUN_CUDA_PLUGIN", "/no/such/plugin.so", 1);
  CHECK_THROWS_WITH(
      cuda_plugin(),
      ContainsSubstring("--device=cuda: the CUDA plug-in cannot be loaded: /no/such/plugin.so") &&
          ContainsSubstring("scripts/setup.sh --cuda"));
  ::setenv("DDPRUN_CUDA_PLUGIN", "libm.so.6", 1);
  CHECK_THROWS_WITH(cuda_plugin(), ContainsSubstring("--device=cuda: expected a CUDA plug-in of build ") &&
                                       ContainsSubstring("got something else in libm.so.6"));
  ::unsetenv("DDPRUN_CUDA_PLUGIN");
}

TEST_CASE("the plug-in, loaded first, brings CUDA into LibTorch", "[cuda_backend]") {
  load_or_skip();
  CHECK(at::detail::getCUDAHooks().hasCUDART());
  CHECK(cuda_plugin().versions().rfind("CUDA ", 0) == 0);
  skip_with_a_gpu();
  CHECK_THROWS_WITH(torch::ones({2}, torch::kCUDA), ContainsSubstring("NVIDIA driver"));
}

TEST_CASE("a plug-in that comes after the first use of autograd is refused", "[cuda_backend]") {
  torch::ones({1}, torch::requires_grad()).sum().backward();
  try {
    cuda_plugin();
  } catch (const UsageError& error) {
    test::skip(error.what());
  } catch (const std::logic_error& error) {
    CHECK_THAT(error.what(), ContainsSubstring("the CUDA plug-in was loaded too late"));
    return;
  }
  FAIL("it was not refused");
}

TEST_CASE("the programs are linked to nothing of CUDA", "[cuda_backend]") {
  if (::system("readelf --version > /dev/null 2>&1") != 0) test::skip("no readelf here");
  for (const std::string program : {"/proc/self/exe", WORKER_PROGRAM}) {
    CAPTURE(program);
    const auto needed =
        output_of("readelf -d -W " + std::filesystem::canonical(program).string() + " | grep NEEDED");
    CHECK_THAT(needed, ContainsSubstring("[libtorch_cpu.so]") && ContainsSubstring("[libc10.so]"));
    for (const char* library : {"cuda", "nccl", "nvidia", "[libtorch.so]"})
      CHECK(needed.find(library) == std::string::npos);
  }
}
