// Trainings as on a GPU, whose operators the CPU computes (fake_gpu.cpp): they use the device as CUDA
// demands, never wait for it within a step, and lose nothing on the way.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

#include "tests/integration/cifar10_files.h"
#include "tests/integration/sam_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

bool names(const std::vector<std::string>& flags, const std::string& flag) {
  return std::any_of(flags.begin(), flags.end(), [&](const auto& one) { return one.starts_with(flag); });
}

/// Four steps of a task unless the flags say how many (an epoch with --join), on the fake GPU if `gpu`, where
/// waits within a step are errors.
Command steps_of(const std::string& task, const fs::path& out, bool gpu, std::vector<std::string> flags,
                 int ranks = 0) {
  flags.insert(flags.begin(), {"--log-interval=1", "--no-tensorboard"});
  if (!names(flags, "--join") && !names(flags, "--max-steps")) flags.push_back("--max-steps=4");
  if (gpu) flags.push_back("--device=cuda");
  auto command = training(task, ranks, out, flags);
  command.env["OMP_NUM_THREADS"] = "1";
  if (!gpu) return command;
  command.env["LD_PRELOAD"] = DDPRUN_FAKE_CUDA;
  command.env["FAKE_CUDA"] = "version=13000;name=Fake capability=90 uuid=1;name=Fake capability=90 uuid=2";
  command.env["DDPRUN_CUDA_PLUGIN"] = DDPRUN_FAKE_GPU;
  command.env["DDPRUN_SYNC_DEBUG_MODE"] = "error";
  return command;
}

/// returns  what it printed as errors and warnings
std::string run(const Command& command, int code = 0) {
  Child child(command);
  const auto status = child.wait(kTraining);
  CAPTURE(child.out(), child.err());
  REQUIRE(status == ExitStatus::exited(code));
  return child.err();
}

void check_same_losses(const fs::path& gpu_run, const fs::path& cpu_run, double epsilon = 1e-4) {
  const auto gpu = values_of(gpu_run, "train_loss"), cpu = values_of(cpu_run, "train_loss");
  REQUIRE(gpu.size() == cpu.size());
  REQUIRE(gpu.size() >= 4);
  for (std::size_t i = 0; i < gpu.size(); ++i)
    CHECK(std::stod(gpu[i]) == Approx(std::stod(cpu[i])).epsilon(epsilon));
}

constexpr const char* kCaptured = "from this step on, steps are started as a CUDA graph";

/// A training with and without a graph, on the fake GPU; returns the former's folder.
fs::path check_graph(const TempDir& dir, const std::string& name, const std::string& task,
                     std::vector<std::string> flags, int ranks = 0) {
  if (!names(flags, "--max-steps")) flags.push_back("--max-steps=22");
  const auto eager = dir.path() / (name + "_eager"), graph = dir.path() / (name + "_graph");
  run(steps_of(task, eager, true, flags, ranks));
  flags.push_back("--cuda-graph=on");
  CHECK_THAT(run(steps_of(task, graph, true, flags, ranks)), ContainsSubstring(kCaptured));
  check_same_losses(graph, eager, 1e-3);
  for (const char* metric : {"val_loss", "test_loss"}) {
    const auto with = values_of(graph, metric), without = values_of(eager, metric);
    REQUIRE(with.size() == without.size());
    for (std::size_t i = 0; i < with.size(); ++i)
      CHECK(std::stod(with[i]) == Approx(std::stod(without[i])).epsilon(1e-3));
  }
  return graph;
}

struct Case {
  std::string task;
  std::vector<std::string> flags;
};

std::vector<Case> all_tasks(const TempDir& dir) {
  write_cifar10(dir.path() / "cifar", 80, 20);
  std::ofstream(dir.path() / "tiny.json") << kTinySam;
  const std::vector<std::string> sam = {"--architecture=" + (dir.path() / "tiny.json").string(),
                                        "--batch-size=2", "--data=nuclei-sample", "--warmup-steps=0",
                                        "--lr=0.01"};
  const std::vector<std::string> cifar = {"--data=" + (dir.path() / "cifar").string(), "--batch-size=16",
                                          "--stem=cifar", "--clip-norm=1", "--precision=32"};
  return {{"mnist", small()}, {"toy", {"2", "1"}}, {"linear", {}}, {"cifar10", cifar}, {"sam", sam}};
}

}  // namespace

