// The real ddprun with the real worker: mistakes, deaths, signals, full disks.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include <ddprun/common/held_port.h>
#include "tests/integration/training_job.h"

using namespace ddprun;
using namespace ddprun::test;

TEST_CASE("a full disk is a warning while a run trains, and a failure at its end", "[training]") {
  need_fashion_mnist();
  if (::getuid() != 0) skip("needs root to make a small disk");
  const auto [size, text] = GENERATE(table<const char*, const char*>(
      {{"size=20m", "last checkpoint was not written; the existing one is older"},
       {"size=5m", "no checkpoint was written in the whole run"}}));
  const TempDir dir;
  const auto disk = dir.path() / "disk";
  fs::create_directory(disk);
  auto command = mnist(1, disk / "run", small({"--epochs=2"}));
  // A disk for this job alone: nothing stays mounted, whatever happens.
  command.in_child = [disk = disk.string(), size = size] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", disk.c_str(), "tmpfs", 0, size) != 0)
      ::_exit(122);
  };
  Child child(command);
  const auto status = child.wait(kTraining);
  if (status == ExitStatus::exited(122)) skip("this machine lets nobody mount a disk");
  CHECK(status == ExitStatus::exited(1));
  CHECK_THAT(child.err(), ContainsSubstring("No space left on device; the training continues") &&
                              ContainsSubstring("last.pt: ") && ContainsSubstring(text));
  CHECK(count_of("Test set: ", child.out()) == 2);  // it trained to its end
}

TEST_CASE("a file at its limit of size is a failed write, not a signal", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  auto command = mnist(1, dir.path() / "run", small({"--epochs=1"}));
  command.in_child = [] {
    const rlimit files{1 << 20, 1 << 20};
    if (::setrlimit(RLIMIT_FSIZE, &files) != 0) ::_exit(122);
  };
  Child child(command);
  CHECK(child.wait(kTraining) == ExitStatus::exited(1));
  CHECK_THAT(child.err(), ContainsSubstring("last.pt: cannot write: File too large"));
}

