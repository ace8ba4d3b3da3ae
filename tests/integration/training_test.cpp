// The real ddprun with the real worker: what a user runs.
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/files.h"
#include "tests/support/catch.h"
#include "tests/support/child.h"

namespace fs = std::filesystem;
using namespace ddprun;
using namespace ddprun::test;
using namespace std::chrono_literals;

namespace {

constexpr auto kTraining = 120s;  // far more than a training of these tests takes

fs::path fashion_mnist() { return "/usr/share/datasets/fashion-mnist"; }

void need_fashion_mnist() {
  if (!fs::exists(fashion_mnist())) skip("Fashion-MNIST (package dataset-fashion-mnist) is not installed");
}

/// $DDPRUN_TEST_PYTHON; without it the test is skipped.
std::string python_with_torch() {
  const char* python = std::getenv("DDPRUN_TEST_PYTHON");
  if (python == nullptr) skip("DDPRUN_TEST_PYTHON names no Python with PyTorch");
  return python;
}

/// ddprun (or with 0 ranks the worker alone) on the MNIST task, with small data unless the flags say
/// otherwise.
Command mnist(int ranks, const fs::path& out, const std::vector<std::string>& flags) {
  Command command;
  if (ranks > 0)
    command.argv = {DDPRUN_PROGRAM, "--nproc-per-node=" + std::to_string(ranks), "--shutdown-timeout=5"};
  for (const std::string& word : {std::string(WORKER_PROGRAM), std::string("mnist"), "--out=" + out.string()})
    command.argv.push_back(word);
  command.argv.insert(command.argv.end(), flags.begin(), flags.end());
  return command;
}

std::vector<std::string> small(const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {"--data=fashion-mnist", "--limit-train=640", "--limit-test=500",
                                    "--batch-size=32", "--epochs=1"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

/// metrics.csv as rows of name -> text; empty cells are left out.
std::vector<std::map<std::string, std::string>> read_metrics(const fs::path& out) {
  std::istringstream file(read_file(out / "metrics.csv"));
  const auto split = [](const std::string& line) {
    std::vector<std::string> cells;
    std::istringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    return cells;
  };
  std::string line;
  std::getline(file, line);
  const auto names = split(line);
  std::vector<std::map<std::string, std::string>> rows;
  while (std::getline(file, line)) {
    const auto cells = split(line);
    rows.emplace_back();
    for (std::size_t i = 0; i < cells.size(); ++i)
      if (!cells[i].empty()) rows.back()[names.at(i)] = cells[i];
  }
  return rows;
}

nlohmann::json read_summary(const fs::path& out) {
  return nlohmann::json::parse(read_file(out / "summary.json"));
}

void check_clean_end(Child& child) {
  CHECK(child.nothing_left());
  CHECK(fs::is_empty(child.temp_folder()));
}

}  // namespace

TEST_CASE("two ranks train, evaluate and leave a checkpoint, metrics and a summary", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto out = dir.path() / "run";
  Child child(mnist(2, out, small({"--epochs=2", "--log-interval=4"})));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  check_clean_end(child);

  CHECK_THAT(child.out(), ContainsSubstring("Train Epoch: 1 [64/640 (10%)]\tLoss: "));
  CHECK_THAT(child.out(), ContainsSubstring("Train Epoch: 2 [640/640 (100%)]\tLoss: "));
  CHECK(count_of("Train Epoch: 1 ", child.out()) == 4);  // steps 1, 5, 9 and the last, 10; from rank 0 alone
  CHECK(count_of("Test set: ", child.out()) == 2);
  CHECK_THAT(child.out(), ContainsSubstring("/500 ("));

  const auto summary = read_summary(out);
  CHECK(summary["task"] == "mnist");
  CHECK(summary["world_size"] == 2);
  CHECK(summary["epochs"] == 2);
  CHECK(summary["steps"] == 20);
  CHECK(summary["test_acc"].get<double>() > 0.5);
  CHECK(summary["samples_per_second"].get<double>() > 0);
  CHECK(summary["peak_rss_mb"].get<double>() > 50);
  CHECK(fs::file_size(out / "checkpoints" / "last.pt") > 3 * 1199882 * 4);  // weights and Adam's two moments

  const auto rows = read_metrics(out);
  REQUIRE(rows.size() == 2 * (4 + 1));
  CHECK(rows[0].at("step") == "1");
  CHECK(rows[4].at("epoch") == "0");
  CHECK(std::stod(rows[9].at("test_acc")) == Approx(summary["test_acc"].get<double>()));
  CHECK(std::stod(rows[9].at("train_loss_epoch")) < std::stod(rows[4].at("train_loss_epoch")));
}

TEST_CASE("the losses of twenty steps on two ranks are those of Python's DDP", "[training]") {
  need_fashion_mnist();
  const auto golden = nlohmann::json::parse(read_file(fs::path(DDPRUN_GOLDEN_DIR) / "mnist_ddp/losses.json"));
  const TempDir dir;
  const auto flag = [&](const std::string& name, const char* key) {
    return "--" + name + "=" + golden[key].dump();
  };
  Child child(mnist(2, dir.path() / "run",
                    {"--data=fashion-mnist", flag("limit-train", "samples"), "--limit-test=10", "--dropout=0",
                     flag("batch-size", "batch_size"), flag("epochs", "epochs"), flag("seed", "seed"),
                     "--log-interval=1"}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  std::vector<double> losses;
  for (const auto& row : read_metrics(dir.path() / "run"))
    if (row.count("train_loss") != 0) losses.push_back(std::stod(row.at("train_loss")));
  const auto expected = golden["losses"].get<std::vector<double>>();
  REQUIRE(expected.size() == 20);
  REQUIRE(losses.size() == expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    CAPTURE(i);
    CHECK(losses[i] == Approx(expected[i]).margin(1e-5).epsilon(0));
  }
}

TEST_CASE("test metrics are the same whatever the number of ranks", "[training]") {
  need_fashion_mnist();
  std::vector<nlohmann::json> summaries;
  for (const int ranks : {0, 1, 2, 3}) {
    const TempDir dir;
    // A step so small that no weight moves, and a test set that no number of ranks divides.
    Child child(
        mnist(ranks, dir.path() / "run",
              {"--data=fashion-mnist", "--limit-train=12", "--limit-test=101", "--epochs=1", "--lr=1e-30"}));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    CHECK_THAT(child.out(), ContainsSubstring("/101 ("));
    summaries.push_back(read_summary(dir.path() / "run"));
    CHECK(summaries.back()["world_size"] == std::max(ranks, 1));
    CHECK(summaries.back()["test_acc"] == summaries[0]["test_acc"]);
    CHECK(summaries.back()["test_loss"].get<double>() ==
          Approx(summaries[0]["test_loss"].get<double>()).epsilon(1e-6));
  }
}

TEST_CASE("training metrics count no padding", "[training]") {
  need_fashion_mnist();
  std::vector<nlohmann::json> summaries;
  for (const int ranks : {1, 2}) {  // two ranks see four examples of three
    const TempDir dir;
    Child child(mnist(ranks, dir.path() / "run",
                      {"--data=fashion-mnist", "--limit-train=3", "--limit-test=10", "--epochs=1",
                       "--lr=1e-30", "--dropout=0", "--batch-size=2"}));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    summaries.push_back(read_summary(dir.path() / "run"));
  }
  CHECK(summaries[1]["train_acc"] == summaries[0]["train_acc"]);
  CHECK(summaries[1]["train_loss"].get<double>() ==
        Approx(summaries[0]["train_loss"].get<double>()).epsilon(1e-6));
}

TEST_CASE("a full disk is a warning once a checkpoint is there, and a failure if none ever is",
          "[training]") {
  need_fashion_mnist();
  if (::getuid() != 0) skip("needs root to make a small disk");
  const auto [size, code, text] = GENERATE(table<const char*, int, const char*>(
      {{"size=20m", 0, "No space left on device; the training goes on"},
       {"size=5m", 1, "no checkpoint could be written in the whole run"}}));
  const TempDir dir;
  const auto disk = dir.path() / "disk";
  fs::create_directory(disk);
  auto command = mnist(1, disk / "run", small({"--epochs=2"}));
  // A disk of its own for this job alone: nothing is left mounted, whatever happens.
  command.in_child = [disk = disk.string(), size = size] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", disk.c_str(), "tmpfs", 0, size) != 0)
      ::_exit(122);
  };
  Child child(command);
  const auto status = child.wait(kTraining);
  if (status == ExitStatus::exited(122)) skip("this machine lets nobody mount a disk");
  CHECK(status == ExitStatus::exited(code));
  CHECK_THAT(child.err(), ContainsSubstring("last.pt: ") && ContainsSubstring(text));
  CHECK(count_of("Test set: ", child.out()) == 2);  // it trained to its end
}

TEST_CASE("a training that diverges says so", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  Child child(mnist(1, dir.path() / "run", small({"--lr=1e30"})));
  CHECK(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK(count_of("the training has diverged", child.err()) == 1);
}

TEST_CASE("the same seed gives the same run, whatever the number of loader threads", "[training]") {
  need_fashion_mnist();
  std::vector<std::string> losses;
  for (const char* flag : {"--loader-threads=0", "--loader-threads=1", "--loader-threads=3"}) {
    const TempDir dir;
    Child child(mnist(2, dir.path() / "run", small({flag, "--log-interval=1", "--seed=3"})));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    losses.emplace_back();
    for (const auto& row : read_metrics(dir.path() / "run"))
      if (row.count("train_loss") != 0) losses.back() += row.at("train_loss") + " ";
    CHECK(losses.back() == losses.front());
  }
}

TEST_CASE("a run starts from the weights of an earlier one", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  Child first(mnist(2, dir.path() / "first", small()));
  REQUIRE(first.wait(kTraining) == ExitStatus::exited(0));
  Child second(
      mnist(2, dir.path() / "second",
            small({"--lr=1e-30", "--init-weights=" + (dir.path() / "first/checkpoints/last.pt").string()})));
  REQUIRE(second.wait(kTraining) == ExitStatus::exited(0));
  CHECK(read_summary(dir.path() / "second")["test_acc"] == read_summary(dir.path() / "first")["test_acc"]);
}

TEST_CASE("a worker started by hand is a world of one", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  auto command = mnist(0, dir.path() / "run", small());
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    command.env[name] = std::nullopt;
  Child child(command);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK(read_summary(dir.path() / "run")["world_size"] == 1);
  CHECK(read_summary(dir.path() / "run")["steps"] == 20);
}

TEST_CASE("the worker trains under torchrun, whose store it joins as a client", "[training]") {
  need_fashion_mnist();
  const auto python = python_with_torch();
  const TempDir dir;
  Command command = mnist(0, dir.path() / "run", small());
  const std::vector<std::string> torchrun = {
      python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--no-python"};
  command.argv.insert(command.argv.begin(), torchrun.begin(), torchrun.end());
  Child child(command);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK(read_summary(dir.path() / "run")["world_size"] == 2);
}

TEST_CASE("Python's DDP trains under ddprun", "[training]") {
  need_fashion_mnist();
  Command command;
  command.argv = {DDPRUN_PROGRAM,           "--nproc-per-node=2",
                  python_with_torch(),      DDPRUN_SOURCE_DIR "/bench/mnist_ddp.py",
                  fashion_mnist().string(), "--limit=640"};
  Child child(command);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(child.out(), ContainsSubstring("samples_per_second"));
  CHECK(child.nothing_left());
}

TEST_CASE("a mistake is one line, and ddprun shows it as the root cause", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  std::vector<std::string> flags;
  int code = 1;
  std::string message;
  SECTION("missing folder") {
    flags = {"--data=/no/such/folder"};
    message = "/no/such/folder: no such folder; expected one with train-images-idx3-ubyte[.gz]";
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
    message = "mnits: no such folder";
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
    message = "--out: " + (dir.path() / "run").string() + " holds a run already";
    code = 2;
  }
  Child child(mnist(2, dir.path() / "run", flags));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(code));
  check_clean_end(child);
  CAPTURE(child.err());
  const auto report = child.err().find("Root Cause");
  REQUIRE(report != std::string::npos);
  CHECK(child.err().find(message, report) != std::string::npos);
  CHECK(count_of("worker: error: ", child.err()) >= 1);
  CHECK_FALSE(fs::exists(dir.path() / "run/summary.json"));
}

TEST_CASE("the death of a rank ends the job, and the dead rank is the root cause", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  Child child(mnist(2, dir.path() / "run", {"--data=fashion-mnist", "--epochs=50", "--log-interval=1"}));
  REQUIRE(child.wait_for_output("Train Epoch: 1 ", 3));
  // Rank 1 is the worker whose environment says so.
  pid_t rank_1 = -1;
  for (const pid_t pid : child.processes()) {
    const auto environment = read_file("/proc/" + std::to_string(pid) + "/environ");
    const bool is_worker = fs::read_symlink("/proc/" + std::to_string(pid) + "/exe").filename() == "worker";
    if (is_worker && environment.find(std::string("\0RANK=1\0", 8)) != std::string::npos) rank_1 = pid;
  }
  REQUIRE(rank_1 > 0);
  REQUIRE(::kill(rank_1, SIGKILL) == 0);
  CHECK(child.wait() == ExitStatus::exited(128 + SIGKILL));
  check_clean_end(child);
  const auto report = child.err().substr(child.err().find("Root Cause"));
  CAPTURE(child.err());
  CHECK_THAT(report, ContainsSubstring("rank") && ContainsSubstring(std::to_string(rank_1)) &&
                         ContainsSubstring("SIGKILL"));
}

TEST_CASE("a user's signal ends the training and is what ddprun dies of", "[training]") {
  need_fashion_mnist();
  const int signal = GENERATE(SIGTERM, SIGINT);
  const TempDir dir;
  Child child(mnist(2, dir.path() / "run", {"--data=fashion-mnist", "--epochs=50", "--log-interval=1"}));
  REQUIRE(child.wait_for_output("Train Epoch: 1 ", 3));
  child.send_signal(signal);
  CHECK(child.wait() == ExitStatus::killed(signal));
  check_clean_end(child);
  CHECK(read_metrics(dir.path() / "run").size() >= 3);  // what was measured is kept
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

TEST_CASE("two ranks reach 98.5 % on MNIST within three epochs", "[training][slow]") {
  const auto data = fs::path(DDPRUN_SOURCE_DIR).parent_path() / "shared/data/mnist";
  if (!fs::exists(data)) skip(data.string() + " is not there");
  const TempDir dir;
  Child child(mnist(2, dir.path() / "run", {"--data=" + data.string(), "--epochs=3"}));
  REQUIRE(child.wait(20min) == ExitStatus::exited(0));
  const double accuracy = read_summary(dir.path() / "run")["test_acc"];
  INFO("test accuracy " << accuracy);
  CHECK(accuracy >= 0.985);
}
