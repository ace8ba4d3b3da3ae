#include <ddprun/sharding/shard_units.h>

#include <string>
#include <vector>

#include <ddprun/sharding/gather_schedule.h>
#include "tests/support/catch.h"

using namespace ddprun::ddp;
using Action = GatherSchedule::Action;
using Kind = GatherSchedule::Action::Kind;

namespace {

std::vector<std::string> names_of(const std::vector<PlannedUnit>& units) {
  std::vector<std::string> result;
  for (const auto& unit : units) result.push_back(unit.name);
  return result;
}

bool none_pinned(std::size_t) { return false; }

std::string text_of(const std::vector<Action>& actions) {
  std::string text;
  for (const auto& action : actions) {
    const char* const verb = action.kind == Kind::kFree    ? "free "
                             : action.kind == Kind::kFetch ? "fetch "
                                                           : "use ";
    text += (text.empty() ? "" : ", ") + std::string(verb) + std::to_string(action.unit);
  }
  return text;
}

/// What a step that touches the units in this order does.
std::string run_step(GatherSchedule& schedule, const std::vector<std::size_t>& touches) {
  auto actions = schedule.begin_step(true);
  for (const std::size_t unit : touches)
    for (const auto& action : schedule.touch(unit, none_pinned)) actions.push_back(action);
  return text_of(actions);
}

}  // namespace

TEST_CASE("units are packed from whole modules up to their size", "[shard_plan]") {
  const std::vector<ParameterFacts> parameters = {{"a.weight", "a", "float", 60},
                                                  {"a.bias", "a", "float", 4},
                                                  {"b.weight", "b", "float", 50},
                                                  {"c.weight", "c", "float", 1000},
                                                  {"d.weight", "d", "float", 1}};
  CHECK(names_of(plan_units(parameters, 1, 2)) ==
        std::vector<std::string>{"a.weight to a.bias", "b.weight", "c.weight", "d.weight"});
  CHECK(names_of(plan_units(parameters, 460, 2)) ==
        std::vector<std::string>{"a.weight to b.weight", "c.weight", "d.weight"});
  CHECK(names_of(plan_units(parameters, 1 << 20, 2)) == std::vector<std::string>{"a.weight to d.weight"});
}

TEST_CASE("a unit holds one kind of parameters", "[shard_plan]") {
  const auto units = plan_units({{"a.weight", "a", "float", 8},
                                 {"a.bias", "a", "float frozen", 8},
                                 {"b.weight", "b", "float", 8},
                                 {"b.bias", "b", "float frozen", 8}},
                                1 << 20, 2);
  CHECK(names_of(units) == std::vector<std::string>{"a.weight to b.weight", "a.bias to b.bias"});
}

TEST_CASE("parameters start at multiples of 64 bytes, and shards are even", "[shard_plan]") {
  const auto units = plan_units({{"a.weight", "a", "float", 5}, {"a.bias", "a", "float", 3}}, 1 << 20, 4);
  REQUIRE(units.size() == 1);
  CHECK(units[0].parts[1].offset == 16);
  CHECK(units[0].shard_numel == 5);  // ceil(19 / 4)
  CHECK(units[0].numel == 20);
  CHECK(plan_units({{"a", "", "float", 0}}, 1, 3)[0].shard_numel == 1);
}

TEST_CASE("an asked unit is not cut and takes nothing else", "[shard_plan]") {
  std::vector<ParameterFacts> parameters;
  for (const std::string name : {"a", "b", "c", "d"})
    parameters.push_back({name + ".weight", name, "float", 100});
  parameters[1].asked_unit = parameters[2].asked_unit = 0;
  CHECK(names_of(plan_units(parameters, 1, 2)) ==
        std::vector<std::string>{"a.weight", "b.weight to c.weight", "d.weight"});
}

TEST_CASE("the first step gathers on demand, the next one fetches ahead", "[gather_schedule]") {
  GatherSchedule schedule(1);
  CHECK(run_step(schedule, {0, 1, 2}) == "use 0, use 1, free 0, use 2");
  CHECK(run_step(schedule, {0, 0, 1, 2}) ==
        "free 1, free 2, fetch 0, use 0, fetch 1, use 1, free 0, fetch 2, use 2");
}

TEST_CASE("several units can be fetched ahead, and none that is needed sooner gives way",
          "[gather_schedule]") {
  GatherSchedule schedule(2);
  CHECK(run_step(schedule, {0, 1, 2, 3}) == "use 0, use 1, use 2, free 0, use 3");
  CHECK(run_step(schedule, {0, 1, 2, 3}) ==
        "free 1, free 2, free 3, fetch 0, fetch 1, use 0, fetch 2, use 1, free 0, fetch 3, use 2, use 3");
}

TEST_CASE("a step that leaves the known order fetches nothing ahead any more", "[gather_schedule]") {
  GatherSchedule schedule(1);
  run_step(schedule, {0, 1, 2, 3});
  CHECK(run_step(schedule, {0, 3, 1, 2}) ==
        "free 2, free 3, fetch 0, use 0, fetch 1, free 1, use 3, free 0, use 1, free 3, use 2");
}

TEST_CASE("without prefetch one unit is in memory at a time", "[gather_schedule]") {
  GatherSchedule schedule(0);
  run_step(schedule, {0, 1});
  CHECK(run_step(schedule, {0, 1}) == "free 1, use 0, free 0, use 1");
}

TEST_CASE("a unit in use is not freed", "[gather_schedule]") {
  GatherSchedule schedule(0);
  schedule.begin_step(true);
  const auto pinned = [](std::size_t unit) { return unit == 0; };
  schedule.touch(0, pinned);
  CHECK(text_of(schedule.touch(1, pinned)) == "use 1");
  CHECK(text_of(schedule.touch(2, pinned)) == "free 1, use 2");
}