TEST_CASE("a reader of stdout that goes away does not end the training", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  auto command = mnist(1, dir.path() / "run", small());
  command.in_child = [] {  // as before `| head`, when head is done
    int ends[2];
    if (::pipe(ends) != 0 || ::dup2(ends[1], STDOUT_FILENO) < 0) ::_exit(122);
    ::close(ends[0]);
    ::close(ends[1]);
    ::signal(SIGPIPE, SIG_DFL);
  };
  Child child(command);
  CHECK(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK(child.err() == "");
  CHECK(read_summary(dir.path() / "run")["steps"] == 20);
  CHECK(fs::exists(dir.path() / "run/checkpoints/last.pt"));
}

TEST_CASE("a run in folders whose names are not UTF-8 ends well", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  fs::create_directory_symlink(fashion_mnist(), dir.path() / "data\xff");
  Child child(mnist(
      0, dir.path() / "run\xff",
      {"--data=" + (dir.path() / "data\xff").string(), "--limit-train=32", "--limit-test=10", "--epochs=1"}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK(read_summary(dir.path() / "run\xff")["checkpoint"].get<std::string>() ==
        (dir.path() / "run\xef\xbf\xbd/checkpoints/last.pt").string());
}

TEST_CASE("the limit of a collective is that of the ranks' meeting too", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  auto command = mnist(0, dir.path() / "run", small({"--timeout=1"}));
  command.env = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}};
  Child child(command);  // nobody is there
  CHECK(child.wait() == ExitStatus::exited(1));
  CHECK(count_of("worker: error: ", child.err()) == 1);
}

TEST_CASE("a training that diverges says so", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  Child child(mnist(1, dir.path() / "run", small({"--lr=1e30"})));
  CHECK(child.wait(kTraining) == ExitStatus::exited(1));
  CHECK(count_of("worker: warning: the training loss is ", child.err()) == 1);
  CHECK(count_of("worker: error: the training has diverged", child.err()) == 1);
}

TEST_CASE("a mistake is one line, and ddprun shows it as the root cause", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  std::vector<std::string> flags;
  int code = 1;
  std::string message;
  SECTION("missing folder") {
    flags = {"--data=/no/such/folder"};
    message = "--data: expected a folder or one of the names mnist, fashion-mnist, got '/no/such/folder'";
    code = 2;
  }
  SECTION("cut file") {
    fs::copy(fashion_mnist(), dir.path() / "data");
    fs::resize_file(dir.path() / "data/t10k-images-idx3-ubyte.gz", 100000);
    flags = {"--data=" + (dir.path() / "data").string()};
    message = (dir.path() / "data/t10k-images-idx3-ubyte.gz").string() + ": is";
  }
  SECTION("wrong file") {
    fs::copy(fashion_mnist(), dir.path() / "data");
    fs::copy_file(dir.path() / "data/train-labels-idx1-ubyte.gz",
                  dir.path() / "data/train-images-idx3-ubyte.gz", fs::copy_options::overwrite_existing);
    flags = {"--data=" + (dir.path() / "data").string()};
    message = "train-images-idx3-ubyte.gz: expected magic number 2051";
  }
  SECTION("unknown data set") {
    flags = {"--data=mnits"};
    message = "--data: expected a folder or one of the names mnist, fashion-mnist, got 'mnits'";
    code = 2;
  }
  SECTION("bad flag") {
    flags = {"--epochs=many"};
    message = "--epochs: expected an integer from 1 to 2147483647, got 'many'";
    code = 2;
  }
  SECTION("weights that are none") {
    std::ofstream(dir.path() / "weights.pt") << "nothing of the kind";
    flags = {"--data=fashion-mnist", "--init-weights=" + (dir.path() / "weights.pt").string()};
    message = "weights.pt: ";
  }
  SECTION("used run folder") {
    fs::create_directories(dir.path() / "run");
    std::ofstream(dir.path() / "run/metrics.csv") << "epoch\n";
    flags = {"--data=fashion-mnist"};
    message = "--out: " + (dir.path() / "run").string() + " holds a file that a run would replace";
    code = 2;
  }
  Child child(mnist(2, dir.path() / "run", flags));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(code));
  check_nothing_left(child);
  CAPTURE(child.err());
  const auto report = child.err().find(" FAILED");  // one line, for a usage error
  REQUIRE(report != std::string::npos);
  CHECK(child.err().find(message, report) != std::string::npos);
  CHECK(count_of("worker: error: ", child.err()) <= 1);  // rank 1, if it fails first, leaves it to ddprun
  CHECK_FALSE(fs::exists(dir.path() / "run/summary.json"));
}

namespace {

/// The worker whose environment says that it is rank 1.
pid_t worker_of_rank_1(const Child& job) {
  for (const pid_t pid : job.processes()) {
    const auto environment = read_file("/proc/" + std::to_string(pid) + "/environ");
    const bool is_worker = fs::read_symlink("/proc/" + std::to_string(pid) + "/exe").filename() == "worker";
    if (is_worker && environment.find(std::string("\0RANK=1\0", 8)) != std::string::npos) return pid;
  }
  FAIL("there is no worker of rank 1");
  return -1;
}

}  // namespace

TEST_CASE("a rank whose peer has died ends at once, also while it computes or evaluates", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  // Neither has a collective for seconds: gradients add up, and each rank evaluates on its own.
  const std::string flags = GENERATE("--accumulate=1000000", "--val-split=0.99");
  Child child(mnist(2, dir.path() / "run", {"--data=fashion-mnist", "--batch-size=16", flags}));
  const auto rank_1_is_busy = [&] {
    const auto record = dir.path() / "run/metrics.csv";
    return fs::exists(record) && count_of("\n", read_file(record)) >= (flags == "--val-split=0.99" ? 2 : 1);
  };
  REQUIRE(wait_until(rank_1_is_busy));
  std::this_thread::sleep_for(500ms);
  REQUIRE(::kill(worker_of_rank_1(child), SIGKILL) == 0);
  const auto killed = std::chrono::steady_clock::now();
  CHECK(child.wait() == ExitStatus::exited(128 + SIGKILL));
  CHECK(std::chrono::steady_clock::now() - killed < 2s);  // not the 5 s that ddprun would allow
  check_nothing_left(child);
}

