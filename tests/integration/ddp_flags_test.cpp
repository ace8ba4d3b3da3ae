// The flags of DDP, by the real programs: what each does to the losses, and what the run tells of its
// reduction.
#include <functional>
#include <regex>

#include "tests/integration/cifar10_files.h"
#include "tests/integration/training_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

constexpr int kSteps = 5;

/// The losses of the first steps of a run that must succeed.
std::vector<double> losses_of(const Command& command, const fs::path& out) {
  Child child(command);
  const auto status = child.wait(kTraining);
  INFO(child.err());
  REQUIRE(status == ExitStatus::exited(0));
  std::vector<double> losses;
  for (const auto& text : values_of(out, "train_loss")) losses.push_back(std::stod(text));
  REQUIRE(losses.size() == kSteps);
  return losses;
}

std::vector<double> mnist_losses(const fs::path& out, const std::vector<std::string>& more) {
  std::vector<std::string> flags = {"--data=fashion-mnist", "--limit-train=640",
                                    "--limit-test=10",      "--batch-size=16",
                                    "--dropout=0",          "--max-steps=" + std::to_string(kSteps),
                                    "--log-interval=1"};
  flags.insert(flags.end(), more.begin(), more.end());
  return losses_of(mnist(2, out, flags), out);
}

std::size_t buckets_of(const fs::path& out) { return read_summary(out)["ddp"]["bucket_bytes"].size(); }

double largest_difference(const std::vector<double>& some, const std::vector<double>& others) {
  double largest = 0;
  for (std::size_t i = 0; i < some.size(); ++i) largest = std::max(largest, std::abs(some[i] - others[i]));
  return largest;
}

}  // namespace

TEST_CASE("with each of DDP's flags two ranks have the losses they have without", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto plain = mnist_losses(dir.path() / "plain", {});
  const auto nothing = [](const fs::path&) {};
  struct Case {
    std::vector<std::string> flags;
    double tolerance;                           // of a loss of 2.3 and less
    bool rounds;                                // some loss is another then
    std::function<void(const fs::path&)> sees;  // that the flag came where it belongs, from the run's files
  };
  const std::vector<Case> cases = {
      {{"--comm-hook=fp16"}, 2e-2, true, nothing},
      {{"--comm-hook=bf16"}, 5e-2, true, nothing},
      // For its first thousand steps it sends gradients whole.
      {{"--comm-hook=powersgd"},
       1e-4,
       false,
       [](const fs::path& out) {
         CHECK_THAT(read_file(out / "checkpoints/last.pt"), ContainsSubstring("PowerSGD"));
       }},
      {{"--bucket-mb=100"},
       1e-4,
       false,
       [&](const fs::path& out) { CHECK(buckets_of(out) < buckets_of(dir.path() / "plain")); }},
      {{"--find-unused"}, 1e-4, false, nothing},
      {{"--static-graph"}, 1e-4, false, nothing},
      {{"--no-bucket-view"}, 1e-4, false, nothing},
      {{"--nan-check"}, 1e-4, false, nothing},
      {{"--find-unused", "--no-bucket-view", "--nan-check", "--comm-hook=fp16"}, 2e-2, true, nothing}};
  int runs = 0;
  for (const auto& [flags, tolerance, rounds, sees] : cases) {
    CAPTURE(flags);
    const auto out = dir.path() / std::to_string(++runs);
    const auto losses = mnist_losses(out, flags);
    const double difference = largest_difference(losses, plain);
    CHECK(difference <= tolerance);
    CHECK((!rounds || difference > 0));
    sees(out);
  }
}

TEST_CASE("with --sync-bn two ranks have the losses of one with batches twice as large", "[training]") {
  const TempDir dir;
  write_cifar10(dir.path() / "data", 60, 10);
  const auto losses = [&](int ranks, const std::string& name, std::vector<std::string> flags) {
    const std::vector<std::string> common = {"--data=" + (dir.path() / "data").string(),
                                             "--max-steps=" + std::to_string(kSteps),
                                             "--log-interval=1",
                                             "--lr=0.01",
                                             "--scale-lr=none",
                                             "--no-augment",
                                             "--precision=32",
                                             "--val-on-test",
                                             "--no-report"};
    flags.insert(flags.end(), common.begin(), common.end());
    const auto out = dir.path() / name;
    return losses_of(training("cifar10", ranks, out, flags), out);
  };
  const auto one = losses(1, "one", {"--batch-size=8"});
  CHECK(largest_difference(losses(2, "sync", {"--batch-size=4", "--sync-bn"}), one) < 1e-3);
  CHECK(largest_difference(losses(2, "apart", {"--batch-size=4"}), one) > 1e-2);
}

TEST_CASE("sync-bn with a model without BatchNorm is warned of, once, and trains", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  Child child(mnist(2, dir.path() / "run", small({"--sync-bn"})));
  CHECK(child.wait(kTraining) == ExitStatus::exited(0));
  INFO(child.err());
  const std::string warning = "--sync-bn: the model has no BatchNorm, so there is nothing to synchronise\n";
  const auto first = child.err().find(warning);
  REQUIRE(first != std::string::npos);
  CHECK(child.err().find(warning, first + 1) == std::string::npos);
}

TEST_CASE("with --nan-check a run ends at the first bad gradient, by parameter and rank", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  Child child(mnist(2, dir.path() / "run", small({"--nan-check", "--lr=1e30"})));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(1));
  const std::regex expected(
      "gradient of (conv|fc)[12]\\.(weight|bias) on rank 0: [0-9]+ NaN and [0-9]+ infinite of [0-9]+ values; "
      "of (conv|fc)[12]\\.(weight|bias) on rank 1: ");
  INFO(child.err());
  CHECK(std::regex_search(child.err(), expected));
  check_nothing_left(child);
}

TEST_CASE("a run tells what reducing its gradients costs, in its rows and its summary", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto out = dir.path() / "run";
  mnist_losses(out, {});
  const auto ddp = read_summary(out)["ddp"];
  CHECK(ddp["backend"] == "gloo");
  std::int64_t bytes = 0;
  for (const auto& bucket : ddp["bucket_bytes"]) {
    CHECK(bucket.get<std::int64_t>() > 0);
    bytes += bucket.get<std::int64_t>();
  }
  CHECK(bytes == 1199882 * 4);  // the model's parameters
  const auto row = read_metrics(out).back();
  for (const char* name : {"forward_ms", "backward_ms", "communication_ms"}) {
    CAPTURE(name);
    CHECK(ddp[name].get<double>() > 0);
    CHECK(std::stod(row.at(name)) > 0);
  }
  CHECK(ddp["overlap_ms"].get<double>() <= ddp["communication_ms"].get<double>());
  CHECK(row.contains("overlap_ms"));
  for (const auto& file : fs::directory_iterator(out))
    if (file.path().filename().string().starts_with("events.out.tfevents."))
      CHECK_THAT(read_file(file.path()), ContainsSubstring("communication_ms"));
}

TEST_CASE("a run of one rank has nothing to tell of a reduction", "[training]") {
  const TempDir dir;
  Child child(training("toy", 0, dir.path() / "run", {"1", "1"}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(read_file(dir.path() / "run/metrics.csv"), !ContainsSubstring("communication_ms"));
}
