// worker TASK --eval FILE: the figures of a file's weights, without training.
#include "tests/integration/cifar10_files.h"
#include "tests/integration/training_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// Evaluates into out/evaluation.json and returns what that holds; it is also the last line of the output.
nlohmann::json evaluation(const std::string& task, int ranks, const fs::path& out, const fs::path& weights,
                          std::vector<std::string> flags) {
  flags.push_back("--eval=" + weights.string());
  Child child(training(task, ranks, out, flags));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  const auto text = read_file(out / "evaluation.json");
  CHECK_THAT(child.out(), ContainsSubstring(text.substr(0, text.find('\n'))));
  CHECK_THAT(child.out(), ContainsSubstring(" set: Average loss: "));
  auto json = nlohmann::json::parse(text);
  CHECK(json["task"] == task);
  CHECK(json["weights"] == weights.string());
  CHECK(json["world_size"] == std::max(1, ranks));
  return json;
}

void train(const std::string& task, int ranks, const fs::path& out, const std::vector<std::string>& flags) {
  Child child(training(task, ranks, out, flags));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
}

void exported(const fs::path& checkpoint, const fs::path& to) {
  Command command;
  command.argv = {WORKER_PROGRAM, "export", checkpoint.string(), to.string()};
  Child child(command);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
}

void check_figures(const nlohmann::json& evaluation, const nlohmann::json& summary, const std::string& set,
                   const std::string& measure) {
  CHECK(evaluation[set + "_loss"].get<double>() ==
        Approx(summary[set + "_loss"].get<double>()).epsilon(1e-5));
  if (!measure.empty()) CHECK(evaluation[set + "_" + measure] == summary[set + "_" + measure]);
}

}  // namespace

TEST_CASE("an evaluation gives the training's own figures, on any number of ranks and from any kind of file",
          "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto run = dir.path() / "run", last = run / "checkpoints/last.pt";
  train("mnist", 2, run, small({"--ema=0.9", "--fsdp"}));
  const auto summary = read_summary(run);
  const std::vector<std::string> flags = {"--data=fashion-mnist", "--limit-test=500"};
  const auto in_the_run = read_file(run / "metrics.csv");
  for (const int ranks : {0, 3}) {  // 500 does not divide by 3
    const auto json = evaluation("mnist", ranks, run, last, flags);
    CHECK(json["set"] == "test");
    CHECK(json["samples"] == 500);
    check_figures(json, summary, "test", "acc");  // of the averages
  }
  CHECK(read_file(run / "metrics.csv") == in_the_run);
  check_figures(evaluation("mnist", 3, run, last, {flags[0], flags[1], "--fsdp"}), summary, "test", "acc");

  for (const char* name : {"weights.pt", "weights.safetensors"}) {  // not of the averages
    exported(last, dir.path() / name);
    const auto json = evaluation("mnist", 2, dir.path() / "other", dir.path() / name, flags);
    CHECK(json["test_loss"] != summary["test_loss"]);
    CHECK_FALSE(fs::exists(dir.path() / "other/metrics.csv"));
  }
}

TEST_CASE(
    "an evaluation takes the validation set where there is no test set, and the training set without both",
    "[training]") {
  const TempDir dir;
  const auto last = [&](const char* run) { return dir.path() / run / "checkpoints/last.pt"; };
  train("linear", 2, dir.path() / "linear", {"--epochs=1", "--val-split=0.25"});
  auto json = evaluation("linear", 3, dir.path() / "a", last("linear"), {"--val-split=0.25"});
  CHECK(json["set"] == "validation");
  CHECK(json["samples"] == 250);
  check_figures(json, read_summary(dir.path() / "linear"), "val", "acc");
  json = evaluation("linear", 3, dir.path() / "a", last("linear"), {});  // as the run had it
  CHECK(json["set"] == "validation");
  // Also where the run's data is given again, as it may have moved.
  const auto table = dir.path() / "table.csv", moved = dir.path() / "moved.csv";
  for (int i = 0; i < 40; ++i) std::ofstream(table, std::ios::app) << i % 7 << ',' << i % 2 << '\n';
  train("linear", 0, dir.path() / "table", {"--epochs=1", "--val-split=0.25", "--data=" + table.string()});
  fs::rename(table, moved);
  json = evaluation("linear", 3, dir.path() / "a", last("table"), {"--data=" + moved.string()});
  CHECK(json["set"] == "validation");
  CHECK(json["samples"] == 10);
  json = evaluation("linear", 0, dir.path() / "b", last("linear"), {"--val-split=0"});
  CHECK(json["set"] == "training");
  CHECK(json["samples"] == 1000);

  train("toy", 2, dir.path() / "toy", {"1", "1"});
  json = evaluation("toy", 3, dir.path() / "c", last("toy"), {"1", "1"});
  CHECK(json["samples"] == 2048);
  CHECK(json["train_loss"].get<double>() > 0);
}

