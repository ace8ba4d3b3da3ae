// A training that is interrupted and goes on is bit for bit the one that was not.
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <regex>

#include <ddprun/common/held_port.h>
#include "tests/integration/training_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

std::vector<std::string> with(std::vector<std::string> flags, const std::vector<std::string>& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

void check_equal_runs(const fs::path& a, const fs::path& b) {
  for (const char* metric :
       {"step", "epoch", "lr", "train_loss", "train_loss_epoch", "train_acc", "test_loss"})
    CHECK(values_of(a, metric) == values_of(b, metric));
  CHECK_FALSE(values_of(a, "train_loss").empty());
  CHECK(weights(a) == weights(b));
}

/// Dropout, a schedule, warm-up and averaged weights: all that has a state.
std::vector<std::string> stateful_mnist() {
  return {"--data=fashion-mnist", "--limit-train=256", "--limit-test=50",   "--batch-size=16",
          "--epochs=2",           "--log-interval=1",  "--optimizer=adamw", "--lr-schedule=cosine",
          "--warmup-steps=3",     "--ema=0.9"};
}

}  // namespace

TEST_CASE("a run that stops in the middle of an epoch and is resumed equals one that does not",
          "[training]") {
  need_fashion_mnist();
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const TempDir dir;
    const auto whole = dir.path() / "whole", parts = dir.path() / "parts";
    Child uninterrupted(training("mnist", ranks, whole, stateful_mnist()));
    REQUIRE(uninterrupted.wait(kTraining) == ExitStatus::exited(0));
    // Two epochs in all; a sleep in the middle of the first, and one between the two.
    const int epoch = ((256 + ranks - 1) / ranks + 15) / 16, middle = epoch / 2 + 1;
    for (const int steps : {middle, epoch, 2 * epoch}) {
      Child part(training("mnist", ranks, parts,
                          with(stateful_mnist(), {"--max-steps=" + std::to_string(steps), "--resume=auto"})));
      REQUIRE(part.wait(kTraining) == ExitStatus::exited(0));
      CHECK(read_summary(parts)["steps"] == steps);
      CHECK(read_summary(parts)["epochs"] == steps / epoch);
    }
    // A stop adds a row for the test; only the training is compared.
    CHECK(values_of(parts, "train_loss") == values_of(whole, "train_loss"));
    CHECK(values_of(parts, "train_loss_epoch").back() == values_of(whole, "train_loss_epoch").back());
    CHECK(values_of(parts, "test_loss").back() == values_of(whole, "test_loss").back());
    CHECK(weights(parts) == weights(whole));
  }
}

TEST_CASE("the times of a resumed run are those of all its parts", "[training]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  const auto time_after = [&](int epochs) {
    Child part(
        training("linear", 2, out, {"--epochs=" + std::to_string(epochs), "--resume=auto", "--no-report"}));
    REQUIRE(part.wait(kTraining) == ExitStatus::exited(0));
    return read_summary(out);
  };
  const auto before = time_after(20), after = time_after(21);  // alone the second part takes far less
  CHECK(after["seconds"] > before["seconds"]);
  for (const char* part : {"start_seconds", "data_wait_seconds", "compute_seconds", "communication_seconds",
                           "training_seconds"}) {
    CAPTURE(part);
    CHECK(after["time"][part] > before["time"][part]);
  }
  double parts = 0;
  for (const auto& [name, seconds] : after["time"].items())
    if (name != "process_seconds" && name != "training_seconds") parts += seconds.get<double>();
  CHECK(parts == Approx(after["time"]["process_seconds"].get<double>()));
}

