// A task's defaults beside what the user gives.
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>
#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "tests/worker/config/parse_words.h"
#include "worker/config/config.h"

using namespace ddprun;
using namespace ddprun::worker;
using ddprun::test::ContainsSubstring;
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
                      "--clip-norm and --clip-value: expected at most one of them");

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

TEST_CASE("SAM's default average of the weights stays with --fsdp", "[config]") {
  CHECK(parse({"sam", "--fsdp"}).train.optim.ema == 0.98);
  CHECK(parse({"sam", "--fsdp", "--ema=0"}).train.optim.ema == 0);
}

TEST_CASE("what the task promises of its steps is a setting like others, and can be turned off", "[config]") {
  const auto settings = [](const std::vector<std::string>& words) {
    const auto config = parse(words);
    const auto& parallel = config.train.parallel;
    CHECK_THAT(to_toml(config), ContainsSubstring(std::string("static_graph = ") +
                                                  (parallel.static_graph ? "true" : "false")));
    CHECK_THAT(to_toml(config),
               ContainsSubstring(std::string("find_unused = ") + (parallel.find_unused ? "true" : "false")));
    return std::pair(parallel.static_graph, parallel.find_unused);
  };
  using Pair = std::pair<bool, bool>;
  for (const std::string task : {"cifar10", "sam"}) {
    CAPTURE(task);
    const bool leaves_unused = task == "sam";
    CHECK(settings({task}) == Pair(true, false));
    CHECK(settings({task, "--static-graph=false"}) == Pair(false, leaves_unused));
    CHECK(settings({task, "--static-graph=false", "--find-unused=false"}) == Pair(false, false));
    CHECK(settings({task, "--find-unused"}) == Pair(false, true));
    CHECK(settings({task, "--join"}) == Pair(false, leaves_unused));
    CHECK(settings({task, "--fsdp"}) == Pair(false, false));
  }
  CHECK(settings({"mnist"}) == Pair(false, false));
}

TEST_CASE("every default of a task is in its file, and what is given in its place too", "[config]") {
  for (const auto& task : all_tasks()) {
    Config plain, by_task;
    plain.task = by_task.task = task.name;
    task.set_defaults(by_task);
    std::vector<std::string> positionals;
    for (std::size_t i = 0; i < task.positionals.size(); ++i) positionals.emplace_back("3");
    const auto effective = nlohmann::json::parse(to_json(parse([&] {
      auto words = positionals;
      words.insert(words.begin(), task.name);
      return words;
    }())));
    const auto were = all_settings(plain), are = all_settings(by_task);
    for (std::size_t i = 0; i < are.size(); ++i) {
      if (!are[i].belongs_to(task.name) || !are[i].is_flag || were[i].get() == are[i].get()) continue;
      CAPTURE(task.name, are[i].name);
      const auto value = are[i].get();
      CHECK(effective[are[i].key()] ==
            std::visit([](const auto& one) { return nlohmann::json(one); }, *value));
      // Given again as the file has it without the task's default, it is that.
      const auto other = were[i].get();
      if (!other) continue;
      const auto text = std::visit(
          [](const auto& one) {
            const auto json = nlohmann::json(one);
            return json.is_string() ? json.get<std::string>() : json.dump();
          },
          *other);
      auto words = positionals;
      words.insert(words.begin(), task.name);
      words.push_back("--" + are[i].name + "=" + text);
      CHECK(nlohmann::json::parse(to_json(parse(words)))[are[i].key()] ==
            std::visit([](const auto& one) { return nlohmann::json(one); }, *other));
    }
  }
}

TEST_CASE("a recipe is a set of defaults, which give way to what is given", "[config]") {
  const auto recipe = parse({"cifar10", "--recipe=94", "--epochs=3", "--lr=0.5"});
  CHECK(recipe.train.epochs == 3);
  CHECK(recipe.train.optim.optimizer.lr == 0.5);
  CHECK(recipe.train.optim.optimizer.nesterov);
  CHECK(recipe.train.batch_size == 256);  // of all ranks: there is one
  CHECK(recipe.model.stem == "cifar");
  CHECK(recipe.data.image_sizes == "14:0.5,21:0.35,28:0.15");
  CHECK(recipe.train.precision.channels_last);  // --fast
  CHECK(parse({"cifar10", "--recipe=none"}).data.image_sizes.empty());
  CHECK_THROWS_WITH(
      parse({"cifar10", "--image-sizes=14:0.5,28:0.6"}),
      ContainsSubstring("--image-sizes: expected sides in pixels with their shares of the epochs") &&
          ContainsSubstring("got '14:0.5,28:0.6'"));
  CHECK_THROWS_WITH(parse({"mnist", "--recipe=94"}), ContainsSubstring("recipe"));
}

TEST_CASE("what is off by 0 is off", "[config]") {
  const auto config = parse({"cifar10", "--clip-norm=0", "--val-split=0", "--patience=0"});
  CHECK(config.train.optim.clip_norm == 0);
  CHECK(config.data.val_split == 0);
  CHECK(config.train.checkpoint.patience == 0);
  CHECK(parse({"mnist"}).train.checkpoint.patience == 0);
}

TEST_CASE("what does not go with 16-mixed is refused on a GPU alone, and names what was given", "[config]") {
  for (const std::string flag : {"--nan-check", "--join"}) {
    for (auto config : {parse({"cifar10", flag}), parse({"mnist", "--precision=16-mixed", flag})}) {
      CHECK_THROWS_AS(settle_on_device(config, at::kCUDA, 0), UsageError);
      CHECK_THROWS_WITH(settle_on_device(config, at::kCUDA, 0),
                        flag + ": expected --precision=32 or --precision=bf16-mixed, got 16-mixed");
      CHECK_NOTHROW(settle_on_device(config, at::kCPU, -1));
    }
    auto precise = parse({"cifar10", flag, "--precision=32"});
    CHECK_NOTHROW(settle_on_device(precise, at::kCUDA, 0));
  }
  auto plain = parse({"cifar10"});
  CHECK_NOTHROW(settle_on_device(plain, at::kCUDA, 0));
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
