#include "worker/commands/advice.h"

#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "worker/commands/commands.h"

using namespace ddprun;
using namespace ddprun::worker;
using ddprun::test::ContainsSubstring;

namespace {

/// Of two ranks on two cores, with which all is well.
RunFacts good_run() {
  RunFacts run;
  run.ranks = run.ranks_on_host = run.cpus = 2;
  run.data_share = 0.04;
  run.communication_share = 0.19;
  run.training_samples = 4000;
  run.batch_size = 125;
  run.loader_threads = 1;
  run.lr = 0.1;
  return run;
}

/// Runs `worker advise FOLDER`. returns  what it prints
std::string advise(const std::filesystem::path& folder) {
  std::string words[] = {"advise", folder.string()};
  char* argv[] = {words[0].data(), words[1].data()};
  std::ostringstream out;
  const std::unique_ptr<std::streambuf, void (*)(std::streambuf*)> before(
      std::cout.rdbuf(out.rdbuf()), [](std::streambuf* buffer) { std::cout.rdbuf(buffer); });
  const int code = run_advise_command(2, argv);
  CHECK(code == 0);
  return out.str();
}

}  // namespace

TEST_CASE("a run with which all is well gets no advice", "[advice]") {
  CHECK(advice(good_run()).empty());
  CHECK(advice({}).empty());  // nothing is known
}

TEST_CASE("waiting for the loader is told from a twentieth of the training time on", "[advice]") {
  auto run = good_run();
  run.data_share = 0.051;
  CHECK(loader_advice(run) ==
        "5 % of the training time was spent waiting for batches: --loader-threads 2 (now 1)");
  CHECK(advice(run) == std::vector{loader_advice(run)});
  run.loader_threads = 4;
  CHECK_THAT(loader_advice(run), ContainsSubstring("--loader-threads 8 (now 4)"));
}

TEST_CASE("waiting for gradients is told with what the run can still do about it", "[advice]") {
  auto run = good_run();
  run.communication_share = 0.25;
  CHECK(communication_advice(run) ==
        "25 % of the training time was spent waiting for other ranks' gradients: --accumulate 2 exchanges "
        "them half as often, --comm-hook bf16 sends half as many bytes");
  run.can_compress = false;
  CHECK_THAT(communication_advice(run), !ContainsSubstring("--comm-hook"));
  run.join = true;  // which excludes --accumulate
  CHECK(communication_advice(run).empty());
}

TEST_CASE("a small last batch is told, with a size that leaves none", "[advice]") {
  auto run = good_run();
  run.batch_size = 128;  // 2000 samples of each rank: 15 batches, and 80 samples more
  CHECK(batch_advice(run).empty());
  run.batch_size = 120;  // 16 and 80
  CHECK(batch_advice(run).empty());
  run.batch_size = 111;  // 18 and 2
  CHECK(batch_advice(run) ==
        "each epoch's last batch has 2 of 111 samples, but counts as much as a whole one: --batch-size 100 "
        "leaves none over");
  run.training_samples = 2 * 1009;  // a prime
  run.batch_size = 100;
  CHECK_THAT(batch_advice(run),
             ContainsSubstring("has 9 of 100 samples") && ContainsSubstring("--drop-last leaves it out"));
}

TEST_CASE("samples that are dropped are told from a hundredth of an epoch on", "[advice]") {
  auto run = good_run();
  run.drop_last = true;
  CHECK(batch_advice(run).empty());
  run.batch_size = 128;
  CHECK(batch_advice(run) ==
        "160 samples of 4000 are dropped in each epoch: --batch-size 125 leaves none over");
  run.training_samples = 400000;  // 128 of them
  CHECK(batch_advice(run).empty());
  run.training_samples = 2 * 1009;
  CHECK_THAT(batch_advice(run), ContainsSubstring("train without --drop-last"));
}

TEST_CASE("samples that are used twice are told, unless the run cannot do without", "[advice]") {
  auto run = good_run();
  run.ranks = 8;
  run.training_samples = 100;  // 13 for each rank
  CHECK(batch_advice(run) ==
        "4 samples of 100 are used twice in each epoch, so that all ranks have the same number: "
        "--join uses each once");
  run.can_join = false;
  CHECK_THAT(batch_advice(run), !ContainsSubstring("--join"));
  run.join = true;
  CHECK(batch_advice(run).empty());
}