TEST_CASE("no step of the five trainings waits for the GPU", "[fake_gpu]") {
  need_fashion_mnist();
  const TempDir dir;
  for (const auto& [task, flags] : all_tasks(dir)) {
    CAPTURE(task);
    run(steps_of(task, dir.path() / (task + "_cpu"), false, flags));
    run(steps_of(task, dir.path() / (task + "_gpu"), true, flags));
    check_same_losses(dir.path() / (task + "_gpu"), dir.path() / (task + "_cpu"));
  }
}

TEST_CASE("a step with loss scaling, averages and clipping does not wait for the GPU", "[fake_gpu]") {
  need_fashion_mnist();
  const TempDir dir;
  for (const char* optimizer : {"sgd", "adam", "adamw", "adadelta"}) {
    CAPTURE(optimizer);
    const auto out = dir.path() / optimizer;
    run(steps_of("mnist", out, true,
                 small({"--precision=16-mixed", "--ema=0.9", "--clip-norm=1",
                        std::string("--optimizer=") + optimizer})));
    CHECK(read_summary(out)["steps"] == 4);
    CHECK(read_summary(out)["skipped_steps"] == 0);
    for (const auto& loss : values_of(out, "train_loss")) CHECK(std::isfinite(std::stod(loss)));
  }
}

TEST_CASE("a wait within a step is an error if asked for", "[fake_gpu]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto with = [&](const std::string& mode) {
    auto command = steps_of("mnist", dir.path() / mode, true, small({"--nan-check"}));  // copies its counts
    command.env["DDPRUN_SYNC_DEBUG_MODE"] = mode;
    return command;
  };
  CHECK_THAT(run(with("error"), 1),
             ContainsSubstring("called a synchronizing CUDA operation: copy to the CPU"));
  const auto warnings = run(with("warn"));
  CHECK(count_of("called a synchronizing CUDA operation", warnings) == 2);  // in the steps 3 and 4, each once
  run(with("default"));
  CHECK_THAT(run(with("all"), 2),
             ContainsSubstring("DDPRUN_SYNC_DEBUG_MODE: expected default, warn or error, got 'all'"));
}

TEST_CASE("two ranks train over NCCL as on the CPU, and do not wait for their GPUs", "[fake_gpu]") {
  need_fashion_mnist();
  const TempDir dir;
  const std::vector<std::vector<std::string>> exact = {
      {}, {"--join", "--limit-train=257"}, {"--zero1", "--clip-norm=1"}, {"--fsdp", "--clip-norm=1"}};
  for (std::size_t i = 0; i < exact.size(); ++i) {
    CAPTURE(i);
    const auto cpu = dir.path() / ("cpu" + std::to_string(i)), gpu = dir.path() / ("gpu" + std::to_string(i));
    run(steps_of("mnist", cpu, false, small(exact[i]), 2));
    run(steps_of("mnist", gpu, true, small(exact[i]), 2));
    check_same_losses(gpu, cpu);
  }
  auto sync_bn = all_tasks(dir)[3].flags;
  sync_bn.insert(sync_bn.end(),
                 {"--sync-bn", "--static-graph=false",  // a static graph waits
                  "--lr=0.001"});  // its kernels round differently, which a high rate magnifies
  run(steps_of("cifar10", dir.path() / "cpu_bn", false, sync_bn, 2));
  run(steps_of("cifar10", dir.path() / "gpu_bn", true, sync_bn, 2));
  check_same_losses(dir.path() / "gpu_bn", dir.path() / "cpu_bn");
  for (const std::string precision : {"16-mixed", "bf16-mixed"})
    for (const std::string parallel : {"--fsdp", "--zero1"}) {
      const auto out = dir.path() / (precision + parallel);
      run(steps_of("mnist", out, true, small({"--precision=" + precision, parallel, "--clip-norm=1"}), 2));
      for (const auto& loss : values_of(out, "train_loss")) CHECK(std::isfinite(std::stod(loss)));
    }
}

