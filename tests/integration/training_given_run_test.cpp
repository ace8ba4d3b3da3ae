// A run's folder where a flag or command takes a file.
#include "tests/integration/cifar10_files.h"
#include "tests/integration/sam_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

std::string trained(const std::string& task, int ranks, const fs::path& out,
                    const std::vector<std::string>& flags) {
  Child child(training(task, ranks, out, flags));
  const auto status = child.wait(kTraining);
  CAPTURE(child.err());
  REQUIRE(status == ExitStatus::exited(0));
  return child.err();
}

/// The worker alone with these words; it ends with this exit code. Returns what it wrote to stderr.
std::string said(const std::vector<std::string>& words, int exit_code = 0) {
  auto child = start_worker(words);
  const auto status = child.wait(kTraining);
  CAPTURE(child.err());
  REQUIRE(status == ExitStatus::exited(exit_code));
  return child.err();
}

nlohmann::json json_in(const fs::path& file) { return nlohmann::json::parse(read_file(file)); }

}  // namespace

TEST_CASE("a run's folder stands for its best checkpoint, and brings the run's model and data",
          "[training]") {
  const TempDir dir;
  write_cifar10(dir.path() / "data", 100, 20);
  const auto run = dir.path() / "run";
  trained("cifar10", 2, run,
          {"--data=" + (dir.path() / "data").string(), "--stem=cifar", "--precision=32", "--epochs=3",
           "--batch-size=16", "--val-split=0.2", "--lr=0.01", "--limit-test=15"});
  const auto summary = read_summary(run);
  const std::string best = summary["best_checkpoint"];
  REQUIRE(best != summary["checkpoint"]);

  const auto err = trained("cifar10", 2, dir.path() / "eval", {"--eval=" + run.string()});
  CHECK(count_of("--eval: " + best + ", the best checkpoint (val_acc ", err) == 1);  // on rank 0 alone
  const auto evaluation = json_in(dir.path() / "eval/evaluation.json");
  CHECK(evaluation["weights"] == best);
  CHECK(evaluation["samples"] == 15);
  CHECK(evaluation["test_acc"] == summary["test_acc"]);

  trained("cifar10", 0, dir.path() / "own",
          {"--eval=" + run.string(), "--limit-test=20", "--precision=32"});  // the command line wins
  CHECK(json_in(dir.path() / "own/evaluation.json")["samples"] == 20);

  trained("cifar10", 2, dir.path() / "file", {"--eval=" + best});  // a checkpoint's file brings them, too
  const auto of_file = json_in(dir.path() / "file/evaluation.json");
  CHECK(of_file["samples"] == 15);
  CHECK(of_file["test_acc"] == summary["test_acc"]);
  CHECK(of_file["data"] == (dir.path() / "data").string());

  trained("cifar10", 0, dir.path() / "tuned",
          {"--init-weights=" + run.string(), "--data=" + (dir.path() / "data").string(), "--epochs=1",
           "--limit-train=32", "--precision=32"});
  const auto config = read_file(dir.path() / "tuned/config.toml");
  CHECK_THAT(config, ContainsSubstring("stem = \"cifar\"\n"));
  CHECK_THAT(config, ContainsSubstring("init_weights = \"" + best + "\"\n"));
  CHECK_THAT(config, ContainsSubstring("# limit_test"));  // the data are not the run's

  said({"export", run.string(), (dir.path() / "a.safetensors").string()});
  said({"export", best, (dir.path() / "b.safetensors").string()});
  CHECK(read_file(dir.path() / "a.safetensors") == read_file(dir.path() / "b.safetensors"));

  const std::string newest = summary["checkpoint"];
  auto bytes = read_file(newest);
  bytes[bytes.find("/data/0") / 64 * 64 + 128] ^= 1;  // in a tensor, which a look at the file does not read
  write_file_atomic(newest, bytes);
  CHECK_THAT(trained("cifar10", 0, dir.path() / "other", {"--eval=" + run.string()}),
             ContainsSubstring(newest + ": damaged") && ContainsSubstring("--eval: " + best + ", the best"));

  fs::rename(dir.path() / "data", dir.path() / "moved");
  CHECK_THAT(said({"cifar10", "--eval=" + best}, 2),
             ContainsSubstring(best + " was trained on " + (dir.path() / "data").string() +
                               ", which is not here; add --data\n"));
  trained("cifar10", 0, dir.path() / "moved-data",  // none of the run's limits
          {"--eval=" + best, "--data=" + (dir.path() / "moved").string()});
  CHECK(json_in(dir.path() / "moved-data/evaluation.json")["samples"] == 20);
}

