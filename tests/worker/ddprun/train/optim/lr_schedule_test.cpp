#include <ddprun/train/optim/lr_schedule.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <map>
#include <optional>
#include <stdexcept>

#include <ddprun/train/optim/optimization.h>
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
class ScheduleRun {
 public:
  ScheduleRun(const json& golden, Optimizer& optimizer)
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
    ScheduleRun run(golden, *optimizer);
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
    ScheduleRun before(golden, *first), after(golden, *second);
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

namespace {

constexpr std::int64_t kSamples = 480;  // of an epoch

/// What a schedule does after a step.
struct Seen {
  std::int64_t samples;
  double lr, momentum;
};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// A run whose steps have so many samples, or what is left of one.
class Part {
 public:
  Part(const train::OptimOptions& options, std::int64_t epochs, std::int64_t samples_per_step,
       double lr_factor = 1)
      : optimizer(make_optimizer("sgd")), options_(options), size_(samples_per_step), lr_(0.1 * lr_factor) {
    length_ = {.epochs = epochs, .steps_per_epoch = ceil_div(kSamples, size_)};
    length_.steps_meant = length_.steps_per_epoch;
    for (auto& group : optimizer->param_groups())
      group.options().set_lr(group.options().get_lr() * lr_factor);
    schedule.emplace(*optimizer, now_options());
  }

  /// Goes on from where a run ended.
  void resume(const Part& before, double lr_ratio = 1) {
    samples = before.samples;
    length_.steps_meant = before.length_.steps_meant;
    schedule->go_to(now_options(), progress(), before.schedule->state_dict(), lr_ratio);
  }
  /// The same from a run with another schedule.
  void replace(const Part& before) {
    samples = before.samples;
    schedule->go_to(now_options(), progress());
  }

  /// Whole steps.
  std::vector<Seen> run_until(double epochs) {
    std::vector<Seen> seen = {now()};
    while (static_cast<double>(samples) < epochs * kSamples) {
      const auto of_epoch = kSamples - samples % kSamples;
      schedule->after_step();
      samples += std::min(size_, of_epoch);
      if (of_epoch <= size_) schedule->after_epoch(1.0);
      seen.push_back(now());
    }
    return seen;
  }
  Seen now() const { return {samples, lrs_of(*optimizer)[0], momentum_of(*optimizer)}; }

  std::unique_ptr<Optimizer> optimizer;
  std::optional<LrSchedule> schedule;
  std::int64_t samples = 0;  ///< done

 private:
  LrScheduleOptions now_options() const {
    return train::schedule_options(options_, lr_, length_, MonitorMode::kMin);
  }
  train::RunProgress progress() const {
    const auto epoch = samples / kSamples;
    const auto left = (length_.epochs - epoch - 1) * length_.steps_per_epoch +
                      ceil_div(kSamples - samples % kSamples, size_);
    return {length_.steps() - left, epoch, length_.steps_per_epoch};
  }