TEST_CASE("a run that was killed after its last step and before last.pt has both in the end", "[training]") {
  const TempDir dir;
  const auto out = dir.path() / "run", last = out / "checkpoints/last.pt";
  const std::vector<std::string> flags = {"--epochs=1", "--val-split=0.2", "--save-top-k=1", "--no-report",
                                          "--resume=auto"};
  Child first(training("linear", 2, out, flags));
  REQUIRE(first.wait(kTraining) == ExitStatus::exited(0));
  const auto trained = weights(out);
  for (const auto& file : {last, out / "summary.json"}) fs::remove(file);
  Child second(training("linear", 2, out, flags));
  REQUIRE(second.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(second.out(), ContainsSubstring("epoch=0-step="));
  REQUIRE(fs::exists(last));
  CHECK(weights(out) == trained);
}

TEST_CASE("a run resumed between two validations knows the last one", "[training]") {
  const TempDir dir;
  const auto whole = dir.path() / "whole", parts = dir.path() / "parts";
  const std::vector<std::string> flags = {"--epochs=1",
                                          "--val-split=0.2",
                                          "--val-every-steps=10",
                                          "--save-top-k=-1",
                                          "--lr-schedule=plateau",
                                          "--plateau-patience=1",
                                          "--log-interval=1",
                                          "--no-report"};
  Child uninterrupted(training("linear", 2, whole, flags));  // 13 steps
  REQUIRE(uninterrupted.wait(kTraining) == ExitStatus::exited(0));
  for (const auto& more : {std::vector<std::string>{"--max-steps=12"}, {"--resume=auto"}}) {
    Child part(training("linear", 2, parts, with(flags, more)));
    REQUIRE(part.wait(kTraining) == ExitStatus::exited(0));
  }
  CHECK(fs::exists(whole / "checkpoints/epoch=0-step=13.pt"));
  CHECK(fs::exists(parts / "checkpoints/epoch=0-step=13.pt"));  // judged by the validation at step 10
  CHECK(read_summary(whole)["val_loss"].is_number());
  CHECK(read_summary(parts)["val_loss"] == read_summary(whole)["val_loss"]);
  CHECK(weights(parts) == weights(whole));
}

TEST_CASE("SIGTERM makes a checkpoint, and the run that goes on from it equals one that never ended",
          "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto whole = dir.path() / "whole", parts = dir.path() / "parts";
  // The ranks agree on signals each half second: long enough that it comes in the middle.
  const auto flags = with(stateful_mnist(), {"--epochs=16"});
  Child uninterrupted(training("mnist", 2, whole, flags));
  REQUIRE(uninterrupted.wait(kTraining) == ExitStatus::exited(0));
  Child first(training("mnist", 2, parts, flags));
  REQUIRE(first.wait_for_output("Train Epoch: 1 [96/256"));
  first.send_signal(SIGTERM);
  CHECK(first.wait(kTraining) == ExitStatus::killed(SIGTERM, false));
  CHECK(first.nothing_left());
  CHECK(fs::exists(parts / "checkpoints/last.pt"));
  CHECK_FALSE(fs::exists(parts / "summary.json"));
  CHECK_THAT(first.out(), ContainsSubstring("terminated; continue with " DDPRUN_PROGRAM " ") &&
                              ContainsSubstring(" mnist --resume " + parts.string() + " --epochs 16\n"));
  Child second(training("mnist", 2, parts, with(flags, {"--resume=auto"})));
  REQUIRE(second.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(second.out(),
             ContainsSubstring("resumed from " + (parts / "checkpoints/last.pt").string() + " at step "));
  check_equal_runs(parts, whole);
}

TEST_CASE("the command that a terminated training prints has ddprun's flags and goes on to the same end",
          "[training]") {
  const TempDir dir;
  const auto whole = dir.path() / "whole", parts = dir.path() / "parts";
  const auto job = [&](const fs::path& out) {
    auto command = training("linear", 2, out,
                            {"--epochs=400", "--max-time=599.1", "--device=cpu", "--backend=gloo",
                             "--timeout=90", "--no-report", "--no-tensorboard"});
    command.argv.insert(command.argv.begin() + 1, "--log-dir=" + (dir.path() / "the log's").string());
    return command;
  };
  Child uninterrupted(job(whole));
  REQUIRE(uninterrupted.wait(kTraining) == ExitStatus::exited(0));
  Child first(job(parts));
  REQUIRE(first.wait_for_output("Rank 0, Epoch 2/"));
  first.send_signal(SIGTERM);
  REQUIRE(first.wait(kTraining) == ExitStatus::killed(SIGTERM, false));
  const std::string text = first.out(), before = "terminated; continue with ";
  const auto begin = text.find(before) + before.size();
  REQUIRE(begin > before.size());
  const auto command = text.substr(begin, text.find('\n', begin) - begin);
  CHECK_THAT(command, ContainsSubstring("the log'\\''s'") && ContainsSubstring(" --shutdown-timeout=5 ") &&
                          Catch::Matchers::EndsWith(
                              " --device cpu --backend gloo --timeout 90 --epochs 400 --max-time 599.1"));
  Command second;
  second.argv = {"sh", "-c", command};
  Child again(second);
  REQUIRE(again.wait(kTraining) == ExitStatus::exited(0));
  check_equal_runs(parts, whole);
}

TEST_CASE("what ranks print that no single command has started holds for all of them", "[training]") {
  const bool has_ddprun = GENERATE(false, true);  // on two nodes, or none at all
  const TempDir dir;
  const auto out = dir.path() / "run";
  const HeldPort port;
  const auto command = [&](int rank) {
    auto one = training("linear", 0, out, {"--epochs=100000", "--device=cpu", "--no-report"});
    one.env = {{"RANK", std::to_string(rank)},
               {"WORLD_SIZE", "2"},
               {"LOCAL_RANK", has_ddprun ? "0" : std::to_string(rank)},
               {"LOCAL_WORLD_SIZE", has_ddprun ? "1" : "2"},
               {"MASTER_ADDR", "127.0.0.1"},
               {"MASTER_PORT", std::to_string(port.port)}};
    if (has_ddprun) one.env["DDPRUN_COMMAND"] = "ddprun --nnodes=2";
    return one;
  };
  Child first(command(0)), second(command(1));
  REQUIRE(first.wait_for_output("Rank 0, Epoch 2/"));
  first.send_signal(SIGTERM);
  CHECK(first.wait(kTraining) == ExitStatus::killed(SIGTERM));
  CHECK(second.wait(kTraining) == ExitStatus::killed(SIGTERM));
  CHECK_THAT(first.out(), Catch::Matchers::EndsWith("terminated; continue on all 2 ranks with --resume " +
                                                    out.string() + " --device cpu --epochs 100000\n"));
}

TEST_CASE("SIGUSR1 makes a checkpoint, and the training goes on", "[training]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  Child child(training("linear", 2, out, {"--epochs=100000", "--save-every=100000", "--max-time=60"}));
  REQUIRE(child.wait_for_output("Rank 0, Epoch 2/"));
  const auto last = out / "checkpoints/last.pt";
  REQUIRE(wait_until([&] { return fs::exists(last); }));  // after epoch 0
  const auto before = fs::last_write_time(last);
  child.send_signal(SIGUSR1);
  CHECK(wait_until([&] { return fs::last_write_time(last) != before; }));
  const auto lines = count_of("Rank 0, Epoch ", child.out());
  CHECK(child.wait_for_output("Rank 0, Epoch ", lines + 2));
  child.send_signal(SIGTERM);
  CHECK(child.wait(kTraining) == ExitStatus::killed(SIGTERM, false));
}

TEST_CASE("before there is anything to save SIGUSR1 does nothing, and SIGTERM ends the process",
          "[training]") {
  const TempDir dir;
  auto command = training("linear", 0, dir.path() / "run", {"--timeout=60"});
  command.env = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}};
  Child child(command);  // it waits for rank 0
  REQUIRE(wait_until([&] {
    const auto status = read_file("/proc/" + std::to_string(child.pid()) + "/status");
    const auto ignored = std::stoull(status.substr(status.find("SigIgn:") + 7), nullptr, 16);
    return (ignored >> (SIGUSR1 - 1) & 1) != 0;
  }));
  child.send_signal(SIGUSR1);
  child.send_signal(SIGTERM);
  CHECK(child.wait() == ExitStatus::killed(SIGTERM));
}

