#include <ddprun/train/record/profiler.h>

#include <torch/nn/functional/loss.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "worker/models/classifiers.h"

namespace ddprun::train {
namespace {

using test::ContainsSubstring;

void train_step(models::MnistCnn& model) {
  const auto output = model->forward(torch::randn({4, 1, 28, 28}));
  torch::nll_loss(output, torch::tensor({1, 2, 3, 4}, torch::kInt64)).backward();
}

TEST_CASE("a profile is a trace with the operators, and a table that names the slow ones", "[profiler]") {
  const TempDir dir;
  const auto trace = dir.path() / "trace.json";
  models::MnistCnn model;
  Profiler profiler;
  train_step(model);
  profiler.start();
  CHECK(profiler.recording());
  for (int step = 0; step < 3; ++step) train_step(model);
  const auto table = profiler.stop(trace, {.steps = 3, .total = 0.3, .data_wait = 0.01});
  CHECK(!profiler.recording());

  INFO(table);
  CHECK_THAT(table, ContainsSubstring("3 steps, each 100.000 ms on average"));
  CHECK_THAT(table, ContainsSubstring("conv"));
  CHECK_THAT(table, ContainsSubstring("addmm"));
  std::set<std::string> names;
  int forward = 0;
  const auto root = nlohmann::json::parse(read_file(trace));
  for (const auto& event : root.at("traceEvents")) {
    names.insert(event.value("name", ""));
    forward += event.value("name", "") == "aten::addmm" && event.value("ph", "") == "X";
  }
  for (const char* name :
       {"aten::conv2d", "aten::addmm", "aten::max_pool2d", "aten::nll_loss", "ConvolutionBackward0"}) {
    INFO(name);
    CHECK(names.contains(name));
  }
  CHECK(forward == 3 * 2);  // two linear layers, three steps: what came before start() is not in it
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) CHECK(entry.path() == trace);
}

TEST_CASE("a profiler can be started again, and be given up", "[profiler]") {
  const TempDir dir;
  const auto a = torch::ones({8, 8});
  {
    Profiler given_up;
    given_up.start();
    a.mm(a);
  }
  Profiler profiler;
  for (const char* name : {"1.json", "2.json"}) {
    profiler.start();
    a.mm(a);
    CHECK_THAT(profiler.stop(dir.path() / name, {}), ContainsSubstring("aten::mm"));
    CHECK_NOTHROW(nlohmann::json::parse(read_file(dir.path() / name)));
  }
  CHECK_THROWS_AS(profiler.stop(dir.path() / "3.json", {}), std::logic_error);
}

TEST_CASE("a trace that cannot be written is refused by name", "[profiler]") {
  Profiler profiler;
  profiler.start();
  CHECK_THROWS_AS(profiler.stop("/no/such/folder/trace.json", {}), IoError);
  CHECK(!profiler.recording());
  // Kineto's own thread, which this process's first profiler starts, crashes if it begins while the process
  // ends.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

TEST_CASE("an operator's own time is without what runs within it", "[profile_table]") {
  const auto times = operator_times({{"aten::linear", 1, 0, 100},
                                     {"aten::addmm", 1, 10, 90},
                                     {"aten::copy_", 1, 20, 30},
                                     {"aten::copy_", 1, 30, 35},
                                     {"aten::copy_", 2, 20, 60},  // beside it, on another thread
                                     {"aten::linear", 1, 100, 110}});
  REQUIRE(times.size() == 3);
  CHECK(times[0].name == "aten::addmm");
  CHECK(times[0].self_ns == 65);
  CHECK(times[0].total_ns == 80);
  CHECK(times[1].name == "aten::copy_");
  CHECK(times[1].self_ns == 55);
  CHECK(times[1].calls == 3);
  CHECK(times[2].name == "aten::linear");
  CHECK(times[2].self_ns == 30);
  CHECK(times[2].total_ns == 110);
  CHECK(times[2].calls == 2);
  CHECK(operator_times({}).empty());
}

TEST_CASE("the table tells where the steps' time went", "[profile_table]") {
  const auto text =
      profile_table({.steps = 4, .total = 0.8, .data_wait = 0.08, .communication = 0.2, .overlap = 0.15},
                    {{"aten::addmm", 300000000, 310000000, 40}, {"aten::relu", 100000000, 100000000, 8}});
  CHECK_THAT(text, ContainsSubstring("4 steps, each 200.000 ms on average"));
  CHECK_THAT(text, ContainsSubstring("waiting for data       20.000 ms   10.0 % of the step"));
  CHECK_THAT(text, ContainsSubstring("communication          50.000 ms   25.0 % of the step"));
  CHECK_THAT(text, ContainsSubstring("beside backward      37.500 ms   75.0 % of communication"));
  CHECK_THAT(text, ContainsSubstring("overlaps with backward does not lengthen a step"));
  CHECK_THAT(profile_table({.steps = 4, .total = 0.8}, {}), !ContainsSubstring("overlap"));
  CHECK_THAT(text, ContainsSubstring("     300.000    75.0     310.000        40  aten::addmm"));
  CHECK(text.find("GPU") == std::string::npos);
}

TEST_CASE("a long table ends, and one of nothing is empty", "[profile_table]") {
  std::vector<OperatorTime> many;
  for (int i = 0; i < 30; ++i) many.push_back({"operator " + std::to_string(i) + ".", 1000, 1000, 1});
  const auto text = profile_table({}, many);
  CHECK_THAT(text, ContainsSubstring("operator 19."));
  CHECK(text.find("operator 20.") == std::string::npos);
  CHECK_THAT(text, ContainsSubstring("and 10 more"));
  CHECK(profile_table({}, {}).empty());
}

}  // namespace
}  // namespace ddprun::train