TEST_CASE("a rank that ends with an error leaves no stacks of LibTorch in the others' messages",
          "[training]") {
  const TempDir dir;
  const auto data = dir.path() / "data";
  fs::copy(fs::path(DDPRUN_SOURCE_DIR) / "share/ddprun/nuclei-sample", data, fs::copy_options::recursive);
  const auto* const cut = GENERATE("ce37f6dd0615d45e.png", "e66a97b2c77f3d66.png");  // read by rank 0
  fs::resize_file(data / "images" / cut, 3000);
  Child child(training("sam", 2, dir.path() / "run", {"--data=" + data.string()}));
  CHECK(child.wait() == ExitStatus::exited(1));
  CHECK_THAT(child.err(), ContainsSubstring(cut + std::string(": is not a readable PNG file")) &&
                              !ContainsSubstring("Exception raised"));
}

TEST_CASE("the death of a rank ends the job, and the dead rank is the root cause", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  Child child(mnist(2, dir.path() / "run", {"--data=fashion-mnist", "--epochs=50", "--log-interval=1"}));
  REQUIRE(child.wait_for_output("Train Epoch: 1 ", 3));
  const auto rank_1 = worker_of_rank_1(child);
  REQUIRE(::kill(rank_1, SIGKILL) == 0);
  const auto killed = std::chrono::steady_clock::now();
  CHECK(child.wait() == ExitStatus::exited(128 + SIGKILL));
  CHECK(std::chrono::steady_clock::now() - killed < 2s);  // not rank 0's patience of 3 s
  check_nothing_left(child);
  const auto report = child.err().substr(child.err().find("Root Cause"));
  CAPTURE(child.err());
  CHECK_THAT(report, ContainsSubstring("rank") && ContainsSubstring(std::to_string(rank_1)) &&
                         ContainsSubstring("SIGKILL"));
}

TEST_CASE("Ctrl-C saves a checkpoint, and a second one does not wait for it", "[training]") {
  need_fashion_mnist();
  const bool twice = GENERATE(false, true);
  const TempDir dir;
  auto command = mnist(0, dir.path() / "run", {"--data=fashion-mnist", "--epochs=50", "--log-interval=1"});
  if (twice) command.env["LD_PRELOAD"] = SLOW_DISK;  // its checkpoint takes five seconds
  Child child(command);
  REQUIRE(child.wait_for_output("Train Epoch: 1 ", 1));
  child.send_signal(SIGINT);
  if (twice) {
    std::this_thread::sleep_for(200ms);
    child.send_signal(SIGINT);
  }
  const auto begin = std::chrono::steady_clock::now();
  CHECK(child.wait() == ExitStatus::killed(SIGINT));
  CHECK(fs::exists(dir.path() / "run/checkpoints/last.pt") == !twice);
  if (twice) CHECK(std::chrono::steady_clock::now() - begin < 1s);
}