TEST_CASE("a resumed run has another number of ranks, but not another batch size, task or training set",
          "[training]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  const std::vector<std::string> flags = {"--epochs=3", "--resume=auto"};
  Child first(training("linear", 2, out, with(flags, {"--max-steps=20"})));  // 16 an epoch
  REQUIRE(first.wait(kTraining) == ExitStatus::exited(0));
  CHECK(read_summary(out)["steps"] == 20);

  Child other_batch(training("linear", 2, out, with(flags, {"--batch-size=16"})));
  CHECK(other_batch.wait(kTraining) == ExitStatus::exited(2));
  CHECK_THAT(other_batch.err(), ContainsSubstring("was made with batch_size 32, got 16"));
  Child other_task(training("toy", 0, out, {"3", "1", "--resume=auto"}));
  CHECK(other_task.wait(kTraining) == ExitStatus::exited(2));
  CHECK_THAT(other_task.err(), ContainsSubstring("was made with task \"linear\", got \"toy\""));

  Child other_split(training("linear", 2, out, with(flags, {"--val-split=0.1"})));
  CHECK(other_split.wait(kTraining) == ExitStatus::exited(2));
  CHECK_THAT(other_split.err(),
             ContainsSubstring("was made with 1000 training examples, got 900 (set by --data,"));

  Child second(training("linear", 1, out, flags));
  REQUIRE(second.wait(kTraining) == ExitStatus::exited(0));
  // 1000 - 4 * 64 samples are left of the second epoch: 24 batches of one rank; then a whole epoch.
  CHECK(read_summary(out)["steps"] == 20 + 24 + 32);
  CHECK(read_summary(out)["world_size"] == 1);
}