  train::OptimOptions options_;
  std::int64_t size_;
  double lr_;
  train::RunLength length_;
};

std::vector<train::OptimOptions> all_schedules(std::int64_t t_max = 0) {
  std::vector<train::OptimOptions> all;
  for (const auto& [name, kind] : kKinds)
    for (const bool per_step : {false, true})
      for (const std::int64_t warmup_steps : {0, 8}) {
        train::OptimOptions options;
        options.schedule = kind;
        options.schedule_per_step = per_step;
        options.warmup_steps = warmup_steps;
        options.step_size = per_step ? 24 : 2;
        options.gamma = 0.5;
        options.t_max = t_max;
        options.plateau_patience = 0;
        all.push_back(options);
      }
  return all;
}

/// The most that the rate and the momentum change in a step.
double largest_step(const std::vector<Seen>& seen) {
  double largest = 0;
  for (std::size_t i = 1; i < seen.size(); ++i)
    largest = std::max(
        {largest, std::abs(seen[i].lr - seen[i - 1].lr), std::abs(seen[i].momentum - seen[i - 1].momentum)});
  return largest;
}

/// seen and expected end together.
void check_end(const std::vector<Seen>& seen, const std::vector<Seen>& expected, double tolerance = 1e-12) {
  for (std::size_t i = 1; i <= seen.size(); ++i) {
    const auto &a = seen[seen.size() - i], &b = expected[expected.size() - i];
    CAPTURE(b.samples);
    CHECK(std::abs(a.lr - b.lr) < tolerance);
    CHECK(std::abs(a.momentum - b.momentum) < tolerance);
  }
}

}  // namespace

TEST_CASE("with steps of another size a schedule has the same rates at the same samples, there and back",
          "[lr_schedule]") {
  const std::int64_t t_max = GENERATE(0, 32);
  for (const auto interrupted : {0.25, 0.5, 0.75, 1.5, 2.0})
    for (const auto& options : all_schedules(t_max)) {
      CAPTURE(options.schedule, options.schedule_per_step, options.warmup_steps, t_max, interrupted);
      Part whole(options, 4, 30), first(options, 4, 30), twice_the_steps(options, 4, 15),
          last(options, 4, 30);
      const auto expected = whole.run_until(4);
      first.run_until(interrupted);
      twice_the_steps.resume(first);
      const auto seen = twice_the_steps.run_until(3);
      last.resume(twice_the_steps);
      // One-cycle's phases end a step early, and steps differ in size: off by the change of one step at most.
      const bool one_cycle = options.schedule == LrScheduleKind::kOneCycle;
      const double tolerance = one_cycle ? largest_step(expected) : 1e-9;
      for (const auto& point : seen) {
        if (point.samples % 30 != 0) continue;  // whole steps of both
        CAPTURE(point.samples);
        const auto& then = expected[static_cast<std::size_t>(point.samples / 30)];
        CHECK(std::abs(point.lr - then.lr) < tolerance);
        CHECK(std::abs(point.momentum - then.momentum) < tolerance);
      }
      check_end(last.run_until(4), expected, /*tolerance=*/1e-15);
    }
}

TEST_CASE("a schedule ends with its run, however often the samples of a step change", "[lr_schedule]") {
  for (const auto& options : all_schedules()) {
    Part whole(options, 2, 30);
    const auto expected = whole.run_until(2);
    for (const std::int64_t a : {30, 20, 45, 100})
      for (const std::int64_t b : {30, 20, 50, 70})
        for (const double first_change : {0.05, 0.1, 0.3, 0.6, 1.1})
          for (const double between : {0.04, 0.2, 0.7}) {
            CAPTURE(options.schedule, options.schedule_per_step, options.warmup_steps, a, b, first_change,
                    between);
            Part first(options, 2, 30), second(options, 2, a), third(options, 2, b), last(options, 2, 30);
            first.run_until(first_change);
            second.resume(first);
            second.run_until(first_change + between);
            third.resume(second);
            third.run_until(std::min(1.95, first_change + 2 * between));
            last.resume(third);
            CHECK_NOTHROW(last.run_until(2));
            CHECK(last.samples == 2 * kSamples);
            if (options.schedule == LrScheduleKind::kPlateau)
              continue;  // its rates depend on what was measured
            CHECK(std::abs(last.now().lr - expected.back().lr) < 1e-12);
            CHECK(std::abs(last.now().momentum - expected.back().momentum) < 1e-12);
          }
  }
}

TEST_CASE("a longer run goes on with the schedule of its own length, at its own progress", "[lr_schedule]") {
  for (const double done : {1.0, 2.5, 4.0})
    for (const auto& options : all_schedules()) {
      CAPTURE(options.schedule, options.schedule_per_step, options.warmup_steps, done);
      Part longer(options, 6, 30), first(options, 4, 30), rest(options, 6, 30);
      const auto expected = longer.run_until(6);
      first.run_until(done);
      rest.resume(first);
      check_end(rest.run_until(6), expected);
    }
}

TEST_CASE("a schedule that replaces another stands where it would if it had run from the start",
          "[lr_schedule]") {
  for (const auto& options : all_schedules()) {
    if (options.schedule == LrScheduleKind::kPlateau) continue;  // its rates depend on what was measured
    CAPTURE(options.schedule, options.schedule_per_step, options.warmup_steps);
    Part whole(options, 4, 30), none({}, 4, 30), replaced(options, 4, 30);
    const auto expected = whole.run_until(4);
    none.run_until(2);
    replaced.replace(none);
    check_end(replaced.run_until(4), expected);
  }
}

TEST_CASE("another learning rate scales what is left of a schedule", "[lr_schedule]") {
  for (const auto& options : all_schedules()) {
    CAPTURE(options.schedule, options.schedule_per_step, options.warmup_steps);
    Part whole(options, 4, 30), first(options, 4, 30), scaled(options, 4, 30, 7);
    const auto expected = whole.run_until(4);
    first.run_until(2);
    scaled.resume(first, 7);
    auto seen = scaled.run_until(4);
    for (auto& point : seen) point.lr /= 7;
    check_end(seen, expected);
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
  CHECK_THROWS_WITH(short_cycle.after_step(), ContainsSubstring("expected at most 10 steps"));
}