TEST_CASE("as ranks start, it is told which GPUs they share, and how many stay idle", "[fake_gpu]") {
  const auto told = [](const std::string& gpus, const std::string& backend, int code = 0) {
    auto command = steps_of("env", "", true, {}, 2);
    command.argv = {program("DDPRUN_PROGRAM", DDPRUN_PROGRAM),
                    "--nproc-per-node=2",
                    worker_program(),
                    "env",
                    "--device=cuda",
                    "--backend=" + backend};
    command.env["FAKE_CUDA"] = "version=13000;" + gpus;
    Child child(command);
    const auto status = child.wait(kTraining);
    CAPTURE(child.out(), child.err());
    CHECK(status == ExitStatus::exited(code));
    return child.out() + child.err();
  };
  const std::string shared = "ranks 0 and 1 share GPU 0000000000000000000000000000003b, which NCCL does not";
  const auto apart = told("uuid=3b;uuid=3c", "auto");
  CHECK(count_of(" nccl ", apart) == 2);
  CHECK(count_of(" share GPU ", apart) + count_of("idle", apart) == 0);
  const auto more = told("uuid=3b;uuid=3c;uuid=3d", "auto");
  CHECK(count_of("1 of this host's 3 GPUs stay idle", more) == 1);
  for (const char* one : {"uuid=3b", "uuid=3b mig=41;uuid=3b mig=42"}) {  // NCCL knows no instances
    CAPTURE(one);
    const auto both = told(one, "auto");
    CHECK(count_of(shared, both) == 1);
    CHECK(count_of(" gloo ", both) == 2);
    CHECK_THAT(told(one, "nccl", 1),
               ContainsSubstring("--backend=nccl: expected a separate GPU for every rank"));
  }
}

TEST_CASE("a rank without memory on its GPU ends with the allocator's figures, not with a collective",
          "[fake_gpu]") {
  need_fashion_mnist();
  const TempDir dir;
  auto command = steps_of("mnist", dir.path() / "run", true, small(), 2);
  command.env["FAKE_GPU_MEMORY"] =
      "12@1";  // for the weights and their buckets, not for the optimizer's state
  const auto told = run(command, 1);
  CHECK_THAT(told, ContainsSubstring("CUDA out of memory. Tried to allocate ") &&
                       ContainsSubstring("GPU 0 has a total capacity of 12 MiB of which ") &&
                       ContainsSubstring(" MiB is allocated by PyTorch"));
  CHECK(count_of("all_reduce", told) == 0);
}

TEST_CASE("on GPUs a lost rank is replaced, and nothing of the step that it left is used", "[fake_gpu]") {
  need_fashion_mnist();
  const TempDir dir;
  const std::string parallel = GENERATE("", "--zero1", "--fsdp", "--precision=16-mixed");
  CAPTURE(parallel);
  const auto events = dir.path() / "events";
  const auto command = [&](const fs::path& out) {
    auto job = steps_of("mnist", out, true,
                        small({"--recover-on-gpu", "--cuda-graph=auto", "--memory-checkpoint-every=3",
                               "--epochs=4", "--no-report"}),
                        2);
    std::erase(job.argv, "--max-steps=4");
    if (!parallel.empty()) job.argv.push_back(parallel);
    job.argv.insert(job.argv.begin() + 1,
                    {"--recover=rank", "--max-restarts=5", "--events-json=" + events.string()});
    return job;
  };
  run(command(dir.path() / "whole"));
  fs::remove(events);
  Child child(command(dir.path() / "killed"));
  for (int kill = 1; kill <= 3; ++kill) {
    REQUIRE(child.wait_for_output("Loss", count_of("Loss", child.out()) + 5));
    kill_rank(events, kill % 2);
    // An epoch's checkpoint may be newer than what is in memory.
    REQUIRE(wait_until([&] {
      return count_of("continuing from memory after step ", child.out()) +
                 count_of("resumed from ", child.out()) >=
             kill;
    }));
  }
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CAPTURE(child.out(), child.err());
  CHECK(count_of("restarting all", child.err()) == 0);
  CHECK(count_of("--cuda-graph=auto: no graph with --recover-on-gpu", child.err()) >= 1);
  CHECK((weights(dir.path() / "whole") == weights(dir.path() / "killed")));
}

TEST_CASE("steps of a CUDA graph are those without one", "[fake_gpu]") {
  need_fashion_mnist();
  const TempDir dir;
  for (const auto& [task, flags] : all_tasks(dir)) {
    if (task == "mnist") continue;  // below
    CAPTURE(task);
    auto longer = flags;
    if (task != "toy") longer.push_back("--epochs=30");
    check_graph(dir, task, task, longer);
  }
}