TEST_CASE("a run under ddprun goes on by itself after a rank has died, and equals one that never did",
          "[training]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  const std::vector<std::string> flags = {"--epochs=300", "--save-every=5"};
  auto command = training("linear", 2, out, with(flags, {"--resume=auto"}));
  const auto result = (dir.path() / "result.json").string();
  command.argv.insert(command.argv.begin() + 1, {"--max-restarts=1", "--result-json=" + result});
  Child child(command);
  REQUIRE(child.wait_for_output("Rank 0, Epoch 20/"));
  pid_t rank_1 = -1;
  for (const pid_t pid : child.processes())
    if (read_file("/proc/" + std::to_string(pid) + "/environ").find(std::string("\0RANK=1\0", 8)) !=
        std::string::npos)
      rank_1 = pid;
  REQUIRE(rank_1 > 0);
  ::kill(rank_1, SIGKILL);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK(count_of("resumed from ", child.out()) == 1);
  const auto ledger = nlohmann::json::parse(read_file(result))["ledger"];
  CAPTURE(ledger.dump());
  double sum = 0;
  for (const auto& [part, seconds] : ledger.items())
    if (part != "wall") sum += seconds.get<double>();
  CHECK(sum == Approx(ledger["wall"].get<double>()));
  for (const char* part : {"start", "compute", "communication", "restarts", "other"})
    CHECK(ledger[part].get<double>() > 0);
  CHECK(ledger["other"].get<double>() < 0.5 * ledger["wall"].get<double>());
  Child uninterrupted(training("linear", 2, dir.path() / "whole", flags));
  REQUIRE(uninterrupted.wait(kTraining) == ExitStatus::exited(0));
  check_equal_runs(out, dir.path() / "whole");
}

namespace {

/// The rate after the last step of each epoch.
std::vector<double> rates_of(const fs::path& out, std::size_t epochs) {
  std::vector<double> rates(epochs, -1);
  for (const auto& row : read_metrics(out))
    if (row.count("lr") != 0 && row.count("train_loss") != 0)
      rates.at(std::stoul(row.at("epoch"))) = std::stod(row.at("lr"));
  return rates;
}

/// The checkpoint of an epoch.
std::string checkpoint_of(const fs::path& out, int epoch) {
  const auto start = "epoch=" + std::to_string(epoch) + "-";
  for (const auto& entry : fs::directory_iterator(out / "checkpoints"))
    if (entry.path().filename().string().starts_with(start)) return entry.path().string();
  FAIL("no checkpoint of epoch " << epoch);
  return "";
}

}  // namespace

TEST_CASE("a schedule goes on by progress on another number of ranks, and in a longer run", "[training]") {
  const std::vector<std::vector<std::string>> schedules = {
      {"--lr-schedule=cosine", "--lr-interval=step"},
      {"--lr-schedule=cosine"},
      {"--lr-schedule=cosine", "--lr-interval=step", "--warmup-steps=20"},
      {"--lr-schedule=step", "--lr-interval=step", "--step-size=24", "--gamma=0.5"},
      {"--lr-schedule=plateau", "--plateau-patience=0"},
      {"--lr-schedule=one-cycle"}};
  for (const auto& schedule : schedules) {
    CAPTURE(schedule);
    const TempDir dir;
    const auto run = [&](int ranks, const std::string& name, std::vector<std::string> more) {
      // Too small a rate for the loss to improve: then plateau acts in every epoch, whatever the ranks'
      // losses are.
      const auto lr = schedule[0] == "--lr-schedule=plateau" ? "--lr=1e-6" : "--lr=0.1";
      more = with(with(schedule, {lr, "--save-top-k=-1", "--log-interval=1"}), more);
      if (schedule[0] == "--lr-schedule=cosine") more.emplace_back("--t-max=epochs");
      Child child(training("linear", ranks, dir.path() / name, more));
      REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
      return dir.path() / name;
    };
    const auto close = [](double a, double b) { return std::abs(a - b) < 1e-8; };  // metrics.csv has 9 digits
    const auto whole = run(2, "whole", {"--epochs=4"});
    const auto expected = rates_of(whole, 4);
    const auto one = run(1, "one", {"--epochs=4", "--resume=" + checkpoint_of(whole, 0)});
    // One-cycle's phases end a step early, and steps differ in size.
    const double tolerance = schedule[0] == "--lr-schedule=one-cycle" ? 5e-3 : 1e-8;
    for (std::size_t epoch = 1; epoch < 4; ++epoch)
      CHECK(std::abs(rates_of(one, 4)[epoch] - expected[epoch]) < tolerance);
    const auto back = run(2, "back", {"--epochs=4", "--resume=" + checkpoint_of(one, 2)});
    CHECK(close(rates_of(back, 4)[3], expected[3]));
    if (schedule[0] == "--lr-schedule=plateau") continue;  // measures another loss
    const auto longer = rates_of(run(2, "longer", {"--epochs=6"}), 6);
    const auto prolonged = rates_of(
        run(2, "prolonged", {"--epochs=6", "--resume=" + (whole / "checkpoints/last.pt").string()}), 6);
    CHECK(std::equal(longer.begin() + 4, longer.end(), prolonged.begin() + 4, close));
  }
}