TEST_CASE("a single rank's learning rate is told on several ranks", "[advice]") {
  auto run = good_run();
  CHECK(learning_rate_advice(run).empty());  // chosen by hand
  run.lr_is_default = true;
  CHECK(learning_rate_advice(run) ==
        "the learning rate 0.1 is meant for a single rank, but 2 ranks take batches of 250 samples: "
        "--scale-lr linear with --warmup-steps, or an --lr of your own");
  run.scales_lr = true;
  CHECK(learning_rate_advice(run).empty());
  run.scales_lr = false;
  run.ranks = 1;
  CHECK(learning_rate_advice(run).empty());
}

TEST_CASE("cores that a quarter or more of are idle, or that threads share, are told", "[advice]") {
  auto run = good_run();
  run.cpus = 16;
  CHECK(core_advice(run) ==
        "2 ranks x 1 thread use 2 of 16 cores: ddprun --nproc-per-node=16, or OMP_NUM_THREADS=8");
  run.threads_per_rank = 7;
  CHECK(core_advice(run).empty());
  run.threads_per_rank = 16;
  CHECK(core_advice(run) == "2 ranks x 16 threads share 16 cores: OMP_NUM_THREADS=8");
  run.on_gpu = true;  // which computes
  CHECK(core_advice(run).empty());
}

TEST_CASE("16 bits are told where the hardware computes in them", "[advice]") {
  auto run = good_run();
  run.cpu_has_bf16 = true;
  CHECK(precision_advice(run) == "trained in 32 bits, and the CPU can compute in 16: --precision bf16-mixed");
  run.precision = train::Precision::kBf16Mixed;
  CHECK(precision_advice(run).empty());
  run.on_gpu = true;
  CHECK(precision_advice(run) == "each kernel of a step was launched separately: --fast");
  run.fast = true;
  CHECK(precision_advice(run).empty());
  run.precision = train::Precision::k32;
  CHECK(precision_advice(run) == "trained in 32 bits, and the GPU can compute in 16: --precision bf16-mixed");
}

TEST_CASE("a search for unused parameters is told", "[advice]") {
  auto run = good_run();
  run.find_unused = true;
  CHECK_THAT(unused_parameters_advice(run), ContainsSubstring("--find-unused"));
}

TEST_CASE("worker advise reads a run's folder, also one that has not ended or is damaged", "[advice]") {
  const TempDir dir;
  const auto put = [&](const char* name, const std::string& text) {
    std::ofstream(dir.path() / name) << text;
  };
  CHECK_THROWS_WITH(advise(dir.path()), "RUN: expected the folder of a run, with its config.toml, got '" +
                                            dir.path().string() + "'");
  put("run.json", "{}");
  CHECK_THROWS_AS(advise(dir.path()), UsageError);
  put("config.toml", "task = \"mnist\"\n[optim]\nlr = 0.5\n[train]\nbatch_size = 128\ndrop_last = true\n");
  CHECK(advise(dir.path()) ==
        "the run has not ended: its waiting times and batches are not known yet\nnothing to advise\n");
  put("environment.json",
      R"({"world_size": 2, "local_world_size": 2, "cpus": 8, "threads_per_rank": 1, "device": "cpu"})");
  put("summary.json",
      R"({"training_samples": 4000, "time": {"data_wait_seconds": 3, "compute_seconds": 6, "communication_seconds": 3}})");
  CHECK(advise(dir.path()) ==
        "25 % of the training time was spent waiting for batches: --loader-threads 2 (now 1)\n"
        "25 % of the training time was spent waiting for other ranks' gradients: --accumulate 2 exchanges "
        "them half as often, --comm-hook bf16 sends half as many bytes\n"
        "160 samples of 4000 are dropped in each epoch: --batch-size 125 leaves none over\n"
        "2 ranks x 1 thread use 2 of 8 cores: ddprun --nproc-per-node=8, or OMP_NUM_THREADS=4\n");
  put("environment.json", R"({"world_size": "two", "cpus": null)");
  put("summary.json", R"({"training_samples": "many", "time": {"compute_seconds": null}})");
  CHECK(advise(dir.path()) == "nothing to advise\n");
}
