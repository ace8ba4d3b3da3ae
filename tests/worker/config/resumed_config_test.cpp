// Which settings hold when a run resumes: one rule for all.
#include "worker/config/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"
#include "tests/worker/config/parse_words.h"

using namespace ddprun;
using namespace ddprun::worker;
using nlohmann::json;
using test::ContainsSubstring;

namespace {

Config parse(const TaskEntry& task, std::vector<std::string> flags = {}) {
  flags.insert(flags.begin(), task.positionals.size(), "3");
  flags.insert(flags.begin(), task.name);
  return test::parse(flags);
}

json json_of(const Config& config) { return json::parse(to_json(config)); }

/// A flag that gives the setting another value than the task's default; empty: none.
std::string other_value(const TaskEntry& task, const settings::Setting& setting) {
  std::vector<std::string> values = {"true", "false", "0", "1", "2", "3", "0.25", "0.5,0.75", "epochs", "x"};
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = setting.type_name.find('|', begin);
    values.push_back(setting.type_name.substr(begin, end - begin));
  }
  for (const auto& value : values) try {
      const auto flag = "--" + setting.name + "=" + value;
      if (json_of(parse(task, {flag}))[setting.key()] != json_of(parse(task))[setting.key()]) return flag;
    } catch (const std::exception&) {  // not one of its values
    }
  return "";
}

const std::set<std::string> kOfEachRun = {"epochs",  "max-steps", "max-time",    "device",
                                          "backend", "timeout",   "init-weights"};

}  // namespace

TEST_CASE("every setting of a checkpoint holds unless another is stated, which is told of", "[config]") {
  for (const auto& task : all_tasks()) {
    Config plain = parse(task);
    int tried = 0;
    for (const auto& setting : all_settings(plain)) {
      if (!setting.belongs_to(task.name) || !setting.is_flag || !setting.kept) continue;
      const auto flag = other_value(task, setting);
      CAPTURE(task.name, setting.name, flag);
      if (flag.empty() || plain.stated.contains(setting.name)) continue;
      ++tried;
      const auto changed = parse(task, {flag});
      const auto key = setting.key();
      const bool of_each_run = kOfEachRun.contains(setting.name);

      const auto kept = resumed_config(plain, to_json(changed), task);
      if (json_of(changed)["epochs"] != json_of(plain)["epochs"])
        CHECK_THAT(kept.changes, ContainsSubstring(", the default, replaces the run's "));
      else
        CHECK(kept.changes.empty());
      auto expected = json_of(changed);
      for (const char* own : {"epochs", "max_steps", "max_time", "device", "backend", "timeout"})
        expected[own] = json_of(plain)[own];
      CHECK(json_of(kept.config) == expected);
      CHECK(kept.config.stated == plain.stated);
      if (setting.name == "optimizer") continue;

      const auto stated = resumed_config(changed, to_json(plain), task);
      CHECK(json_of(stated.config)[key] == json_of(changed)[key]);
      if (of_each_run)
        CHECK(stated.changes.empty());
      else
        CHECK_THAT(stated.changes, ContainsSubstring("--" + setting.name + " ") &&
                                       ContainsSubstring(" replaces the checkpoint's "));
    }
    CHECK(tried > 40);
  }
}

TEST_CASE("a replicated training may go on sharded: what only a replicated one has gives way", "[config]") {
  for (const auto& task : all_tasks()) {
    const auto resumed = resumed_config(parse(task, {"--fsdp"}), to_json(parse(task)), task).config;
    CHECK(resumed.train.parallel.fsdp);
    CHECK_FALSE(resumed.train.parallel.static_graph);
    CHECK_FALSE(resumed.train.parallel.find_unused);
  }
}

TEST_CASE("what a run left out of --fast stays out when it goes on", "[config]") {
  const auto& task = entry_of("cifar10");
  auto plain = parse(task);
  plain.is_settled = true;  // for the device, in the checkpoint
  const auto run = parse(task, {"--fast", "--channels-last=false", "--cudnn-benchmark=false"});
  const auto resumed = resumed_config(plain, to_json(run), task).config;
  CHECK(resumed.fast);
  CHECK_FALSE(resumed.train.precision.channels_last);
  CHECK_FALSE(resumed.train.precision.cudnn_benchmark);
}

TEST_CASE("weights that a run is begun with and those that its command names do not exclude each other",
          "[config]") {
  const auto& task = entry_of("sam");
  const auto of_checkpoint = parse(task, {"--checkpoint=model"}),
             of_weights = parse(task, {"--init-weights=w.pt"});
  CHECK(resumed_config(of_weights, to_json(of_checkpoint), task).config.sam.checkpoint.empty());
  CHECK(resumed_config(of_checkpoint, to_json(of_weights), task).config.model.init_weights.empty());
  CHECK(resumed_config(parse(task), to_json(of_weights), task).config.model.init_weights == "w.pt");
}

TEST_CASE("a setting that excludes one of the checkpoint's is refused in a line that says so", "[config]") {
  const auto& task = entry_of("mnist");
  CHECK_THROWS_WITH(
      resumed_config(parse(task, {"--zero1"}), to_json(parse(task, {"--fsdp"})), task),
      "--resume: with the checkpoint's settings: --fsdp and --zero1: expected at most one of them");
  CHECK_THROWS_WITH(
      resumed_config(parse(task, {"--optimizer=sgd"}), to_json(parse(task, {"--optimizer=adam"})), task),
      "--optimizer: expected adam, whose state the checkpoint has, got sgd");
}
