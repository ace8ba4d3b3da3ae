// What decides how long and how a training goes, by the real programs.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "tests/integration/training_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

std::vector<std::string> linear(const std::vector<std::string>& more) {
  std::vector<std::string> flags = {"--epochs=2", "--log-interval=1"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

}  // namespace

TEST_CASE("the configuration in a run folder repeats the run", "[training]") {
  const TempDir dir;
  Child first(training("linear", 2, dir.path() / "first",
                       linear({"--lr=0.02", "--seed=5", "--val-split=0.1", "--optimizer=adadelta",
                               "--lr-schedule=step", "--gamma=0.7", "--clip-norm=0.5"})));
  REQUIRE(first.wait(kTraining) == ExitStatus::exited(0));
  Child again(
      training("linear", 2, dir.path() / "again", {"--config", (dir.path() / "first/config.toml").string()}));
  REQUIRE(again.wait(kTraining) == ExitStatus::exited(0));
  for (const char* metric : {"train_loss", "lr", "val_loss", "val_acc"}) {
    CHECK(values_of(dir.path() / "again", metric) == values_of(dir.path() / "first", metric));
    CHECK_FALSE(values_of(dir.path() / "again", metric).empty());
  }
  const auto settings = [&](const char* run) {
    const auto text = read_file(dir.path() / run / "config.toml");
    return text.substr(text.find('\n'));  // the first line names the run
  };
  CHECK(settings("again") == settings("first"));
}

TEST_CASE("what --print-config prints is a configuration that prints itself", "[training]") {
  const TempDir dir;
  Child first(training("cifar10", 0, dir.path() / "run", {"--print-config", "--epochs=7"}));
  REQUIRE(first.wait() == ExitStatus::exited(0));
  CHECK_FALSE(fs::exists(dir.path() / "run"));
  CHECK_THAT(first.out(),
             ContainsSubstring("task = \"cifar10\"") && ContainsSubstring("epochs = 7") &&
                 ContainsSubstring("t_max = 200") &&
                 ContainsSubstring("checkpoint_name = \"ddp-cifar10-{epoch:02d}-{val_acc:.2f}\""));
  std::ofstream(dir.path() / "config.toml") << first.out();
  Command command;
  command.argv = {WORKER_PROGRAM, "--config", (dir.path() / "config.toml").string(), "--print-config"};
  Child again(command);
  REQUIRE(again.wait() == ExitStatus::exited(0));
  CHECK(again.out() == first.out());
}

TEST_CASE("batches that are accumulated are one step of a larger batch", "[training]") {
  const TempDir dir;
  // SGD, whose steps are linear in the gradient: only the order of sums differs.
  const std::vector<std::string> common = {"--optimizer=sgd", "--lr=0.1"};
  const auto losses = [&](const std::string& name, int ranks, std::vector<std::string> flags) {
    flags.insert(flags.end(), common.begin(), common.end());
    Child child(training("linear", ranks, dir.path() / name, linear(flags)));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    return values_of(dir.path() / name, "train_loss");
  };
  const auto check_near = [](const std::vector<std::string>& a, const std::vector<std::string>& b) {
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i)
      CHECK(std::stod(a[i]) == Approx(std::stod(b[i])).epsilon(1e-5));
  };
  const auto parts = losses("parts", 2, {"--batch-size=16", "--accumulate=2", "--limit-train=960"});
  CHECK(parts.size() == 30);  // optimizer steps, 15 an epoch
  CHECK(read_summary(dir.path() / "parts")["steps"] == 30);
  check_near(parts, losses("whole", 2, {"--batch-size=32", "--limit-train=960"}));
  check_near(parts, losses("large", 1, {"--batch-size=64", "--limit-train=960"}));

  // Three batches an epoch: the second step is of one alone, whose loss is divided by two all the same, which
  // is half the learning rate. The third loss is of the weights after that.
  const auto last_smaller =
      losses("last_smaller", 2, {"--batch-size=16", "--accumulate=2", "--limit-train=96", "--max-steps=3"});
  CHECK(last_smaller.size() == 3);
  check_near(last_smaller,
             losses("half_rate", 2,
                    {"--batch-size=32", "--limit-train=96", "--max-steps=3", "--lr-schedule=step",
                     "--lr-interval=step", "--step-size=1", "--gamma=0.5"}));
}

