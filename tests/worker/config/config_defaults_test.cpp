// A task's defaults beside what the user gives.
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "tests/worker/config/parse_words.h"
#include "worker/config/config.h"

using namespace ddprun;
using namespace ddprun::worker;
using ddprun::test::parse;

TEST_CASE("a task's default gives way to what is given, one that is given does not", "[config]") {
  for (const char* task : {"cifar10", "sam"}) {
    CAPTURE(task);
    CHECK(parse({task}).train.optim.clip_norm == 1.0);
    const auto by_value = parse({task, "--clip-value=0.5"}).train.optim;
    CHECK(by_value.clip_norm == 0);
    CHECK(by_value.clip_value == 0.5);
    CHECK(parse({task, "--clip-value=0"}).train.optim.clip_norm == 1.0);
    CHECK(parse({task, "--clip-norm=0", "--clip-value=0.5"}).train.optim.clip_value == 0.5);
    CHECK_THROWS_WITH(parse({task, "--clip-norm=1", "--clip-value=0.5"}),
                      "--clip-norm and --clip-value: expected one of them at most");

    // Nothing is validated: the default metric and the default name, of validation, have nothing to tell.
    const auto unjudged = parse({task, "--val-split=0"}).train.checkpoint;
    CHECK(unjudged.monitor.empty());
    CHECK(unjudged.filename.empty());
    CHECK(unjudged.top_k == 3);
    CHECK(parse({task, "--val-split=0", "--monitor=val_acc"}).train.checkpoint.monitor == "val_acc");
    CHECK(parse({task, "--val-split=0", "--checkpoint-name=a"}).train.checkpoint.filename == "a");
    CHECK_FALSE(parse({task, "--val-split=0.5"}).train.checkpoint.monitor.empty());
  }
  CHECK(parse({"cifar10", "--val-split=0", "--val-on-test"}).train.checkpoint.monitor == "val_acc");
}

TEST_CASE("what is off by 0 is off", "[config]") {
  const auto config = parse({"cifar10", "--clip-norm=0", "--val-split=0", "--patience=0"});
  CHECK(config.train.optim.clip_norm == 0);
  CHECK(config.data.val_split == 0);
  CHECK(config.train.checkpoint.patience == 0);
  CHECK(parse({"mnist"}).train.checkpoint.patience == 0);
}

TEST_CASE("what goes not with 16-mixed is refused on a GPU alone, and names what was given", "[config]") {
  for (const std::string flag : {"--nan-check", "--join"}) {
    for (const auto& config : {parse({"cifar10", flag}), parse({"mnist", "--precision=16-mixed", flag})}) {
      CHECK_NOTHROW(check_precision(config, at::kCPU));
      CHECK_THROWS_AS(check_precision(config, at::kCUDA), UsageError);
      CHECK_THROWS_WITH(check_precision(config, at::kCUDA),
                        flag + ": expected --precision=32 or --precision=bf16-mixed, got 16-mixed");
    }
    CHECK_NOTHROW(check_precision(parse({"cifar10", flag, "--precision=32"}), at::kCUDA));
  }
  CHECK_NOTHROW(check_precision(parse({"cifar10"}), at::kCUDA));
}

TEST_CASE("the file of a run in which defaults are off or gave way repeats it", "[config]") {
  const TempDir dir;
  for (const std::string task : {"cifar10", "sam"})
    for (const auto& flags : std::vector<std::vector<std::string>>{
             {"--clip-norm=0", "--val-split=0", "--patience=0"}, {"--clip-value=0.5"}, {"--val-split=0"}}) {
      auto words = flags;
      words.insert(words.begin(), task);
      const auto config = parse(words);
      CAPTURE(to_toml(config));
      const auto file = (dir.path() / "config.toml").string();
      write_file_atomic(file, to_toml(config));
      CHECK(to_json(parse({"--config", file})) == to_json(config));
    }
}
