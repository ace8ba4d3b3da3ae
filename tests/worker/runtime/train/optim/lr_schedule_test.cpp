#include <ddprun/train/optim/lr_schedule.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <map>
#include <stdexcept>

#include <ddprun/train/optim/optimizer.h>
#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/support/golden_number.h"

using namespace ddprun;
using nlohmann::json;
using test::ContainsSubstring;
using test::number;
using torch::optim::Optimizer;
using train::LrSchedule;
using train::LrScheduleKind;
using train::LrScheduleOptions;
using train::MonitorMode;

namespace {

template <typename Kind, typename Options>
std::unique_ptr<Optimizer> make(Options options) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double lr : {0.1, 0.05})
    groups.emplace_back(std::vector<torch::Tensor>{torch::zeros(1)},
                        std::make_unique<Options>(options.lr(lr)));
  return std::make_unique<Kind>(groups, options);
}

std::unique_ptr<Optimizer> make_optimizer(const std::string& name) {
  if (name == "adam") return make<torch::optim::Adam>(torch::optim::AdamOptions());
  if (name == "adamw") return make<torch::optim::AdamW>(torch::optim::AdamWOptions());
  return make<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
}

std::vector<double> lrs_of(Optimizer& optimizer) {
  std::vector<double> lrs;
  for (auto& group : optimizer.param_groups()) lrs.push_back(group.options().get_lr());
  return lrs;
}

double momentum_of(Optimizer& optimizer) {
  auto& options = optimizer.param_groups()[1].options();
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) return sgd->momentum();
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) return std::get<0>(adam->betas());
  return std::get<0>(dynamic_cast<torch::optim::AdamWOptions&>(options).betas());
}

void set_mode(LrScheduleOptions::Plateau& plateau, const json& a) {
  plateau.mode = a.value("mode", "min") == "min" ? MonitorMode::kMin : MonitorMode::kMax;
  plateau.factor = a.value("factor", plateau.factor);
  plateau.patience = a.value("patience", plateau.patience);
  plateau.threshold = a.value("threshold", plateau.threshold);
  plateau.absolute = a.value("threshold_mode", "rel") == "abs";
  plateau.cooldown = a.value("cooldown", plateau.cooldown);
  plateau.min_lr = a.value("min_lr", plateau.min_lr);
  plateau.eps = a.value("eps", plateau.eps);
}

const std::map<std::string, LrScheduleKind> kKinds = {{"none", LrScheduleKind::kNone},
                                                      {"step", LrScheduleKind::kStep},
                                                      {"cosine", LrScheduleKind::kCosine},
                                                      {"one-cycle", LrScheduleKind::kOneCycle},
                                                      {"plateau", LrScheduleKind::kPlateau}};

LrScheduleOptions schedule_options_of(const json& golden) {
  LrScheduleOptions options;
  options.kind = kKinds.at(golden["kind"]);
  options.per_step = golden["unit"] == "step";
  if (!golden["warmup"].is_null()) {
    options.warmup_steps = golden["warmup"]["steps"];
    options.warmup_start_factor = golden["warmup"]["start_factor"];
  }
  const auto& a = golden["arguments"];
  options.step = {a.value("step_size", std::int64_t{1}), a.value("gamma", options.step.gamma)};
  options.cosine = {a.value("T_max", std::int64_t{0}), a.value("eta_min", 0.0)};
  auto& cycle = options.one_cycle;
  cycle.max_lr = a.value("max_lr", 0.0);
  cycle.total_steps = a.value("total_steps", std::int64_t{0});
  cycle.pct_start = a.value("pct_start", cycle.pct_start);
  cycle.linear = a.value("anneal_strategy", "cos") == "linear";
  cycle.cycle_momentum = a.value("cycle_momentum", true);
  cycle.div_factor = a.value("div_factor", cycle.div_factor);
  cycle.final_div_factor = a.value("final_div_factor", cycle.final_div_factor);
  cycle.three_phase = a.value("three_phase", false);
  set_mode(options.plateau, a);
  return options;
}

bool same_rate(double a, double b) { return std::abs(a - b) <= 1e-13 * std::abs(b); }

