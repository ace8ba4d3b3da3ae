#include <ddprun/report/metric_sink.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "tests/support/file_size_limit.h"

namespace ddprun::report {
namespace {

using test::FileSizeLimit;

TEST_CASE("a record that does not fit leaves nothing of itself, and later ones are written",
          "[append_file]") {
  const TempDir dir;
  const auto path = dir.path() / "log";
  AppendFile file(path, "begin\n");
  file.append("one\n");
  {
    const FileSizeLimit limit(14);
    CHECK_THROWS_AS(file.append("too long for it\n"), IoError);
    CHECK(read_file(path) == "begin\none\n");
    file.append("two\n");
  }
  file.append("three\n");
  CHECK(read_file(path) == "begin\none\ntwo\nthree\n");
}

TEST_CASE("a file that is to be kept until it is written again survives a failure", "[append_file]") {
  const TempDir dir;
  const auto path = dir.path() / "log";
  write_file_atomic(path, "earlier\n");
  {
    const FileSizeLimit limit(10);
    CHECK_THROWS_AS(AppendFile(path, "longer than ten bytes\n", true), IoError);
  }
  CHECK(read_file(path) == "earlier\n");
  AppendFile file(path, "anew\n", true);
  file.append("more\n");
  CHECK(read_file(path) == "anew\nmore\n");
}

}  // namespace
}  // namespace ddprun::report
