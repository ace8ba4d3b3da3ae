#include <ddprun/report/metric_sink.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun::report {
namespace {

TEST_CASE("each row is a JSON object on its own line, immediately", "[jsonl_sink]") {
  const TempDir dir;
  const auto path = dir.path() / "metrics.jsonl";
  JsonlSink sink(path);
  CHECK(read_file(path).empty());
  sink.add({{"epoch", 0}, {"step", 1234567}, {"train_loss", 0.123456789012}});
  sink.add({{"lr", 1e-30}});
  sink.add({});
  CHECK(read_file(path) == "{\"epoch\":0,\"step\":1234567,\"train_loss\":0.123456789}\n{\"lr\":1e-30}\n{}\n");
}

TEST_CASE("numbers that JSON has not are null, and every line is JSON", "[jsonl_sink]") {
  const TempDir dir;
  const auto path = dir.path() / "metrics.jsonl";
  const double inf = std::numeric_limits<double>::infinity();
  JsonlSink sink(path);
  sink.add({{"a", std::numeric_limits<double>::quiet_NaN()}, {"b", inf}, {"c", -inf}, {"d", -0.0}});
  sink.add({{"quote\" and \n", 1.5e300}, {"tiny", 5e-324}, {"negative", -2.5}});
  std::istringstream lines(read_file(path));
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  REQUIRE(rows.size() == 2);
  CHECK(rows[0] == nlohmann::json{{"a", nullptr}, {"b", nullptr}, {"c", nullptr}, {"d", 0}});
  CHECK(rows[1]["quote\" and \n"] == 1.5e300);
  CHECK(rows[1]["negative"] == -2.5);
}

TEST_CASE("a resumed run's lines begin with those of before", "[jsonl_sink]") {
  const TempDir dir;
  const auto path = dir.path() / "metrics.jsonl";
  write_file_atomic(path, "of a run that went further\n");
  JsonlSink sink(path, std::vector<MetricRow>{{{"step", 10}}});
  sink.add({{"step", 20}});
  CHECK(read_file(path) == "{\"step\":10}\n{\"step\":20}\n");
}

TEST_CASE("a full disk is an error that names the file", "[jsonl_sink]") {
  JsonlSink sink("/dev/full");
  CHECK_THROWS_WITH(sink.add({{"step", 1}}), test::ContainsSubstring("/dev/full: cannot write"));
}

}  // namespace
}  // namespace ddprun::report