/// Whether our state holds every key of Python's, with its value.
bool equal(const c10::IValue& ours, const json& python);

bool equal_dicts(const c10::impl::GenericDict& ours, const json& python) {
  for (const auto& [key, value] : python.items())
    if (!ours.contains(key) || !equal(ours.at(key), value)) {
      UNSCOPED_INFO("key " << key);
      return false;
    }
  return true;
}

bool equal(const c10::IValue& ours, const json& python) {
  if (python.is_object()) return ours.isGenericDict() && equal_dicts(ours.toGenericDict(), python);
  if (python.is_array()) {
    const auto list = ours.toList().vec();
    if (list.size() != python.size()) return false;
    for (std::size_t i = 0; i < list.size(); ++i)
      if (!equal(list[i], python[i])) return false;
    return true;
  }
  if (python.is_boolean()) return ours.isBool() && ours.toBool() == python.get<bool>();
  if (python.is_string() && ours.isString()) return ours.toStringRef() == python.get<std::string>();
  const double value = ours.isInt() ? static_cast<double>(ours.toInt()) : ours.toDouble();
  return value == number(python) || same_rate(value, number(python));
}

/// Goes on by one tick of the golden run: a step while it warms up or where the schedule counts steps, else
/// an epoch of four steps.
class Run {
 public:
  Run(const json& golden, Optimizer& optimizer)
      : golden_(golden), options_(schedule_options_of(golden)), schedule_(optimizer, options_) {}

  LrSchedule& schedule() { return schedule_; }
  void take_over(std::int64_t step) { step_ = step; }
  std::int64_t step() const { return step_; }

  void tick(std::size_t number_of_tick) {
    if (options_.per_step || step_ < options_.warmup_steps) {
      take_step();
      // The epochs that end meanwhile, also together with the warm-up, change nothing.
      if (step_ % kStepsPerEpoch == 0) schedule_.after_epoch(0.0);
      return;
    }
    do take_step();
    while (step_ % kStepsPerEpoch != 0);
    if (golden_["metrics"].empty())
      schedule_.after_epoch();
    else
      schedule_.after_epoch(number(golden_["metrics"][number_of_tick - 1]));
  }

 private:
  static constexpr std::int64_t kStepsPerEpoch = 4;
  void take_step() {
    schedule_.after_step();
    ++step_;
  }

  const json& golden_;
  LrScheduleOptions options_;
  LrSchedule schedule_;
  std::int64_t step_ = 0;
};

void check_now(const json& golden, std::size_t tick, Optimizer& optimizer) {
  CAPTURE(tick);
  const auto& expected = golden["ticks"][tick];
  const auto lrs = lrs_of(optimizer);
  CHECK(same_rate(lrs[0], expected[0]));
  CHECK(same_rate(lrs[1], expected[1]));
  if (expected.size() == 3) CHECK(same_rate(momentum_of(optimizer), expected[2]));
}

}  // namespace

TEST_CASE("learning rates and states are those of PyTorch's schedulers", "[lr_schedule]") {
  for (const auto& golden : test::read_golden("lr_schedule/schedules.json")) {
    CAPTURE(golden["kind"], golden["arguments"].dump(), golden["unit"], golden["warmup"].dump());
    const auto optimizer = make_optimizer(golden["optimizer"]);
    Run run(golden, *optimizer);
    check_now(golden, 0, *optimizer);
    CHECK(equal_dicts(run.schedule().state_dict(), golden["states"][0]));
    const auto touch = golden["touch"].get<std::vector<std::size_t>>();
    for (std::size_t tick = 1; tick < golden["ticks"].size(); ++tick) {
      run.tick(tick);
      if (tick == 9) CHECK(equal_dicts(run.schedule().state_dict(), golden["states"][1]));
      if (std::find(touch.begin(), touch.end(), tick) != touch.end())
        for (auto& group : optimizer->param_groups()) group.options().set_lr(group.options().get_lr() * 0.5);
      check_now(golden, tick, *optimizer);
    }
  }
}