TEST_CASE("a training ends after its steps or its time, and says so", "[training]") {
  const TempDir dir;
  Child steps(training("linear", 2, dir.path() / "steps", {"--max-steps=7"}));
  REQUIRE(steps.wait(kTraining) == ExitStatus::exited(0));
  CHECK(read_summary(dir.path() / "steps")["steps"] == 7);
  CHECK(read_summary(dir.path() / "steps")["epochs"] == 0);
  CHECK_THAT(steps.out(), ContainsSubstring("stopped at step 7: --max-steps=7\n"));
  CHECK_THAT(steps.out(), ContainsSubstring("--epochs 10") && ContainsSubstring("--max-steps 14\n"));
  Child time(training("linear", 2, dir.path() / "time",
                      {"--epochs=1000000", "--max-time=1", "--save-every=1000000"}));
  REQUIRE(time.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(time.out(), ContainsSubstring(": the time is up") && ContainsSubstring("--epochs 1000000") &&
                             ContainsSubstring("--max-time 2\n"));
  CHECK(read_summary(dir.path() / "time")["stopped"] == "the time is up");
}

TEST_CASE("a training that waits for a reader of its output can save after a signal", "[training]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  auto command = training("linear", 0, out,
                          {"--batch-size=1000", "--epochs=1000000", "--save-every=1000000", "--no-report"});
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  ::fcntl(writer.get(), F_SETPIPE_SZ, 4096);
  command.in_child = [&] { ::dup2(writer.get(), STDERR_FILENO), ::dup2(writer.get(), STDOUT_FILENO); };
  Child child(command);
  const auto is_full = [&] {
    pollfd pipe{writer.get(), POLLOUT, 0};
    return ::poll(&pipe, 1, 0) == 0;
  };
  REQUIRE(wait_until(is_full));
  std::this_thread::sleep_for(2s);  // its last page may still have room
  const auto last = out / "checkpoints/last.pt";
  const auto before = fs::last_write_time(last);  // after the first epoch
  child.send_signal(SIGTERM);
  CHECK(child.wait() == ExitStatus::killed(SIGTERM, false));
  CHECK(fs::last_write_time(last) != before);
}

TEST_CASE("a checkpoint's thread that waits for a reader of its output does not keep a training from its end",
          "[training]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  Child earlier(training("linear", 0, out, {"--epochs=1", "--no-report"}));
  REQUIRE(earlier.wait(kTraining) == ExitStatus::exited(0));
  auto command =
      training("linear", 0, out,
               {"--overwrite", "--batch-size=1", "--epochs=1000000", "--save-every=1000000", "--no-report"});
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  ::fcntl(writer.get(), F_SETPIPE_SZ, 4096);
  command.in_child = [&] { ::dup2(writer.get(), STDERR_FILENO); };
  Child child(command);
  pollfd said{reader.get(), POLLIN, 0};
  REQUIRE(::poll(&said, 1, 30000) == 1);  // where the earlier run is
  // As if that run went on there: the first checkpoint's thread warns.
  FolderLock lock;
  for (const auto& entry : fs::directory_iterator(out))
    if (entry.path().filename().string().starts_with("replaced-")) lock = lock_folder(entry.path());
  REQUIRE(lock);
  int size = 0;
  REQUIRE(::ioctl(reader.get(), FIONREAD, &size) == 0);
  REQUIRE(write_all(writer.get(), std::string(static_cast<std::size_t>(4096 - size), '.')));  // it is full
  REQUIRE(child.wait_for_output("Rank 0, Epoch 2/"));
  child.send_signal(SIGTERM);
  CHECK(child.wait() == ExitStatus::killed(SIGTERM, false));
  CHECK_THAT(child.out(), ContainsSubstring("terminated; continue with "));
}

