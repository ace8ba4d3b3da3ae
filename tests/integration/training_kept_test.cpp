// What docs/training/checkpoints.md promises of signals: each cell of its table, by the real programs.
#include <csignal>
#include <map>
#include <thread>

#include "tests/integration/training_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

using Flags = std::vector<std::string>;

constexpr int kStepsOfEpoch = 10;

/// A training of two ranks whose steps are so far apart that a signal comes between them.
Flags kept_flags(const Flags& more) {
  Flags flags = {"--data=fashion-mnist", "--val-split=0.5", "--limit-train=320", "--limit-val=200",
                 "--limit-test=50",      "--batch-size=16", "--epochs=2",        "--log-interval=1"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

std::size_t steps_logged(const fs::path& out) {
  return fs::exists(out / "metrics.csv") ? values_of(out, "train_loss").size() : 0;
}

bool writes_a_checkpoint(const fs::path& out) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(out / "checkpoints", none))
    if (entry.path().filename().string().find(".tmp.") != std::string::npos) return true;
  return false;
}

struct Moment {
  std::string name;
  Flags flags;
  std::function<bool(const fs::path& out)> is_now;
  int checkpoint_every;  // steps
};

std::vector<Moment> moments() {
  const auto after = [](std::size_t steps) {
    return [=](const fs::path& out) { return steps_logged(out) >= steps; };
  };
  const Flags often = {"--checkpoint-every-steps=3"};
  return {{"start", often, [](const auto& out) { return fs::exists(out / "config.toml"); }, 3},
          {"step", often, after(14), 3},
          {"accumulation", {"--accumulate=4", "--checkpoint-every-steps=2"}, after(3), 2},
          {"evaluation", {"--limit-val=6000", "--checkpoint-every-steps=3"}, after(kStepsOfEpoch), 3},
          {"evaluation between steps", {"--limit-val=6000", "--val-every-steps=7"}, after(7), 7},
          {"checkpoint", {"--checkpoint-every-steps=1"}, writes_a_checkpoint, 1},
          {"--join", {"--join", "--limit-train=321", "--checkpoint-every-steps=3"}, after(14), 3},
          {"--ema", {"--ema=0.9", "--checkpoint-every-steps=3"}, after(14), 3},
          {"--fsdp", {"--fsdp", "--checkpoint-every-steps=3"}, after(14), 3}};
}

/// The workers of a job, by their ranks.
std::map<int, pid_t> workers_of(const Child& job) {
  std::map<int, pid_t> found;
  for (const pid_t pid : job.processes()) {
    std::error_code gone;
    const fs::path proc = "/proc/" + std::to_string(pid);
    if (fs::read_symlink(proc / "exe", gone) != fs::canonical(WORKER_PROGRAM)) continue;
    const auto environ = '\0' + read_file(proc / "environ");
    for (const int rank : {0, 1})
      if (environ.find(std::string("\0RANK=", 6) + std::to_string(rank) + '\0') != std::string::npos)
        found[rank] = pid;
  }
  return found;
}

struct Way {
  std::string name;
  bool keeps_all;
  std::function<void(const Child& job)> signal;
  ExitStatus end;
};

std::vector<Way> ways() {
  const auto to_ddprun = [](int signal) { return [=](const Child& job) { job.send_signal(signal); }; };
  const auto kill_ranks = [](int signal, const std::vector<int>& ranks) {
    return [=](const Child& job) {
      const auto workers = workers_of(job);
      for (const int rank : ranks)
        if (workers.count(rank) != 0) ::kill(workers.at(rank), signal);
    };
  };
  return {{"SIGTERM to ddprun", true, to_ddprun(SIGTERM), ExitStatus::killed(SIGTERM)},
          {"SIGTERM to a rank", true, kill_ranks(SIGTERM, {1}), ExitStatus::exited(128 + SIGTERM)},
          {"SIGINT", true, to_ddprun(SIGINT), ExitStatus::killed(SIGINT)},
          {"SIGINT twice", false,
           [](const Child& job) {
             job.send_signal(SIGINT);
             std::this_thread::sleep_for(10ms);
             job.send_signal(SIGINT);
           },
           ExitStatus::killed(SIGINT)},
          {"SIGKILL of a rank", false, kill_ranks(SIGKILL, {1}), ExitStatus::exited(128 + SIGKILL)},
          {"SIGKILL of all ranks", false, kill_ranks(SIGKILL, {1, 0}), ExitStatus::exited(128 + SIGKILL)},
          {"SIGKILL of ddprun", false, to_ddprun(SIGKILL), ExitStatus::killed(SIGKILL)}};
}

/// The weights in a run's last checkpoint, as the bytes of a .safetensors file.
std::string kept_weights(const fs::path& out) {
  const auto file = out.parent_path() / (out.filename().string() + ".safetensors");
  Child child({{WORKER_PROGRAM, "export", (out / "checkpoints/last.pt").string(), file.string()}});
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  return read_file(file);
}

/// The step that a run resumed at; 0 if it started from scratch.
int resumed_step(const std::string& output) {
  const auto line = output.find("resumed from ");
  if (line == std::string::npos) return 0;
  return std::stoi(output.substr(output.find(" at step ", line) + 9));
}

}  // namespace

TEST_CASE("what a signal keeps is what the documentation says, and the run goes on as if it had never come",
          "[training][kept][.slow]") {
  need_fashion_mnist();
  for (const auto& moment : moments()) {
    const TempDir dir;
    const auto whole = dir.path() / "whole";
    Child uninterrupted(training("mnist", 2, whole, kept_flags(moment.flags)));
    REQUIRE(uninterrupted.wait(kTraining) == ExitStatus::exited(0));
    for (const auto& way : ways()) {
      CAPTURE(moment.name, way.name);
      const auto out = dir.path() / way.name;
      auto flags = kept_flags(moment.flags);
      flags.emplace_back("--resume=auto");
      Child job(training("mnist", 2, out, flags));
      REQUIRE(wait_until([&] { return moment.is_now(out); }));
      way.signal(job);
      const auto steps = static_cast<int>(steps_logged(out));
      const auto status = job.wait(kTraining);
      const bool orderly = moment.name != "start" && way.keeps_all;
      if (moment.name != "start") CHECK(status == way.end);
      CHECK(job.nothing_left());

      Child second(training("mnist", 2, out, flags));
      REQUIRE(second.wait(kTraining) == ExitStatus::exited(0));
      const auto kept = resumed_step(second.out());
      // The checkpoint before may be the one that is whole.
      const auto every = moment.checkpoint_every;
      CHECK(kept >= (orderly ? steps : steps / every * every - every));
      for (const char* metric : {"step", "train_loss", "train_loss_epoch", "val_loss", "test_loss", "lr"})
        CHECK(values_of(out, metric) == values_of(whole, metric));
      CHECK(kept_weights(out) == kept_weights(whole));
    }
  }
}