TEST_CASE("SIGTERM under --join ends the run after the step, and the run goes on there", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  const std::vector<std::string> flags = {"--data=fashion-mnist", "--join",           "--epochs=1",
                                          "--batch-size=16",      "--limit-test=100", "--log-interval=1",
                                          "--resume=auto",        "--max-steps=1000"};
  Child child(mnist(2, dir.path() / "run", flags));
  REQUIRE(child.wait_for_output("Train Epoch: 1 ", 1));
  child.send_signal(SIGTERM);
  CHECK(child.wait(kTraining) == ExitStatus::killed(SIGTERM));
  check_nothing_left(child);
  const auto steps = values_of(dir.path() / "run", "train_loss").size();
  CHECK(steps < 1000);
  auto again = flags;
  again.back() = "--max-steps=" + std::to_string(steps + 1);
  Child second(mnist(2, dir.path() / "run", again));
  CHECK(second.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(second.out(), ContainsSubstring("at step " + std::to_string(steps) + "\n"));
}

TEST_CASE("SIGTERM while a slow disk still writes a checkpoint waits for it and saves the newest step",
          "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  auto command = mnist(2, dir.path() / "run",
                       {"--data=fashion-mnist", "--epochs=50", "--batch-size=16", "--limit-train=12800",
                        "--limit-test=100", "--log-interval=1", "--checkpoint-every-steps=2"});
  command.argv[2] = "--shutdown-timeout=60";
  command.env["LD_PRELOAD"] = SLOW_DISK;
  Child child(command);
  // The checkpoint of step 2 is being written, and that of step 4 waits for it.
  REQUIRE(wait_until([&] {
    return fs::exists(dir.path() / "run/metrics.csv") &&
           values_of(dir.path() / "run", "train_loss").size() >= 4;
  }));
  child.send_signal(SIGTERM);
  CHECK(child.wait(kTraining) == ExitStatus::killed(SIGTERM));
  check_nothing_left(child);
  CHECK_THAT(child.out(), ContainsSubstring("terminated; continue with "));
  command.argv.insert(command.argv.end(), {"--resume=auto", "--epochs=1", "--max-steps=5"});
  command.env.erase("LD_PRELOAD");
  Child second(command);
  CHECK(second.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(second.out(), ContainsSubstring("at step 4\n"));
}

TEST_CASE("a user's signal ends the training and is what ddprun dies of", "[training]") {
  need_fashion_mnist();
  const int signal = GENERATE(SIGTERM, SIGINT);
  const TempDir dir;
  Child child(mnist(2, dir.path() / "run", {"--data=fashion-mnist", "--epochs=50", "--log-interval=1"}));
  REQUIRE(child.wait_for_output("Train Epoch: 1 ", 4));
  child.send_signal(signal);
  CHECK(child.wait() == ExitStatus::killed(signal));
  check_nothing_left(child);
  CHECK(read_metrics(dir.path() / "run").size() >= 3);  // what was measured is kept; a line's row follows it
}

TEST_CASE("SIGKILL of ddprun takes the training with it", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  Child child(mnist(2, dir.path() / "run", {"--data=fashion-mnist", "--epochs=50", "--log-interval=1"}));
  REQUIRE(child.wait_for_output("Train Epoch: 1 ", 2));
  REQUIRE(child.processes().size() >= 3);
  child.send_signal(SIGKILL);
  CHECK(child.wait() == ExitStatus::killed(SIGKILL));
  CHECK(child.nothing_left());
}

TEST_CASE("ranks meet before they load data, so that a slow disk counts as no missing rank", "[training]") {
  const TempDir dir;
  Command command;
  command.argv = {WORKER_PROGRAM, "linear", "--data=/no/such/table.csv", "--timeout=1",
                  "--out=" + (dir.path() / "run").string()};
  const HeldPort port;
  command.env = {{"RANK", "0"},
                 {"WORLD_SIZE", "2"},
                 {"LOCAL_RANK", "0"},
                 {"LOCAL_WORLD_SIZE", "2"},
                 {"MASTER_ADDR", "127.0.0.1"},
                 {"MASTER_PORT", std::to_string(port.port)}};
  Child child(command);
  CHECK(child.wait(kTraining) == ExitStatus::exited(1));
  CHECK_THAT(child.err(), ContainsSubstring("expected 2 ranks within 1 s, rank 1 did not arrive"));
}