TEST_CASE("a CUDA graph follows rates, steps, scale and averages, and leaves a smaller batch out",
          "[fake_gpu]") {
  need_fashion_mnist();
  const TempDir dir;
  // 15 batches of 32 and one of 20, twice.
  const std::vector<std::string> uneven = {"--limit-train=500", "--epochs=2", "--max-steps=30"};
  const std::vector<std::vector<std::string>> trainings = {
      {},
      {"--optimizer=adam", "--lr=0.01", "--lr-schedule=cosine", "--lr-interval=step", "--warmup-steps=15"},
      // This rate is the same in float32: else 16 bits make a difference of the rounding.
      {"--optimizer=adamw", "--lr=0.0009765625", "--precision=16-mixed", "--ema=0.9", "--clip-norm=1"},
      {"--optimizer=sgd", "--momentum=0.9", "--lr=0.01", "--ema=0.9", "--clip-value=0.1"},
      {"--optimizer=adadelta", "--precision=16-mixed"}};
  for (std::size_t i = 0; i < trainings.size(); ++i) {
    CAPTURE(i);
    auto flags = small(uneven);
    flags.insert(flags.end(), trainings[i].begin(), trainings[i].end());
    const auto out = check_graph(dir, std::to_string(i), "mnist", flags);
    CHECK(read_summary(out)["steps"] == 30);
  }
}

TEST_CASE("the flag --fast captures a step on a GPU unless a flag says otherwise", "[fake_gpu]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto said = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--fast", "--max-steps=14", "--overwrite"});
    return run(steps_of("mnist", dir.path() / "out", true, small(flags)));
  };
  CHECK_THAT(said({}), ContainsSubstring(kCaptured));
  CHECK_THAT(said({"--max-steps=28", "--epochs=2", "--resume=auto"}), ContainsSubstring(kCaptured));
  CHECK_THAT(said({"--cuda-graph=off"}), !ContainsSubstring(kCaptured));
}

TEST_CASE("a run with a CUDA graph resumes as one without", "[fake_gpu]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto flags = small({"--optimizer=adam", "--lr=0.01", "--lr-schedule=step", "--lr-interval=step",
                            "--gamma=0.9", "--resume=auto", "--ema=0.9", "--epochs=3"});
  for (const std::string graph : {"off", "on"})
    for (const char* steps : {"--max-steps=16", "--max-steps=32"}) {
      auto more = flags;
      more.insert(more.end(), {steps, "--cuda-graph=" + graph});
      run(steps_of("mnist", dir.path() / graph, true, more));
    }
  check_same_losses(dir.path() / "on", dir.path() / "off", 1e-3);
}

TEST_CASE("two ranks over NCCL train with a CUDA graph as without one", "[fake_gpu]") {
  need_fashion_mnist();
  const TempDir dir;
  auto cifar = all_tasks(dir)[3].flags;
  check_graph(dir, "mnist", "mnist", small({"--ema=0.9", "--limit-train=990", "--epochs=2"}), 2);
  cifar.insert(cifar.end(), {"--epochs=30", "--static-graph=false"});
  check_graph(dir, "cifar", "cifar10", cifar, 2);
}

TEST_CASE("a step that cannot be a CUDA graph is told, and goes on without one", "[fake_gpu]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto with = [&](const std::string& choice, std::vector<std::string> flags, int ranks) {
    flags.insert(flags.end(), {"--overwrite", "--cuda-graph=" + choice});
    return steps_of("mnist", dir.path() / "run", true, small(flags), ranks);
  };
  for (const auto& [flag, ranks] : {std::pair("--accumulate=2", 0),
                                    {"--nan-check", 0},
                                    {"--fsdp", 2},
                                    {"--zero1", 2},
                                    {"--join", 2},
                                    {"--find-unused", 2},
                                    {"--static-graph", 2},
                                    {"--sync-bn", 2},
                                    {"--comm-hook=fp16", 2},
                                    {"--lr-schedule=one-cycle --optimizer=sgd", 0}}) {
    CAPTURE(flag);
    std::istringstream words(flag);
    const std::vector<std::string> flags(std::istream_iterator<std::string>(words), {});
    const auto name = flags[0].substr(0, flags[0].find('='));
    auto slow = with("auto", flags, ranks);
    slow.env.erase("DDPRUN_SYNC_DEBUG_MODE");
    CHECK_THAT(run(slow), ContainsSubstring("--cuda-graph=auto: no graph with " + name));
  }
  CHECK_THAT(run(with("on", {"--accumulate=2"}, 0), 2),
             ContainsSubstring("--cuda-graph=on: not possible with --accumulate"));
}

