// What ddprun makes of GPUs: the fake NVML of tests/support tells it of four, one of them divided.

#include "tests/integration/node_job.h"

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

/// What --gpus makes of this CUDA_VISIBLE_DEVICES.
std::string chosen(const std::vector<std::string>& flags, const std::optional<std::string>& visible) {
  Command command = gpu_job("1", visible);
  Command shown = script(flags, "echo \"$LOCAL_RANK: $CUDA_VISIBLE_DEVICES.\"");
  command.argv = shown.argv;
  const Finished run(command);
  return run.status.success() ? run.out : run.err;
}

TEST_CASE("a flag chooses GPUs of this node, in its order", "[launcher][gpu]") {
  CHECK(chosen({"--gpus=3,0-1"}, std::nullopt) == "0: 3,0,1.\n");
  CHECK(chosen({"--gpus=GPU-cccc"}, std::nullopt) == "0: GPU-cccc.\n");
  CHECK(chosen({"--gpus=MIG-1111"}, std::nullopt) == "0: MIG-1111.\n");
  // As CUDA itself counts within the variable.
  CHECK(chosen({"--gpus=1,0"}, "2,3,0") == "0: 3,2.\n");
  CHECK(chosen({"--gpus=1"}, "GPU-bbbb,MIG-2222") == "0: MIG-2222.\n");
  CHECK(chosen({"--gpus=GPU-bbbb"}, "0,1") == "0: GPU-bbbb.\n");
  for (const char* nproc : {"--nproc-per-node=gpu", "--nproc-per-node=auto"})
    CHECK(count_of(": 1,2.", chosen({nproc, "--gpus=1-2"}, std::nullopt)) == 2);
  const std::string each =
      chosen({"--nproc-per-node=gpu", "--virtual-local-rank", "--gpus=2,1"}, std::nullopt);
  CHECK(count_of("0: 2.", each) == 1);
  CHECK(count_of("0: 1.", each) == 1);
}

TEST_CASE("each node of a job chooses its own GPUs", "[launcher][gpu][nodes]") {
  NodeJob nodes;
  for (const char* gpus : {"--gpus=0-1", "--gpus=3,2,1"}) {
    Command command = gpu_job("1", std::nullopt);
    command.argv = script(nodes.flags({"--nnodes=2", "--nproc-per-node=gpu", gpus}),
                          "echo \"$RANK of $WORLD_SIZE: $CUDA_VISIBLE_DEVICES.\"")
                       .argv;
    nodes.add(command);
  }
  CHECK(nodes.wait() == std::vector(2, ExitStatus::exited(0)));
  CHECK(count_of(" of 5: 0,1.", nodes.node(0).out()) == 2);
  CHECK(count_of(" of 5: 3,2,1.", nodes.node(1).out()) == 3);
}

TEST_CASE("chosen GPUs that are not visible, or named twice, are a usage error", "[launcher][gpu]") {
  CHECK(chosen({"--gpus=4"}, std::nullopt) ==
        "ddprun: error: --gpus: expected numbers from 0 to 3, or UUIDs of visible GPUs, got '4'\n");
  CHECK_THAT(chosen({"--gpus=2"}, "0,1"), ContainsSubstring("expected numbers from 0 to 1, "));
  CHECK_THAT(chosen({"--gpus=GPU-cccc"}, "0,1"), ContainsSubstring("UUIDs of visible GPUs, got 'GPU-cccc'"));
  CHECK_THAT(chosen({"--gpus=MIG-1111"}, "0,1"), ContainsSubstring("got 'MIG-1111'"));
  CHECK_THAT(chosen({"--gpus=0"}, ""),
             ContainsSubstring("--gpus: expected nothing, because no GPU is visible, got '0'"));
  CHECK_THAT(chosen({"--gpus=1,GPU-bbbb"}, std::nullopt),
             ContainsSubstring("--gpus: expected each GPU once, got 'GPU-bbbb' after '1' in '1,GPU-bbbb'"));
  CHECK_THAT(chosen({"--gpus=0-2,1"}, std::nullopt),
             ContainsSubstring("--gpus: expected each GPU once, got '1'"));
  for (const char* flag : {"--gpus=1-", "--gpus=2-1", "--gpus=a", "--gpus=0,,1", "--gpus=-1"})
    CHECK_THAT(chosen({flag}, std::nullopt),
               ContainsSubstring("--gpus: expected numbers of GPUs, ranges or UUIDs"));
  CHECK_THAT(chosen({"--nproc-per-node=3", "--virtual-local-rank", "--gpus=1-2"}, std::nullopt),
             ContainsSubstring("--virtual-local-rank: expected a GPU for each worker (3), found 2 (--gpus)"));
}

}  // namespace
}  // namespace ddprun::test