TEST_CASE(
    "what the command line states wins over the checkpoint, in one line and in config.toml, "
    "else the checkpoint's values hold",
    "[training]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  const auto run = [&](const std::vector<std::string>& flags) {
    Child child(training("linear", 1, out, flags));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    return child.err();
  };
  const auto last_lr = [&] { return values_of(out, "lr").back(); };
  const auto config = [&] { return read_file(out / "config.toml"); };
  run({"--epochs=1", "--optimizer=sgd", "--lr=0.01", "--momentum=0.5"});

  CHECK_THAT(
      run({"--epochs=2", "--resume=auto", "--lr=0.1", "--weight-decay=0.25"}),
      ContainsSubstring("resume: --lr 0.1 replaces the checkpoint's 0.01, --weight-decay 0.25 replaces "
                        "the checkpoint's default\n"));
  CHECK(last_lr() == "0.1");
  CHECK_THAT(config(), ContainsSubstring("\nlr = 0.1\n") && ContainsSubstring("\nmomentum = 0.5\n") &&
                           ContainsSubstring("\nweight_decay = 0.25\n") &&
                           ContainsSubstring("\noptimizer = \"sgd\"\n"));

  // Nothing stated: as before, and the configuration says so.
  CHECK_THAT(run({"--epochs=3", "--resume=auto"}), !ContainsSubstring("resume:"));
  CHECK(last_lr() == "0.1");
  CHECK_THAT(config(), ContainsSubstring("\nlr = 0.1\n") && ContainsSubstring("\nweight_decay = 0.25\n"));

  // A file states too.
  write_file_atomic(dir.path() / "job.toml", "task = \"linear\"\n[optim]\nmomentum = 0.875\n");
  CHECK_THAT(run({"--epochs=4", "--resume=auto", "--config", (dir.path() / "job.toml").string()}),
             ContainsSubstring("resume: --momentum 0.875 replaces the checkpoint's 0.5\n"));
  CHECK_THAT(config(), ContainsSubstring("\nlr = 0.1\n") && ContainsSubstring("\nmomentum = 0.875\n"));

  CHECK_THAT(
      run({"--epochs=8", "--resume=auto", "--lr-schedule=cosine", "--lr-interval=step", "--t-max=epochs"}),
      ContainsSubstring("resume: --lr-schedule cosine replaces the checkpoint's none, --lr-interval step"));
  CHECK(std::abs(std::stod(last_lr())) < 1e-8);

  Child other(training("linear", 1, out, {"--epochs=9", "--resume=auto", "--optimizer=adam"}));
  CHECK(other.wait(kTraining) == ExitStatus::exited(2));
  CHECK_THAT(other.err(),
             ContainsSubstring("--optimizer: expected sgd, whose state the checkpoint has, got adam"));
  CHECK_THAT(config(), ContainsSubstring("\noptimizer = \"sgd\"\n"));
}