TEST_CASE("a step that waits for the GPU is refused by the capture", "[fake_gpu]") {
  const TempDir dir;
  std::ofstream(dir.path() / "tiny.json") << kTinySam;
  const auto with = [&](const std::string& choice) {
    auto command = steps_of(
        "sam", dir.path() / choice, true,
        {"--architecture=" + (dir.path() / "tiny.json").string(), "--data=nuclei-sample", "--freeze=encoder",
         "--embedding-cache=" + (dir.path() / "cache").string(), "--max-steps=14", "--cuda-graph=" + choice});
    command.env.erase("DDPRUN_SYNC_DEBUG_MODE");
    return command;
  };
  const std::string refused =
      "the step cannot be captured as a CUDA graph: operation not permitted when stream is capturing: copy";
  CHECK_THAT(run(with("auto")), ContainsSubstring(refused) && ContainsSubstring("; going on without"));
  CHECK(read_summary(dir.path() / "auto")["steps"] == 14);
  CHECK_THAT(run(with("on"), 1), ContainsSubstring(refused));
}

TEST_CASE("wherever a capture is refused, training goes on as one that tried no graph", "[fake_gpu]") {
  need_fashion_mnist();
  const TempDir dir;
  const int ranks = GENERATE(0, 2);
  const auto with = [&](const std::string& choice, const std::string& refused) {
    // The rate is the same in float32.
    auto command = steps_of("mnist", dir.path() / choice, true,
                            small({"--batch-size=8", "--limit-test=20", "--max-steps=16", "--optimizer=adamw",
                                   "--lr=0.0009765625", "--precision=16-mixed", "--ema=0.9", "--clip-norm=1",
                                   "--no-report", "--overwrite", "--cuda-graph=" + choice}),
                            ranks);
    command.env["FAKE_GPU_REFUSES"] = "aten::" + refused;
    return command;
  };
  const std::string line =
      "the step cannot be captured as a CUDA graph: operation not permitted when stream is capturing: aten::";
  run(with("off", ""));
  std::vector<std::string> all = {"convolution_backward", "_fused_adamw_"};
  if (ranks > 0)
    all = {"convolution@1",
           "convolution_backward",
           "convolution_backward@1",
           "linalg_vector_norm@0",
           "_amp_foreach_non_finite_check_and_unscale_",
           "_fused_adamw_@1",
           "lerp",
           "_amp_update_scale_"};
  for (const auto& refused : all) {
    CAPTURE(ranks, refused);
    const auto told = run(with("auto", refused));
    const auto name = refused.substr(0, refused.find('@'));
    const std::string rank = refused.ends_with("@1") ? " (rank 1)" : "";
    CHECK(count_of(line + name + rank + "; going on without", told) == 1);
    CHECK(count_of("cannot be captured", told) == 1);
    CHECK(values_of(dir.path() / "auto", "train_loss") == values_of(dir.path() / "off", "train_loss"));
    CHECK((weights(dir.path() / "auto") == weights(dir.path() / "off")));
  }
  if (ranks > 0)
    CHECK_THAT(run(with("on", "convolution_backward@1"), 1),
               ContainsSubstring(line + "convolution_backward (rank 1)"));
}

TEST_CASE("a refused capture leaves BatchNorm and the buckets as they were", "[fake_gpu]") {
  const TempDir dir;
  const auto with = [&](const std::string& choice) {
    auto flags = all_tasks(dir)[3].flags;
    flags.insert(flags.end(), {"--epochs=30", "--max-steps=16", "--static-graph=false", "--bucket-mb=1",
                               "--lr=0.0625", "--lr-schedule=none", "--no-report", "--cuda-graph=" + choice});
    auto command = steps_of("cifar10", dir.path() / choice, true, flags, 2);
    command.env["FAKE_GPU_REFUSES"] = "aten::native_batch_norm_backward@0";
    return command;
  };
  run(with("off"));
  CHECK_THAT(run(with("auto")), ContainsSubstring("native_batch_norm_backward; going on without"));
  for (const char* metric : {"train_loss", "val_loss"}) {
    CHECK(values_of(dir.path() / "off", metric).size() >= 5);
    CHECK(values_of(dir.path() / "auto", metric) == values_of(dir.path() / "off", metric));
  }
}