TEST_CASE(
    "an evaluation of cifar10 and sam gives the figures of the best checkpoint and of the last validation",
    "[training]") {
  const TempDir dir;
  write_cifar10(dir.path() / "data", 100, 20);
  const std::vector<std::string> cifar10 = {"--data=" + (dir.path() / "data").string(), "--stem=cifar",
                                            "--precision=32"};
  auto flags = cifar10;
  for (const char* flag : {"--epochs=2", "--batch-size=16", "--val-split=0.2", "--lr=0.01"})
    flags.emplace_back(flag);
  train("cifar10", 2, dir.path() / "cifar10", flags);
  auto summary = read_summary(dir.path() / "cifar10");
  const fs::path best = summary["best_checkpoint"].get<std::string>();
  const auto json = evaluation("cifar10", 3, dir.path() / "a", best, cifar10);
  CHECK(json["set"] == "test");
  CHECK(json["samples"] == 20);
  check_figures(json, summary, "test", "acc");

  train("sam", 2, dir.path() / "sam", {"--epochs=1", "--max-steps=2"});
  summary = read_summary(dir.path() / "sam");
  const auto masks = evaluation("sam", 2, dir.path() / "b", dir.path() / "sam/checkpoints/last.pt", {});
  CHECK(masks["set"] == "validation");
  CHECK(masks["val_dice"].get<double>() == Approx(summary["val_dice"].get<double>()).epsilon(1e-4));
  CHECK(evaluation("sam", 0, dir.path() / "c", dir.path() / "sam/checkpoints/last.pt",
                   {"--val-split=0"})["set"] == "training");
}

TEST_CASE("a run is evaluated with the settings of its checkpoint, not of a later branch", "[training]") {
  const TempDir dir;
  const auto run = dir.path() / "run";
  train("linear", 0, run, {"--val-split=0.3", "--limit-train=64", "--epochs=1"});
  const auto samples = [&](const char* out) {
    Child child(training("linear", 0, dir.path() / out, {"--eval=" + run.string()}));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    return nlohmann::json::parse(read_file(dir.path() / out / "evaluation.json"))["samples"].get<int>();
  };
  const int before = samples("before");
  auto text = read_file(run / "config.toml");
  const auto at = text.find("val_split = 0.3");
  REQUIRE(at != std::string::npos);
  write_file_atomic(run / "config.toml", text.replace(at, 15, "val_split = 0.9"));
  CHECK(samples("after") == before);
}

TEST_CASE("the recipe for 94 % trains on images that grow, and its run is evaluated with mirrored ones",
          "[training]") {
  const TempDir dir;
  write_cifar10(dir.path() / "data", 100, 20);
  const auto run = dir.path() / "run";
  const std::vector<std::string> data = {"--data=" + (dir.path() / "data").string(), "--precision=32"};
  auto flags = data;
  for (const char* flag : {"--recipe=94", "--epochs=3", "--batch-size=10"}) flags.emplace_back(flag);
  train("cifar10", 2, run, flags);
  const auto summary = read_summary(run);
  CHECK(summary["steps"] == 15);
  const auto evaluated = [&](const char* out, std::vector<std::string> more) {
    more.insert(more.end(), data.begin(), data.end());
    more.push_back("--fast");
    more.push_back("--eval=" + run.string());
    Child child(training("cifar10", 0, dir.path() / out, more));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    CHECK_THAT(child.err(), ContainsSubstring("--fast, on a CPU with") && ContainsSubstring(" AMX: 32 bits"));
    return nlohmann::json::parse(read_file(dir.path() / out / "evaluation.json"));
  };
  check_figures(evaluated("mirrored", {}), summary, "test", "acc");
  CHECK(evaluated("plain", {"--test-time-flip=false"})["test_loss"] != summary["test_loss"]);
}

TEST_CASE("an evaluation refuses flags of a training's start, and files that do not fit", "[training]") {
  const TempDir dir;
  write_file_atomic(dir.path() / "a.pt", "nonsense");
  Child both(training("linear", 0, dir.path() / "run", {"--eval=a.pt", "--init-weights=b.pt"}));
  CHECK(both.wait() == ExitStatus::exited(2));
  CHECK_THAT(both.err(), ContainsSubstring("--eval and --init-weights: expected at most one of them"));
  Child bad(training("linear", 0, dir.path() / "run", {"--eval=" + (dir.path() / "a.pt").string()}));
  CHECK(bad.wait() == ExitStatus::exited(1));
  CHECK_THAT(bad.err(), ContainsSubstring("a.pt: "));
  CHECK_FALSE(fs::exists(dir.path() / "run"));
}

TEST_CASE("an evaluation replaces its own result, and nobody else's", "[training]") {
  const TempDir dir;
  const auto out = dir.path() / "out", result = out / "evaluation.json";
  const auto last = dir.path() / "run/checkpoints/last.pt";
  train("linear", 0, dir.path() / "run", {"--epochs=1"});
  fs::create_directory(out);
  write_file_atomic(result, "mine");
  Child refused(training("linear", 0, out, {"--eval=" + last.string()}));
  CHECK(refused.wait(kTraining) == ExitStatus::exited(1));
  CHECK_THAT(refused.err(), ContainsSubstring(result.string() + ": is not listed in run.json, and is not"));
  CHECK(read_file(result) == "mine");
  fs::remove(result);
  for (int times = 0; times < 2; ++times) evaluation("linear", 0, out, last, {});
  train("linear", 0, out, {"--epochs=1"});  // the folder is no run's
  evaluation("linear", 0, out, out / "checkpoints/last.pt", {});
}
