// A whole training on an NVIDIA GPU (ctest -L gpu, scripts/gpu_check.sh); skipped without one.
#include <cmath>

#include "tests/integration/cifar10_files.h"
#include "tests/integration/training_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// Asks the worker itself; gpu_check.sh fails where `worker env` finds fault with a GPU that is there.
void need_a_gpu() {
  Command command;
  command.argv = {worker_program(), "env", "--device=cuda"};
  Child env(command);
  if (env.wait(kTraining) != ExitStatus::exited(0)) skip("no usable GPU: " + env.out() + env.err());
}

/// The scaler's steps without an overflow so far, as the checkpoint's pickle has them: a small integer is K
/// and a byte, behind its name and what a pickle may note of that.
int growth_tracker(const fs::path& checkpoint) {
  const auto bytes = read_file(checkpoint);
  const std::string name = "_growth_tracker";
  const auto at = bytes.find(name);
  REQUIRE(at != std::string::npos);
  const auto value = bytes.find('K', at + name.size());
  REQUIRE(value <= at + name.size() + 5);
  return static_cast<unsigned char>(bytes.at(value + 1));
}

}  // namespace

TEST_CASE("cifar10 trains on a GPU in 16 bits, channels last, and goes on with the loss scale", "[gpu]") {
  need_a_gpu();
  const TempDir dir;
  write_cifar10(dir.path() / "data", 80, 20);
  const auto out = dir.path() / "run";
  const auto run = [&](const std::vector<std::string>& more) {  // four steps an epoch
    std::vector<std::string> flags = {"--data=" + (dir.path() / "data").string(),
                                      "--device=cuda",
                                      "--precision=16-mixed",
                                      "--channels-last",
                                      "--epochs=2",
                                      "--batch-size=16",
                                      "--lr=0.01",
                                      "--val-split=0.2",
                                      "--stem=cifar",
                                      "--log-interval=1",
                                      "--resume=auto"};
    flags.insert(flags.end(), more.begin(), more.end());
    Child child(training("cifar10", 1, out, flags));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    check_nothing_left(child);
    CHECK(count_of("becomes bf16-mixed on a CPU", child.err()) == 0);
    return child.out();
  };
  run({"--max-steps=6"});
  const auto first = read_summary(out);
  CHECK(first["steps"] == 6);
  CHECK(first["loss_scale"].get<double>() > 0);
  CHECK(first.contains("skipped_steps"));
  CHECK(first["gpu_memory_mb"][0]["peak_allocated"].get<double>() > 40);  // 11 million weights of 4 bytes
  CHECK(first["gpu_memory_mb"][0]["peak_reserved"].get<double>() >=
        first["gpu_memory_mb"][0]["peak_allocated"].get<double>());
  const auto before = growth_tracker(out / "checkpoints/last.ckpt");

  CHECK_THAT(run({}), ContainsSubstring("resumed from ") && ContainsSubstring(" at step 6"));
  const auto second = read_summary(out);
  CHECK(second["steps"] == 8);
  CHECK(second["loss_scale"].get<double>() <= first["loss_scale"].get<double>());
  CHECK((second["skipped_steps"] != 0 || growth_tracker(out / "checkpoints/last.ckpt") == before + 2));
  for (const auto& loss : values_of(out, "train_loss")) CHECK(std::isfinite(std::stod(loss)));
}