TEST_CASE("a resumed run keeps the checkpoint's averages, clipping, precision and seed without their flags",
          "[training]") {
  const TempDir dir;
  const std::vector<std::string> flags = {"--ema=0.9",       "--clip-norm=0.5", "--precision=bf16-mixed",
                                          "--seed=7",        "--val-split=0.2", "--accumulate=2",
                                          "--batch-size=16", "--no-report"};
  const auto run = [&](const std::string& name, const std::vector<std::string>& more) {
    Child child(training("linear", 2, dir.path() / name, more));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    return child.err();
  };
  run("whole", with(flags, {"--epochs=3"}));
  run("parts", with(flags, {"--epochs=1"}));
  CHECK_THAT(run("parts", {"--epochs=3", "--resume=auto"}), !ContainsSubstring("resume:"));
  CHECK(values_of(dir.path() / "parts", "val_loss") == values_of(dir.path() / "whole", "val_loss"));
  CHECK(weights(dir.path() / "parts") == weights(dir.path() / "whole"));
  CHECK_THAT(
      run("parts", {"--epochs=4", "--resume=auto", "--ema=0.5", "--no-tensorboard"}),
      ContainsSubstring("resume: --ema 0.5 replaces the checkpoint's 0.9, --tensorboard false replaces the "
                        "checkpoint's true\n"));
}

TEST_CASE("a one-cycle run ends however often its ranks change, in the warm-up too", "[training]") {
  const TempDir dir;
  const std::vector<std::string> flags = {
      "--lr-schedule=one-cycle", "--warmup-steps=9", "--epochs=2", "--limit-train=200",
      "--batch-size=8",          "--optimizer=sgd",  "--lr=0.1",   "--no-report"};
  for (const auto& [ranks, steps] : {std::pair(2, 1), {3, 2}, {1, 3}, {1, 0}}) {
    auto more = with(flags, {"--resume=auto"});
    if (steps > 0) more.push_back("--max-steps=" + std::to_string(steps));
    Child child(training("linear", ranks, dir.path() / "run", more));
    CAPTURE(ranks, steps);
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  }
  CHECK(std::stod(values_of(dir.path() / "run", "lr").back()) < 1e-3);
}

TEST_CASE("a one-cycle run that is made longer says that its rate goes back up, and the header has it",
          "[training]") {
  const TempDir dir;
  const auto run = [&](const std::string& name, const std::vector<std::string>& flags) {
    Child child(training("linear", 1, dir.path() / name,
                         with({"--lr-schedule=one-cycle", "--lr=0.1", "--no-report"}, flags)));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    return child.out() + child.err();
  };
  const auto goes_up = ContainsSubstring("the learning rate goes back up");
  const auto begins = ContainsSubstring("learning rate 0.004, up to 0.1,");
  CHECK_THAT(run("run", {"--epochs=4", "--save-top-k=-1"}), begins && !goes_up);
  const auto middle = checkpoint_of(dir.path() / "run", 1);
  CHECK_THAT(run("again", {"--epochs=4", "--resume=" + middle}),
             !goes_up && !ContainsSubstring("learning rate 0.004"));
  const auto longer = run("run", {"--epochs=8", "--resume=auto"});
  CHECK_THAT(longer, goes_up && !ContainsSubstring("learning rate 0.004"));
  std::smatch rates;
  REQUIRE(std::regex_search(
      longer, rates,
      std::regex("from (\\S+) to (\\S+): the schedule is for the whole run, whose length has changed")));
  CHECK(std::stod(rates[1]) < 1e-4);
  CHECK_THAT(longer, ContainsSubstring("learning rate " + rates[2].str() + ","));
}

TEST_CASE("betas are trained with, recorded and restored, and the command line's win on resume",
          "[training]") {
  const TempDir dir;
  const auto run = [&](const std::string& name, const std::vector<std::string>& flags) {
    Child child(training("linear", 1, dir.path() / name, with({"--no-report"}, flags)));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    return child.err();
  };
  const auto losses = [&](const std::string& name) { return values_of(dir.path() / name, "train_loss"); };
  const auto config = [&] { return read_file(dir.path() / "run/config.toml"); };
  run("default", {"--epochs=2"});
  run("run", {"--epochs=1", "--betas=0.5,0.75"});
  CHECK_THAT(config(), ContainsSubstring("\nbetas = \"0.5,0.75\"\n"));
  CHECK_THAT(run("run", {"--epochs=2", "--resume=auto"}), !ContainsSubstring("resume:"));
  CHECK_THAT(config(), ContainsSubstring("\nbetas = \"0.5,0.75\"\n"));
  CHECK(losses("run") != losses("default"));
  run("whole", {"--epochs=2", "--betas=0.5,0.75"});
  CHECK(losses("run") == losses("whole"));
  CHECK_THAT(run("run", {"--epochs=3", "--resume=auto", "--betas", "0.875,0.999"}),
             ContainsSubstring("resume: --betas 0.875,0.999 replaces the checkpoint's 0.5,0.75\n"));
  CHECK_THAT(config(), ContainsSubstring("\nbetas = \"0.875,0.999\"\n"));
}
