#include "worker/report/csv_sink.h"

#include "common/errors.h"
#include "common/files.h"
#include "tests/support/catch.h"

using ddprun::read_file;
using ddprun::TempDir;
using ddprun::report::CsvSink;

TEST_CASE("rows are in the file at once, with empty cells for what is not known", "[csv_sink]") {
  const TempDir dir;
  CsvSink sink(dir.path() / "metrics.csv", {"epoch", "step", "train_loss"});
  CHECK(read_file(dir.path() / "metrics.csv") == "epoch,step,train_loss\n");
  sink.add({{"step", 1234567}, {"epoch", 0}});
  sink.add({{"train_loss", 0.123456789012}, {"epoch", 1}});
  CHECK(read_file(dir.path() / "metrics.csv") == "epoch,step,train_loss\n0,1234567,\n1,,0.123456789\n");
}

TEST_CASE("a name that is no column is a broken invariant", "[csv_sink]") {
  const TempDir dir;
  CsvSink sink(dir.path() / "metrics.csv", {"epoch"});
  CHECK_THROWS_AS(sink.add({{"loss", 1}}), std::logic_error);
}

TEST_CASE("a file that cannot be written is refused by name", "[csv_sink]") {
  CHECK_THROWS_WITH(CsvSink("/no/such/folder/metrics.csv", {"epoch"}),
                    ddprun::test::ContainsSubstring("/no/such/folder/metrics.csv: cannot create"));
  CHECK_THROWS_AS(CsvSink("/dev/full", {"epoch"}), ddprun::IoError);
}
