#include <ddprun/report/metric_sink.h>

#include <sys/resource.h>

#include <csignal>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun::report {
namespace {

/// While it lives, no file of this process grows beyond so many bytes: a write there ends early, as on a disk
/// that is full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

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