TEST_CASE("resuming a run's folder continues in it from its newest checkpoint", "[training]") {
  const TempDir dir;
  const auto run = dir.path() / "run";
  trained("linear", 2, run, {"--epochs=2", "--save-top-k=1", "--val-split=0.2", "--batch-size=16"});
  const auto resume = [&](const std::vector<std::string>& more) {
    Command command;
    command.argv = {DDPRUN_PROGRAM, "--nproc-per-node=2", WORKER_PROGRAM, "linear",
                    "--resume=" + run.string()};
    command.argv.insert(command.argv.end(), more.begin(), more.end());
    Child child(command);
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    CHECK_THAT(child.out(), ContainsSubstring("resumed from " + (run / "checkpoints/last.pt").string()));
    return child.err();
  };
  resume({"--epochs=3"});
  CHECK(read_summary(run)["epochs"] == 3);
  CHECK(read_summary(run)["steps"] == 3 * 25);

  const auto err = resume({"--epochs=4", "--out=" + (dir.path() / "other").string()});
  CHECK_THAT(err, ContainsSubstring("--resume: " + (run / "checkpoints/last.pt").string() +
                                    ", the newest checkpoint of this run"));
  CHECK(read_summary(dir.path() / "other")["epochs"] == 4);
  CHECK(read_summary(run)["epochs"] == 3);
}

TEST_CASE("a folder that is not a run of this task is refused where a run may be given", "[training]") {
  const TempDir dir;
  const auto run = dir.path() / "run", plain = dir.path() / "plain", empty = dir.path() / "empty";
  trained("linear", 0, run, {"--epochs=1"});
  fs::create_directory(plain);
  fs::create_directories(empty / "checkpoints");
  for (const std::string flag : {"--eval=", "--init-weights=", "--resume="}) {
    CAPTURE(flag);
    CHECK_THAT(said({"linear", flag + plain.string(), "--out=" + (dir.path() / "new").string()}, 1),
               ContainsSubstring(plain.string() + ": is a folder, but not the folder of a run"));
    CHECK_THAT(said({"linear", flag + empty.string(), "--out=" + (dir.path() / "new").string()}, 1),
               ContainsSubstring(empty.string() + ": has no checkpoint\n"));
  }
  CHECK_THAT(said({"mnist", "--eval=" + run.string()}, 2),
             ContainsSubstring("--eval: " + run.string() + " is a run of the task linear\n"));
  CHECK_THAT(said({"export", plain.string(), (dir.path() / "a.pt").string()}, 1),
             ContainsSubstring("is a folder, but not the folder of a run"));
  CHECK_FALSE(fs::exists(dir.path() / "new"));
}

TEST_CASE("a SAM run's folder is a model to predict with, to evaluate and to train on", "[training][sam]") {
  const SamRun sam;
  const auto run = (sam.dir.path() / "run").string();
  sam.run(2, "run", {"--epochs=2", "--ema=0.5"});
  fs::remove(sam.dir.path() / "tiny.json");  // the run has its shape too
  const auto predicted = [&](const std::string& checkpoint) {
    const auto mask = sam.dir.path() / "mask.png";
    said({"sam", "--predict=" + first_image().string(), "--point=40,40", "--checkpoint=" + checkpoint,
          "--mask-out=" + mask.string()});
    return read_file(mask);
  };
  CHECK(predicted(run) == predicted(run + "/best"));
  trained("sam", 0, sam.dir.path() / "eval", {"--eval=" + run});
  CHECK(json_in(sam.dir.path() / "eval/evaluation.json")["set"] == "validation");
  fs::copy_file(run + "/checkpoints/last.pt", sam.dir.path() / "alone.pt");  // has the shape itself
  trained("sam", 0, sam.dir.path() / "eval-file", {"--eval=" + (sam.dir.path() / "alone.pt").string()});
  // Its image size given again, in a run that goes on and in one that repeats it.
  const auto sized = sam.dir.path() / "sized";
  for (const std::string steps : {"1", "2"})
    trained("sam", 0, sized,
            {"--init-weights=" + run, "--image-size=64", "--resume=auto", "--max-steps=" + steps});
  trained("sam", 0, sam.dir.path() / "again",
          {"--config=" + (sized / "config.toml").string(), "--max-steps=1"});
  trained("sam", 0, sam.dir.path() / "from-file",
          {"--init-weights=" + (sam.dir.path() / "alone.pt").string(), "--max-steps=1"});
  trained("sam", 0, sam.dir.path() / "tuned", {"--checkpoint=" + run, "--max-steps=1"});
  trained("sam", 0, sam.dir.path() / "resumed", {"--resume=" + run, "--epochs=3"});
}

