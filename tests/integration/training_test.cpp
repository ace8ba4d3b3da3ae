// The real ddprun with the real worker: what a user runs.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ddprun/common/files.h>
#include "tests/integration/training_job.h"

using namespace ddprun;
using namespace ddprun::test;

TEST_CASE("two ranks train, evaluate and leave a checkpoint, metrics and a summary", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto out = dir.path() / "run";
  Child child(mnist(2, out, small({"--epochs=2", "--log-interval=4"})));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  check_nothing_left(child);

  CHECK_THAT(child.out(), ContainsSubstring("Process group initialized: 2 ranks over gloo on CPU\n"));
  CHECK_THAT(child.out(),
             ContainsSubstring("32-bit, batch size 32 per rank, 64 in total, learning rate 0.001, "
                               "1199882 parameters\n"));
  CHECK_THAT(child.out(), ContainsSubstring("Train Epoch: 1 [0/640 (0%)]\tLoss: "));
  CHECK_THAT(child.out(), ContainsSubstring("Train Epoch: 2 [512/640 (80%)]\tLoss: "));
  CHECK(count_of("Train Epoch: 1 ", child.out()) == 3);  // before steps 1, 5 and 9; from rank 0 alone
  CHECK_THAT(child.out(), ContainsSubstring("Training completed: 2 epochs, 20 steps in "));
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

TEST_CASE("runs without --out get folders of their own", "[training]") {
  const TempDir dir;
  for (int run = 1; run <= 2; ++run) {
    Command command;
    command.argv = {DDPRUN_PROGRAM, "--nproc-per-node=2", worker_program(), "linear", "--epochs=1"};
    command.in_child = [&] {
      if (::chdir(dir.path().c_str()) != 0) ::_exit(122);
    };
    Child child(command);
    const auto status = child.wait(kTraining);
    CAPTURE(child.err());
    REQUIRE(status == ExitStatus::exited(0));
    int folders = 0;
    for (const auto& folder : fs::directory_iterator(dir.path() / "runs"))
      folders += fs::exists(folder.path() / "checkpoints/last.pt") ? 1 : 0;
    CHECK(folders == run);
  }
}

TEST_CASE("the losses of thirty steps on two ranks are those of Python's DDP", "[training]") {
  need_fashion_mnist();
  const auto golden = nlohmann::json::parse(read_file(fs::path(DDPRUN_GOLDEN_DIR) / "mnist_ddp/losses.json"));
  const TempDir dir;
  const auto flag = [&](const std::string& name, const char* key) {
    return "--" + name + "=" + golden[key].dump();
  };
  auto command = mnist(2, dir.path() / "run",
                       {"--data=fashion-mnist", flag("limit-train", "samples"), "--limit-test=10",
                        "--dropout=0", flag("batch-size", "batch_size"), flag("epochs", "epochs"),
                        flag("seed", "seed"), flag("lr", "lr"), "--log-interval=1"});
  // The golden run's choice of instructions, so that rounding is its own too.
  for (const auto& [name, value] : golden["environment"].items())
    command.env[name] = value.get<std::string>();
  Child child(command);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  std::vector<double> losses;
  for (const auto& row : read_metrics(dir.path() / "run"))
    if (row.count("train_loss") != 0) losses.push_back(std::stod(row.at("train_loss")));
  const auto expected = golden["losses"].get<std::vector<double>>();
  REQUIRE(expected.size() == 30);
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

TEST_CASE("a worker started by hand trains as a single process", "[training]") {
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

TEST_CASE("every training step and every test batch sends a heartbeat", "[training]") {
  need_fashion_mnist();
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const UniqueFd store(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {}};
  socklen_t size = sizeof address;
  REQUIRE(::bind(store.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::getsockname(store.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);

  const TempDir dir;
  Command command = mnist(0, dir.path() / "run", small({"--limit-test=1000"}));  // 20 steps, 2 batches
  command.env = {{"RANK", "0"},
                 {"WORLD_SIZE", "1"},
                 {"MASTER_ADDR", "127.0.0.1"},
                 {"MASTER_PORT", std::to_string(ntohs(address.sin_port))},
                 {"DDPRUN_STORE_FD", std::to_string(store.get())},
                 {"DDPRUN_HEARTBEAT_FD", std::to_string(writing.get())}};
  command.in_child = [store_fd = store.get(), heartbeat_fd = writing.get()] {
    ::fcntl(store_fd, F_SETFD, 0);
    ::fcntl(heartbeat_fd, F_SETFD, 0);
    ::fcntl(heartbeat_fd, F_SETFL, O_NONBLOCK);
  };
  Child child(command);
  writing.reset();
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  char beats[256];
  CHECK(::read(reading.get(), beats, sizeof beats) == 22);
}

TEST_CASE("the worker trains under torchrun, whose store it joins as a client", "[training]") {
  need_fashion_mnist();
  const auto python = python_with("torch");
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
                  python_with("torch"),     DDPRUN_SOURCE_DIR "/bench/mnist_ddp.py",
                  fashion_mnist().string(), "--limit=640"};
  Child child(command);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(child.out(), ContainsSubstring("samples_per_second"));
  CHECK(child.nothing_left());
}

TEST_CASE("two ranks reach 98.5 % on MNIST within three epochs", "[training][.slow]") {
  const auto data = beside_the_repository("data/mnist");
  if (!fs::exists(data)) skip(data.string() + " is not there");
  const TempDir dir;
  Child child(mnist(2, dir.path() / "run", {"--data=" + data.string(), "--epochs=3"}));
  REQUIRE(child.wait(20min) == ExitStatus::exited(0));
  const double accuracy = read_summary(dir.path() / "run")["test_acc"];
  INFO("test accuracy " << accuracy);
  CHECK(accuracy >= 0.985);
}
