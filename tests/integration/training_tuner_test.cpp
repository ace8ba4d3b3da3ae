// What a worker tells before a training: the model's layers, a learning rate, a batch size.
#include <sys/resource.h>

#include <regex>

#include "tests/integration/cifar10_files.h"
#include "tests/integration/training_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// The number after the text.
double number_after(const std::string& text, const std::string& output) {
  const auto at = output.find(text);
  INFO(output);
  REQUIRE(at != std::string::npos);
  return std::stod(output.substr(at + text.size()));
}

}  // namespace

TEST_CASE("a summary prints the layers and trains nothing", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  Child child(mnist(0, dir.path() / "run", {"--data=fashion-mnist", "--summary"}));
  CHECK(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(child.out(), ContainsSubstring("conv2  Conv2d") && ContainsSubstring("[1, 64, 24, 24]") &&
                              ContainsSubstring("parameters: 1,199,882, 1,199,882 of them trained"));
  CHECK_FALSE(fs::exists(dir.path() / "run"));
}

TEST_CASE("the finder of rates suggests a rate that learns, on one rank and on two", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  for (const int ranks : {0, 2}) {
    const auto run = dir.path() / std::to_string(ranks);
    Child child(mnist(ranks, run, small({"--find-lr", "--optimizer=sgd"})));
    CHECK(child.wait(kTraining) == ExitStatus::exited(0));
    const auto lr = number_after("suggested learning rate: --lr ", child.err());
    CHECK(lr > 1e-4);
    CHECK(lr < 1);
    const auto picture = read_file(run / "lr_finder.svg");
    CHECK_THAT(picture, ContainsSubstring("suggestion: --lr "));
    // Its losses begin with 2.3, and end far above, which would press the rest of the curve flat.
    const std::regex loss(R"re(text-anchor="end"[^>]*>([0-9.]+))re");
    for (std::sregex_iterator tick(picture.begin(), picture.end(), loss), end; tick != end; ++tick)
      CHECK((std::stod((*tick)[1]) > 1.25 && std::stod((*tick)[1]) < 3.5));
    CHECK(std::distance(fs::directory_iterator(run), {}) == 1);  // there is no run
  }
}

TEST_CASE("the finder of rates without --out leaves its picture and nothing else", "[training]") {
  const TempDir dir;
  Command command{{WORKER_PROGRAM, "linear", "--find-lr"}};
  command.in_child = [&] {
    if (::chdir(dir.path().c_str()) != 0) ::_exit(122);
  };
  Child child(command);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(dir.path())) left.push_back(entry.path().filename());
  CHECK(left == std::vector<std::string>{"lr_finder.svg"});
}

TEST_CASE("a summary names the BatchNorm that a run will have", "[training]") {
  const TempDir dir;
  write_cifar10(dir.path() / "data", 100, 20);
  const auto summary = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--data=" + (dir.path() / "data").string(), "--summary"});
    Child child(training("cifar10", 0, dir.path() / "run", flags));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    return child.out();
  };
  CHECK_THAT(summary({}), ContainsSubstring("  BatchNorm ") && !ContainsSubstring("SyncBatchNorm"));
  CHECK_THAT(summary({"--sync-bn"}), ContainsSubstring("  SyncBatchNorm "));
}

TEST_CASE("an estimate names the samples, the batches and what it assumes", "[training]") {
  const TempDir dir;
  Child child(training("linear", 2, dir.path() / "run", {"--estimate", "--batch-size=50"}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(child.out(), ContainsSubstring("1000 training samples, batches of 50 on each rank") &&
                              ContainsSubstring("    2        10 ") && ContainsSubstring("Assumes that "));
  CHECK_FALSE(fs::exists(dir.path() / "run"));
}

TEST_CASE("the finder of batch sizes stops at the memory, or at the training set's end", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto run = dir.path() / "run";
  Child whole(mnist(0, run, small({"--find-batch-size"})));
  CHECK(whole.wait(kTraining) == ExitStatus::exited(0));
  CHECK(number_after("suggested batch size: --batch-size ", whole.err()) == 512);
  CHECK_THAT(whole.err(),
             ContainsSubstring("(the training set has no more samples)") && !ContainsSubstring("e+"));
  CHECK(fs::file_size(run / "batch_size_finder.svg") > 1000);

  auto command =
      mnist(0, dir.path() / "limited",
            {"--data=fashion-mnist", "--find-batch-size", "--loader-threads=0", "--limit-train=8192"});
  command.env["OMP_NUM_THREADS"] = "1";
  command.in_child = [] {
    const rlimit limit{rlim_t{1} << 30, rlim_t{1} << 30};  // of addresses, LibTorch's libraries among them
    if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(122);
  };
  Child limited(command);
  CHECK(limited.wait(kTraining) == ExitStatus::exited(0));
  const auto size = number_after("suggested batch size: --batch-size ", limited.err());
  CHECK(size >= 16);
  CHECK(size < 4096);
  CHECK_THAT(limited.err(), ContainsSubstring(" do not fit in memory)"));

  Child two(mnist(2, dir.path() / "two", small({"--find-batch-size"})));
  CHECK(two.wait(kTraining) == ExitStatus::exited(2));
  CHECK_THAT(two.err(), ContainsSubstring("--find-batch-size: expected one rank, got 2"));
}
