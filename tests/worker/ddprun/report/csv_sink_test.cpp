#include <ddprun/report/metric_sink.h>

#include <cmath>
#include <limits>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun::report {
namespace {

using test::ContainsSubstring;

TEST_CASE("rows are in the file at once, with empty cells for what is not known", "[csv_sink]") {
  const TempDir dir;
  CsvSink sink(dir.path() / "metrics.csv", {"epoch", "step", "train_loss"});
  CHECK(read_file(dir.path() / "metrics.csv") == "epoch,step,train_loss\n");
  sink.add({{"step", 1234567}, {"epoch", 0}});
  sink.add({{"train_loss", 0.123456789012}, {"epoch", 1}});
  CHECK(read_file(dir.path() / "metrics.csv") == "epoch,step,train_loss\n0,1234567,\n1,,0.123456789\n");
}

TEST_CASE("a name that is not a column is a broken invariant", "[csv_sink]") {
  const TempDir dir;
  CsvSink sink(dir.path() / "metrics.csv", {"epoch"});
  CHECK_THROWS_AS(sink.add({{"loss", 1}}), std::logic_error);
}

TEST_CASE("a file that cannot be written is refused by name", "[csv_sink]") {
  CHECK_THROWS_WITH(CsvSink("/no/such/folder/metrics.csv", {"epoch"}),
                    ContainsSubstring("/no/such/folder/metrics.csv: cannot create"));
  CHECK_THROWS_AS(CsvSink("/dev/full", {"epoch"}), IoError);
}

TEST_CASE("rows read back are those that were added", "[csv_sink]") {
  const TempDir dir;
  const auto path = dir.path() / "metrics.csv";
  const double inf = std::numeric_limits<double>::infinity();
  CsvSink sink(path, {"epoch", "step", "loss", "acc"});
  sink.add({{"epoch", 0}, {"step", 5}, {"loss", 1e-30}});
  sink.add({{"acc", -inf}, {"loss", -std::numeric_limits<double>::quiet_NaN()}});
  sink.add({});
  const auto rows = read_metrics_csv(path);
  REQUIRE(rows.size() == 3);
  CHECK(rows[0] == MetricRow{{"epoch", 0}, {"step", 5}, {"loss", 1e-30}});
  REQUIRE(rows[1].size() == 2);
  CHECK(std::isnan(rows[1][0].second));
  CHECK(rows[1][1] == std::pair<std::string, double>("acc", -inf));
  CHECK(rows[2].empty());
  CHECK_THAT(read_file(path), ContainsSubstring("\n,,nan,-inf\n"));
}

TEST_CASE("a resumed run's file begins with the rows of before", "[csv_sink]") {
  const TempDir dir;
  const auto path = dir.path() / "metrics.csv";
  { CsvSink(path, {"step"}).add({{"step", 10}}); }
  CsvSink sink(path, {"step", "loss"}, read_metrics_csv(path));
  sink.add({{"step", 20}, {"loss", 0.5}});
  CHECK(read_file(path) == "step,loss\n10,\n20,0.5\n");
}

TEST_CASE("a last line that was cut off is left out, a wrong line is named", "[csv_sink]") {
  const TempDir dir;
  const auto path = dir.path() / "metrics.csv";
  write_file_atomic(path, "step,loss\n1,2\n3,4");
  CHECK(read_metrics_csv(path) == std::vector<MetricRow>{{{"step", 1}, {"loss", 2}}});
  write_file_atomic(path, "step,loss\n1,2\n3\n");
  CHECK_THROWS_WITH(read_metrics_csv(path),
                    ContainsSubstring("metrics.csv: line 3: expected 2 cells, as in the first line, got 1"));
  write_file_atomic(path, "step,loss\n1,two\n");
  CHECK_THROWS_WITH(read_metrics_csv(path), ContainsSubstring("line 2: expected a number, got 'two'"));
}

}  // namespace
}  // namespace ddprun::report