TEST_CASE("a SAM run that began from another run's weights has its shape after a lost rank, and in a search",
          "[training][sam]") {
  const SamRun sam;
  const auto run = sam.dir.path() / "run", out = sam.dir.path() / "out", events = sam.dir.path() / "events";
  sam.run(0, "run", {"--max-steps=1"});
  fs::remove(sam.dir.path() / "tiny.json");
  const auto file = sam.dir.path() / "alone.pt";
  fs::copy_file(run / "checkpoints/last.pt", file);
  const auto from = GENERATE_COPY(run, file);
  const auto start = [&](const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--zero1", "--batch-size=1", "--epochs=4",
                                      "--checkpoint-every-steps=1"};
    flags.insert(flags.end(), more.begin(), more.end());
    auto job = training("sam", 2, out, flags);
    job.argv.insert(job.argv.begin() + 1,
                    {"--recover=rank", "--max-restarts=1", "--events-json=" + events.string()});
    return job;
  };
  const auto goes_on = [&](Child& child) {
    kill_rank(events, 1);
    const auto status = child.wait(kTraining);
    CAPTURE(child.out(), child.err());
    CHECK(status == ExitStatus::exited(0));
    CHECK(count_of("restarting all", child.err()) == 0);
  };
  {  // Nothing is in memory before the rank is lost, so that all go back to a checkpoint.
    Child child(start({"--init-weights=" + from.string(), "--memory-checkpoint-every=100000"}));
    REQUIRE(wait_until([&] { return fs::exists(out / "checkpoints/last.pt"); }, kTraining));
    fs::rename(from, sam.dir.path() / "moved");  // to a disk that is gone: the run has its weights itself
    goes_on(child);
    CHECK(count_of("resumed from ", child.out()) == 1);
  }
  trained("sam", 0, sam.dir.path() / "found", {"--resume=" + out.string(), "--find-lr"});
  {
    Child child(start({"--resume=" + out.string(), "--epochs=12", "--log-interval=1"}));
    REQUIRE(child.wait_for_output("train_loss", 2));
    goes_on(child);
  }
  fs::rename(sam.dir.path() / "moved", from);
  const auto repeated = sam.dir.path() / "repeated";
  trained("sam", 0, repeated,
          {"--config=" + (out / "config.toml").string(), "--zero1=false", "--max-steps=1"});
  const auto shape_of = [&](const fs::path& of) {
    said({"export", of.string(), (of / "exported").string()});
    return read_file(of / "exported/config.json");
  };
  CHECK(shape_of(repeated) == shape_of(out));
}

TEST_CASE("a SAM run goes on with its shape though the file that --architecture names is gone",
          "[training][sam]") {
  const SamRun sam;
  const auto events = sam.dir.path() / "events";
  auto job = sam.command(2, "out", {"--epochs=4", "--checkpoint-every-steps=1"});
  job.argv.insert(job.argv.begin() + 1,
                  {"--recover=rank", "--max-restarts=1", "--events-json=" + events.string()});
  Child child(job);
  REQUIRE(wait_until([&] { return fs::exists(sam.dir.path() / "out/checkpoints/last.pt"); }, kTraining));
  fs::remove(sam.dir.path() / "tiny.json");
  kill_rank(events, 1);
  const auto status = child.wait(kTraining);
  CAPTURE(child.out(), child.err());
  CHECK(status == ExitStatus::exited(0));
  CHECK(count_of("restarting all", child.err()) == 0);
  sam.run(2, "out", {"--epochs=5", "--resume=auto"});
}

TEST_CASE("the weights that a run began with do not stand in the way of its other commands",
          "[training][sam]") {
  const SamRun sam;
  const auto run = sam.dir.path() / "run", out = sam.dir.path() / "out";
  sam.run(0, "run", {"--max-steps=1"});
  said({"export", run.string(), (sam.dir.path() / "model").string()});
  trained("sam", 0, out, {"--init-weights=" + run.string(), "--max-steps=1"});
  trained("sam", 0, out, {"--resume=auto", "--max-steps=2"});
  trained("sam", 0, out,
          {"--resume=auto", "--max-steps=3", "--checkpoint=" + (sam.dir.path() / "model").string()});
  trained("sam", 0, sam.dir.path() / "eval",
          {"--config=" + (out / "config.toml").string(), "--eval=" + out.string()});
}

TEST_CASE("worker report takes a folder of runs", "[training]") {
  const TempDir dir;
  const auto runs = dir.path() / "runs", page = dir.path() / "page.html";
  trained("linear", 0, runs / "one", {"--epochs=1"});
  trained("linear", 0, runs / "eval", {"--eval=" + (runs / "one").string()});  // has no curves
  said({"report", "--out=" + page.string(), runs.string()});
  CHECK_THAT(read_file(page), ContainsSubstring("<title>linear"));
  trained("linear", 0, runs / "two", {"--epochs=1"});
  said({"report", "--out=" + page.string(), runs.string()});
  CHECK_THAT(read_file(page), ContainsSubstring("2 runs"));
}
