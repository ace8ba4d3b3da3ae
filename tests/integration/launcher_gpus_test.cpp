// What ddprun makes of GPUs: the fake NVML of tests/support tells it of four, one of them divided.

#include "tests/integration/job.h"

namespace ddprun::test {
namespace {

Command gpu_job(const std::string& nproc, const std::optional<std::string>& visible) {
  Command command = job({"--nproc-per-node=" + nproc}, {"ready"});
  command.env["LD_LIBRARY_PATH"] = DDPRUN_FAKE_NVML_DIR;
  command.env["FAKE_NVML"] =
      "uuid=GPU-aaaa;uuid=GPU-bbbb;uuid=GPU-cccc;uuid=GPU-dddd mig=MIG-1111 mig=MIG-2222";
  command.env["CUDA_VISIBLE_DEVICES"] = visible;
  return command;
}

int workers_of(const std::string& nproc, const std::optional<std::string>& visible) {
  const Finished run(gpu_job(nproc, visible));
  CHECK(run.status.success());
  return count_of("ready ", run.out);
}

TEST_CASE("a worker is started for each visible GPU", "[launcher][gpu]") {
  CHECK(workers_of("gpu", std::nullopt) == 4);
  CHECK(workers_of("auto", std::nullopt) == 4);
  CHECK(workers_of("gpu", "2,0,1") == 3);
  CHECK(workers_of("gpu", "GPU-b,GPU-d") == 2);
  CHECK(workers_of("gpu", "MIG-1111,MIG-2222") == 1);
  CHECK(workers_of("gpu", "0,7,1") == 1);  // CUDA stops at what names no GPU
}

TEST_CASE("auto goes by the CPUs where no GPU is visible", "[launcher][gpu]") {
  CHECK(workers_of("auto", "") == workers_of("cpu", ""));
}

TEST_CASE("on a host with several kinds of GPUs CUDA counts them as nvidia-smi does", "[launcher][gpu]") {
  const auto order = [](const std::string& gpus, const char* own) {
    Command command = script({"--nproc-per-node=gpu"}, "echo order=${CUDA_DEVICE_ORDER:-none}");
    command.env["LD_LIBRARY_PATH"] = DDPRUN_FAKE_NVML_DIR;
    command.env["FAKE_NVML"] = gpus;
    command.env["CUDA_VISIBLE_DEVICES"] = std::nullopt;
    command.env["CUDA_DEVICE_ORDER"] = own == nullptr ? std::nullopt : std::optional<std::string>(own);
    return Finished(command).out;
  };
  CHECK_THAT(order("uuid=GPU-a name=T4;uuid=GPU-b name=A100", nullptr),
             ContainsSubstring("order=PCI_BUS_ID"));
  CHECK_THAT(order("uuid=GPU-a name=A100;uuid=GPU-b name=A100", nullptr), ContainsSubstring("order=none"));
  CHECK_THAT(order("uuid=GPU-a name=T4;uuid=GPU-b name=A100", "FASTEST_FIRST"),
             ContainsSubstring("order=FASTEST_FIRST"));
}

TEST_CASE("no visible GPU, or one named twice, is a usage error", "[launcher][gpu]") {
  for (const char* visible : {"", "-1", "GPU-eeee"}) {
    const Finished run(gpu_job("gpu", visible));
    CHECK(run.status == ExitStatus::exited(2));
    CHECK_THAT(run.err, ContainsSubstring("--nproc-per-node: expected a visible GPU"));
  }
  const Finished twice(gpu_job("gpu", "1,GPU-bbbb"));
  CHECK(twice.status == ExitStatus::exited(2));
  CHECK_THAT(twice.err,
             ContainsSubstring("CUDA_VISIBLE_DEVICES: expected each GPU once, got 'GPU-bbbb' after "
                               "'1' in '1,GPU-bbbb'"));
  CHECK(twice.out.empty());
}

}  // namespace
}  // namespace ddprun::test