TEST_CASE("a schedule goes on from its state and the optimizer's as if it had not ended", "[lr_schedule]") {
  for (const auto& golden : test::read_golden("lr_schedule/schedules.json")) {
    CAPTURE(golden["kind"], golden["arguments"].dump(), golden["unit"], golden["warmup"].dump());
    const auto first = make_optimizer(golden["optimizer"]), second = make_optimizer(golden["optimizer"]);
    Run before(golden, *first), after(golden, *second);
    const std::size_t half = 6;  // where a warm-up has just ended
    for (std::size_t tick = 1; tick <= half; ++tick) before.tick(tick);
    const auto lrs = lrs_of(*first);
    for (std::size_t i = 0; i < 2; ++i) second->param_groups()[i].options().set_lr(lrs[i]);
    after.schedule().load_state_dict(before.schedule().state_dict());
    after.take_over(before.step());
    for (std::size_t tick = half + 1; tick < golden["ticks"].size(); ++tick) {
      before.tick(tick);
      after.tick(tick);
      CHECK(lrs_of(*first) == lrs_of(*second));
      CHECK(momentum_of(*first) == momentum_of(*second));
    }
  }
}

TEST_CASE("a warm-up ends at the rate that the schedule begins with, plateau's and none's too",
          "[lr_schedule]") {
  for (const auto kind : {LrScheduleKind::kNone, LrScheduleKind::kPlateau}) {
    const auto optimizer = make_optimizer("sgd");
    LrScheduleOptions options;
    options.kind = kind;
    options.warmup_steps = 5;
    options.warmup_start_factor = 0.2;
    options.plateau.patience = 0;
    LrSchedule schedule(*optimizer, options);
    for (int step = 0; step < 5; ++step) {
      CHECK(same_rate(lrs_of(*optimizer)[0], 0.1 * (0.2 + 0.8 * step / 5)));
      schedule.after_step();
    }
    schedule.after_epoch(1.0);  // together with the warm-up's end: not plateau's
    CHECK(lrs_of(*optimizer) == std::vector<double>{0.1, 0.05});
    schedule.after_step();
    schedule.after_epoch(1.0);
    schedule.after_step();
    schedule.after_epoch(2.0);
    CHECK(same_rate(lrs_of(*optimizer)[0], kind == LrScheduleKind::kPlateau ? 0.01 : 0.1));
  }
}

TEST_CASE("no schedule leaves the learning rates alone and has an empty state", "[lr_schedule]") {
  const auto optimizer = make_optimizer("sgd");
  LrSchedule schedule(*optimizer, {});
  schedule.after_step();
  schedule.after_epoch();
  CHECK(lrs_of(*optimizer) == std::vector<double>{0.1, 0.05});
  CHECK(schedule.state_dict().empty());
}

TEST_CASE("the learning rate grows with the number of ranks", "[lr_schedule]") {
  CHECK(train::scaled_lr(0.1, 4) == 0.4);
}

TEST_CASE("a schedule that cannot work is refused", "[lr_schedule]") {
  const auto optimizer = make_optimizer("sgd");
  LrScheduleOptions options;
  options.kind = LrScheduleKind::kCosine;
  CHECK_THROWS_WITH(LrSchedule(*optimizer, options),
                    "learning rate schedule: expected a T_max of 1 or more, got 0");
  options.kind = LrScheduleKind::kPlateau;
  LrSchedule plateau(*optimizer, options);
  CHECK_THROWS_WITH(plateau.after_epoch(), ContainsSubstring("expected the value of the metric to watch"));
  CHECK_THROWS_WITH(plateau.load_state_dict(LrSchedule(*optimizer, {}).state_dict()),
                    ContainsSubstring("expected 'last_epoch', got none"));
  options.kind = LrScheduleKind::kOneCycle;
  options.one_cycle.max_lr = 1;
  options.one_cycle.total_steps = 10;
  train::Adadelta adadelta({torch::zeros(1)});
  CHECK_THROWS_WITH(LrSchedule(adadelta, options), ContainsSubstring("expected an optimizer with momentum"));
  options.one_cycle.cycle_momentum = false;
  options.per_step = true;
  LrSchedule short_cycle(adadelta, options);
  for (int step = 0; step < 10; ++step) short_cycle.after_step();
  CHECK_THROWS_WITH(short_cycle.after_step(), ContainsSubstring("expected 10 steps at most"));
}
