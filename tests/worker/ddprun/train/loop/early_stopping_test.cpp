#include <ddprun/train/loop/early_stopping.h>

#include <ATen/core/Dict.h>

#include <limits>
#include <optional>
#include <stdexcept>

#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/support/golden_number.h"

using namespace ddprun;
using nlohmann::json;
using test::ContainsSubstring;
using test::number;
using train::EarlyStopping;
using train::MonitorMode;

namespace {

std::optional<double> optional_number(const json& value) {
  return value.is_null() ? std::nullopt : std::optional<double>(value.get<double>());
}

train::EarlyStoppingOptions stopping_options_of(const json& golden) {
  return {"val",
          golden["min_delta"],
          golden["patience"],
          golden["mode"] == "min" ? MonitorMode::kMin : MonitorMode::kMax,
          golden["check_finite"],
          optional_number(golden["stopping_threshold"]),
          optional_number(golden["divergence_threshold"])};
}

/// Whether the state is that of a golden step: value, stop, wait, epoch, best, reason.
bool has_state(const EarlyStopping& stopping, const json& step) {
  const auto state = stopping.state_dict().toGenericDict();
  return state.at("wait_count").toInt() == step[2] && state.at("stopped_epoch").toInt() == step[3] &&
         stopping.best_score() == number(step[4]) && state.at("stopping_reason").toInt() == step[5];
}

}  // namespace

TEST_CASE("early stopping decides as Lightning's does, also after its state was saved and loaded",
          "[early_stopping]") {
  std::size_t stops = 0;
  for (const auto& golden : test::read_golden("early_stopping/sequences.json")) {
    CAPTURE(golden["options"].dump());
    const auto options = stopping_options_of(golden["options"]);
    std::optional<EarlyStopping> stopping(options);
    for (std::size_t epoch = 0; epoch < golden["steps"].size(); ++epoch) {
      const auto& step = golden["steps"][epoch];
      CAPTURE(epoch, step.dump());
      if (epoch % 3 == 2) {
        const auto state = stopping->state_dict().toGenericDict();
        stopping.emplace(options);
        stopping->load_state_dict(state);
      }
      const auto decision = stopping->check(number(step[0]), static_cast<std::int64_t>(epoch));
      CHECK(decision.stop == step[1].get<bool>());
      CHECK((!decision.stop || !decision.reason.empty()));
      CHECK(has_state(*stopping, step));
      stops += decision.stop ? 1 : 0;
    }
  }
  CHECK(stops > 100);
}

TEST_CASE("early stopping says why", "[early_stopping]") {
  train::EarlyStoppingOptions options;
  options.monitor = "val_acc";
  options.mode = MonitorMode::kMax;
  options.patience = 2;
  options.stopping_threshold = 0.9;
  options.divergence_threshold = 0.1;
  EarlyStopping stopping(options);
  CHECK(stopping.check(0.5, 0).reason == "val_acc = 0.5 is the best so far");
  CHECK(stopping.check(0.75, 1).reason == "val_acc = 0.75 is the best so far, better by 0.25");
  CHECK(stopping.check(0.75, 2).reason.empty());
  CHECK_FALSE(stopping.stopped());
  CHECK(stopping.check(0.25, 3).reason == "val_acc has not been better than 0.75 in the last 2 checks");
  CHECK(stopping.stopped());
  CHECK(stopping.check(0.95, 4).reason == "val_acc = 0.95 has passed the stopping threshold 0.9");
  CHECK(stopping.check(0.05, 5).reason == "val_acc = 0.05 has passed the divergence threshold 0.1");
  CHECK(stopping.check(std::nan(""), 6).reason == "val_acc = nan is not finite; the best so far was 0.75");
}

TEST_CASE("early stopping keeps its own patience when it takes over a state", "[early_stopping]") {
  EarlyStopping before({.patience = 1}), after({.patience = 3});
  before.check(0.5, 0);
  CHECK(before.check(0.6, 1).stop);
  after.load_state_dict(before.state_dict().toGenericDict());
  CHECK_FALSE(after.check(0.6, 2).stop);
  CHECK(after.check(0.6, 3).stop);
}

TEST_CASE("early stopping refuses a negative patience and a state that is not one", "[early_stopping]") {
  CHECK_THROWS_AS(EarlyStopping({.patience = -1}), std::invalid_argument);
  EarlyStopping stopping({});
  auto state = stopping.state_dict().toGenericDict();
  state.insert_or_assign("wait_count", std::numeric_limits<std::int64_t>::max());
  CHECK_THROWS_WITH(stopping.load_state_dict(state), ContainsSubstring("expected a number of checks"));
  state.insert_or_assign("wait_count", "two");
  CHECK_THROWS_WITH(stopping.load_state_dict(state),
                    ContainsSubstring("early stopping: 'wait_count': expected an integer, got String"));
  CHECK(state.erase("wait_count") == 1);
  CHECK_THROWS_WITH(stopping.load_state_dict(state), ContainsSubstring("expected 'wait_count', got none"));
}