TEST_CASE("a slow reader of a training that ends gets all its output", "[training]") {
  const bool is_socket = GENERATE(false, true);
  CAPTURE(is_socket);
  const TempDir dir;
  auto command = training("linear", 0, dir.path() / "run",
                          {"--batch-size=1000", "--epochs=1000000", "--save-every=1000000", "--no-report"});
  int ends[2];
  REQUIRE((is_socket ? ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)
                     : ::pipe2(ends, O_CLOEXEC)) == 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  if (!is_socket) ::fcntl(writer.get(), F_SETPIPE_SZ, 16384);  // a socket takes as many bytes in lines
  command.in_child = [&] { ::dup2(writer.get(), STDOUT_FILENO); };
  Child child(command);
  std::string text;
  char some[1024];
  const auto read_some = [&] {
    const auto count = ::read(reader.get(), some, sizeof some);
    if (count > 0) text.append(some, static_cast<std::size_t>(count));
    return count > 0;
  };
  while (text.find("Epoch 1/") == std::string::npos) REQUIRE(read_some());
  pollfd room{writer.get(), POLLOUT, 0};
  REQUIRE(wait_until([&] { return ::poll(&room, 1, 0) == 0; }));
  std::this_thread::sleep_for(500ms);  // it writes until nothing more has room
  child.send_signal(SIGTERM);
  writer.reset();
  do std::this_thread::sleep_for(300ms);
  while (read_some());
  CHECK(child.wait() == ExitStatus::killed(SIGTERM, false));
  CHECK_THAT(text, ContainsSubstring("terminated; continue with ") &&
                       Catch::Matchers::EndsWith(" --epochs 1000000\n"));
}

TEST_CASE("a training that gets no better ends by itself", "[training]") {
  const TempDir dir;
  Child child(training("linear", 2, dir.path() / "run",
                       {"--epochs=50", "--lr=1e-30", "--patience=2", "--val-split=0.2", "--save-top-k=2"}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK(read_summary(dir.path() / "run")["epochs"] == 3);
  CHECK_THAT(child.out(), ContainsSubstring("stopped at step ") && ContainsSubstring("val_loss") &&
                              ContainsSubstring("--patience 4\n"));
  CHECK(fs::exists(dir.path() / "run/checkpoints/epoch=0-step=13.pt"));  // of equal ones the first stay
  Child within(training("linear", 0, dir.path() / "within",
                        {"--epochs=5", "--lr=1e-30", "--patience=2", "--val-split=0.2", "--val-every-steps=3",
                         "--batch-size=8"}));
  REQUIRE(within.wait(kTraining) == ExitStatus::exited(0));
  CHECK(read_summary(dir.path() / "within")["steps"] == 9);  // of 100 in an epoch
}

TEST_CASE("validation may come every so many steps", "[training]") {
  const TempDir dir;
  Child child(training("linear", 2, dir.path() / "run",
                       {"--epochs=2", "--val-split=0.2", "--val-every-steps=10", "--save-top-k=-1"}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  std::vector<std::string> steps;
  for (const auto& row : read_metrics(dir.path() / "run"))
    if (row.count("val_loss") != 0) steps.push_back(row.at("step"));
  CHECK(steps == std::vector<std::string>{"10", "20"});  // of 26
  for (const char* name : {"epoch=0-step=10.pt", "epoch=1-step=20.pt"})
    CHECK(fs::exists(dir.path() / "run/checkpoints" / name));
  Child none(training("linear", 0, dir.path() / "none", {"--val-every-steps=10"}));
  CHECK(none.wait() == ExitStatus::exited(2));
  CHECK_THAT(none.err(), ContainsSubstring("no validation set; add --val-split"));
}

TEST_CASE("the log of indices tells every rank's samples in order", "[training]") {
  const TempDir dir;
  const auto file = (dir.path() / "indices").string();
  Child child(training("linear", 2, dir.path() / "run", {"--epochs=2", "--log-indices=" + file}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  std::map<int, std::map<std::int64_t, int>> seen;  // epoch -> sample -> how often
  for (const int rank : {0, 1}) {
    std::ifstream lines(file + "." + std::to_string(rank));
    int step = 0;
    for (std::string line; std::getline(lines, line);) {
      const auto entry = nlohmann::json::parse(line);
      CHECK(entry["rank"] == rank);
      CHECK(entry["step"] == ++step);
      for (const std::int64_t index : entry["indices"]) ++seen[entry["epoch"].get<int>()][index];
    }
    CHECK(step == 32);
  }
  REQUIRE(seen.size() == 2);
  for (const auto& [epoch, samples] : seen) CHECK(samples.size() == 1000);
}

TEST_CASE("a metric that a run has not cannot be monitored", "[training]") {
  const TempDir dir;
  Child child(training("linear", 0, dir.path() / "run", {"--monitor=val_acc"}));
  CHECK(child.wait() == ExitStatus::exited(2));
  CHECK_THAT(child.err(),
             ContainsSubstring("--monitor: this run has no metric 'val_acc' after an epoch, expected one of "
                               "train_loss_epoch, train_acc"));
}
