#include <ddprun/train/state/checkpoint_policy.h>

#include <ATen/core/Dict.h>

#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/support/golden_number.h"

using namespace ddprun;
using nlohmann::json;
using test::ContainsSubstring;
using test::number;
using train::CheckpointPlan;
using train::CheckpointPolicy;
using train::CheckpointPolicyOptions;
using train::MonitorMode;
using Occasion = CheckpointPolicy::Occasion;
namespace fs = std::filesystem;

namespace {

const fs::path kFolder = "/run/checkpoints";

report::MetricRow metrics_of(const json& golden) {
  report::MetricRow metrics;
  for (const auto& [name, value] : golden.items()) metrics.emplace_back(name, number(value));
  return metrics;
}

/// A folder's files, as the plans' writer would leave them.
class Files {
 public:
  CheckpointPolicy policy(const CheckpointPolicyOptions& options) {
    return CheckpointPolicy(options, exist());
  }
  CheckpointPolicy::FileExists exist() const {
    return [this](const fs::path& path) { return files_.count(path.string()) > 0; };
  }
  void carry_out(const CheckpointPlan& plan) {
    if (!plan.write.empty()) files_.insert(plan.write.string());
    if (!plan.remove.empty()) REQUIRE(files_.erase(plan.remove.string()) == 1);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& file : files_) names.push_back(fs::path(file).filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::set<std::string> files_;
};

CheckpointPolicyOptions policy_options_of(const json& golden) {
  CheckpointPolicyOptions options;
  options.folder = kFolder;
  if (!golden["filename"].is_null()) options.filename = golden["filename"];
  options.monitor = golden["monitor"];
  options.mode = golden["mode"] == "min" ? MonitorMode::kMin : MonitorMode::kMax;
  options.save_top_k = golden["save_top_k"];
  return options;
}

json describe(const CheckpointPolicy& policy, const Files& files) {
  json kept = json::array();
  const auto plain = [](double score) -> json {
    if (std::isfinite(score)) return score;
    return score > 0 ? "inf" : "-inf";
  };
  const auto name = [](const c10::IValue& path) { return fs::path(path.toStringRef()).filename().string(); };
  const auto state = policy.state_dict();
  for (const auto& item : state.at("best_k_models").toGenericDict())
    kept.push_back({name(item.key()), plain(item.value().toTensor().item<double>())});
  const auto best_score = state.at("best_model_score");
  return {{"files", files.names()},
          {"kept", kept},
          {"best", policy.best_path().filename().string()},
          {"kth", name(state.at("kth_best_model_path"))},
          {"best_score", best_score.isNone() ? json() : plain(best_score.toTensor().item<double>())}};
}

/// The newest under the name last is not the policy's business.
json without_last(json state) {
  state.erase("last");
  auto files = json::array();
  for (const auto& file : state["files"])
    if (file != "last.ckpt") files.push_back(file);
  state["files"] = files;
  return state;
}

/// As a trainer asks: after every N-th step unless validation follows at once, and after validation.
/// deferred  until the next validation
CheckpointPlan plan_for(CheckpointPolicy& policy, const json& golden, const json& event, bool& deferred) {
  const std::string occasion = event[0];
  const std::int64_t epoch = event[1], step = event[2];
  const bool last_batch = event[3];
  const auto metrics = metrics_of(event[4]);
  if (occasion == "end") return {};
  if (occasion == "step") {
    deferred = (last_batch && golden["validates"].get<bool>()) ||
               !event[4].contains(golden["options"]["monitor"].get<std::string>());
    return deferred ? CheckpointPlan() : policy.plan(metrics, epoch, step, Occasion::kStep);
  }
  const bool every_epoch = !golden["options"].contains("every_n_train_steps");
  if (!every_epoch && !std::exchange(deferred, false)) return {};
  return policy.plan(metrics, epoch, step, Occasion::kValidation);
}

}  // namespace

TEST_CASE("the checkpoints that are kept are those that Lightning keeps", "[checkpoint_policy]") {
  std::size_t changes = 0;
  for (const auto& golden : test::read_golden("checkpoint_policy/runs.json")) {
    CAPTURE(golden["options"].dump());
    Files files;
    const auto options = policy_options_of(golden["options"]);
    auto policy = files.policy(options);
    json expected;
    bool deferred = false;
    for (const auto& event : golden["events"]) {
      CAPTURE(event.dump());
      files.carry_out(plan_for(policy, golden, event, deferred));
      if (!event[5].is_null()) expected = without_last(event[5]);
      changes += event[5].is_null() ? 0 : 1;
      CHECK(describe(policy, files).dump() == expected.dump());
      if (deferred) continue;
      auto resumed = files.policy(options);  // its state is all that it needs
      resumed.load_state_dict(policy.state_dict());
      CHECK(describe(resumed, files).dump() == expected.dump());
    }
  }
  CHECK(changes > 60);
}

TEST_CASE("a checkpoint's name is what Lightning makes of the pattern", "[checkpoint_policy]") {
  const auto golden = test::read_golden("checkpoint_policy/names.json");
  const auto metrics = metrics_of(golden["metrics"]);
  for (const auto& entry : golden["cases"]) {
    CAPTURE(entry.dump());
    CHECK(train::checkpoint_name(entry[0], metrics, golden["epoch"], golden["step"]) + ".ckpt" ==
          entry[1].get<std::string>());
  }
}

TEST_CASE("a pattern that is none is refused", "[checkpoint_policy]") {
  const auto name = [](const std::string& pattern) {
    return train::checkpoint_name(pattern, {{"loss", 0.5}}, 1, 2);
  };
  CHECK_THROWS_WITH(name("a{epoch"), "checkpoint name 'a{epoch': expected '}' after '{'");
  CHECK_THROWS_WITH(name("epoch}"), "checkpoint name 'epoch}': expected '{' before '}'");
  CHECK_THROWS_WITH(name("{}"), "checkpoint name '{}': expected a metric's name between '{' and '}'");
  CHECK_THROWS_WITH(name(".hidden"),
                    "checkpoint name '.hidden': expected a name that does not begin with '.'");
  CHECK_THROWS_WITH(name("{{epoch}}"), ContainsSubstring("expected a metric's name"));
  CHECK_THROWS_WITH(name("{loss:d}"), "checkpoint name '{loss:d}': expected a format such as .2f for loss");
  for (const auto* spec : {"{loss:.2}", "{loss:x}", "{loss:.f}", "{loss:100f}", "{epoch:.2d}", "{loss:.2ff}"})
    CHECK_THROWS_AS(name(spec), UsageError);
}

TEST_CASE("the checkpoint that training was resumed from, and one of another folder, stay",
          "[checkpoint_policy]") {
  Files files;
  CheckpointPolicyOptions options;
  options.folder = kFolder;
  options.monitor = "val";
  auto before = files.policy(options);
  files.carry_out(before.plan({{"val", 0.5}}, 0, 10, Occasion::kValidation));
  options.resumed_from = before.best_path();

  SECTION("resumed from") {
    auto policy = files.policy(options);
    policy.load_state_dict(before.state_dict());
    CHECK(policy.state_dict().at("current_score").toTensor().item<double>() == 0.5);
    const auto plan = policy.plan({{"val", 0.25}}, 1, 20, Occasion::kValidation);
    CHECK(plan.write == kFolder / "epoch=1-step=20.ckpt");
    CHECK(plan.remove.empty());
    CHECK(policy.plan({{"val", 0.125}}, 2, 30, Occasion::kValidation).remove == plan.write);
  }
  SECTION("another folder: only the best path is taken") {
    options.folder = "/elsewhere";
    auto policy = files.policy(options);
    policy.load_state_dict(before.state_dict());
    CHECK(policy.best_path() == before.best_path());
    CHECK(policy.state_dict().at("best_k_models").toGenericDict().empty());
    CHECK(policy.plan({{"val", 0.75}}, 1, 20, Occasion::kValidation).remove.empty());
  }
}

TEST_CASE("checkpoints whose files are gone are no longer candidates", "[checkpoint_policy]") {
  Files files;
  CheckpointPolicyOptions options;
  options.folder = kFolder;
  options.monitor = "val";
  options.save_top_k = 2;
  auto before = files.policy(options);
  for (const int epoch : {0, 1}) {
    const auto plan =
        before.plan({{"val", 0.5 - 0.25 * epoch}}, epoch, 10 * epoch + 10, Occasion::kValidation);
    if (epoch == 0) files.carry_out(plan);
  }
  REQUIRE(before.best_path() == kFolder / "epoch=1-step=20.ckpt");
  CHECK(before.forget_unless(files.exist()) == std::vector<fs::path>{kFolder / "epoch=1-step=20.ckpt"});
  CHECK(before.best_path() == kFolder / "epoch=0-step=10.ckpt");
  CHECK(before.state_dict().at("best_model_score").toTensor().item<double>() == 0.5);
  CHECK(before.state_dict().at("best_k_models").toGenericDict().size() == 1);
  CHECK(before.forget_unless(files.exist()).empty());

  Files none;
  auto policy = none.policy(options);
  policy.load_state_dict(before.state_dict());
  CHECK(policy.forget_unless(none.exist()) == std::vector<fs::path>{kFolder / "epoch=0-step=10.ckpt"});
  CHECK(policy.best_path().empty());
  CHECK(policy.state_dict().at("best_model_score").isNone());
}

TEST_CASE("a resumed run that is to keep fewer checkpoints removes its worst one again",
          "[checkpoint_policy]") {
  Files files;
  CheckpointPolicyOptions options;
  options.folder = kFolder;
  options.monitor = "val";
  options.save_top_k = 3;
  const auto save = [&](CheckpointPolicy& policy, int epoch) {
    auto plan = policy.plan({{"val", 1.0 / (epoch + 1)}}, epoch, 10 * epoch + 10, Occasion::kValidation);
    files.carry_out(plan);
    return plan.remove;
  };
  auto before = files.policy(options);
  for (const int epoch : {0, 1, 2}) save(before, epoch);
  options.save_top_k = 1;
  auto policy = files.policy(options);
  policy.load_state_dict(before.state_dict());
  CHECK(save(policy, 3) == kFolder / "epoch=2-step=30.ckpt");
  CHECK(save(policy, 4) == kFolder / "epoch=3-step=40.ckpt");
  CHECK(policy.state_dict().at("best_k_models").toGenericDict().size() == 1);
}

TEST_CASE("a policy that cannot work is refused", "[checkpoint_policy]") {
  Files files;
  CheckpointPolicyOptions options;
  options.save_top_k = -2;
  CHECK_THROWS_WITH(files.policy(options), "save_top_k: expected -1 or more, got -2");
  options.save_top_k = 3;
  options.monitor = "val_acc";
  auto policy = files.policy(options);
  CHECK_THROWS_WITH(policy.plan({{"train_loss", 1}, {"val_loss", 2}}, 0, 1, Occasion::kValidation),
                    "monitor: expected one of the metrics train_loss, val_loss, got 'val_acc'");
}
