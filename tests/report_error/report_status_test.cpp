// include/ddprun/report_status.h in a program in C, read by our reader.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>

#include <ddprun/common/files.h>
#include <ddprun/common/status.h>
#include "tests/support/catch.h"
#include "tests/support/child.h"

namespace ddprun::test {
namespace {

struct Said {
  ExitStatus status;
  std::string line;
};

Command reporter(const std::string& what) { return {{"/bin/sh", "-c", "exec " STATUS_PROGRAM " " + what}}; }

Said run_reporter(const std::string& what, bool with_pipe = true, bool full = false) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  ::fcntl(writing.get(), F_SETFL, O_NONBLOCK);  // as ddprun's are
  if (full) {
    while (::write(writing.get(), std::string(4096, '.').data(), 4096) > 0) {
    }
  }
  Command command = reporter(what);
  if (with_pipe) command.env["DDPRUN_STATUS_FD"] = std::to_string(writing.get());
  Child child(command);
  writing.reset();
  Said said{child.wait(), ""};
  if (!full) said.line = read_file(reading, "pipe", 1 << 20);
  return said;
}

TEST_CASE("a program in C says all that a status holds", "[report_status]") {
  const Said said = run_reporter("all");
  CHECK(said.status == ExitStatus::exited(0));
  WorkerStatus expected;
  expected.step = 1200, expected.steps = 9380, expected.epoch = 3, expected.epochs = 5;
  expected.phase = "train ?1??";
  expected.loss = 0.125;
  expected.samples = 153600;
  expected.seconds = {1.5, 30.25, 4, 2, 0.5, 2.5};
  expected.memory = {123456789, 0};
  CHECK(parse_status(said.line) == expected);
  CHECK(said.line.back() == '\n');
}

TEST_CASE("what a program in C does not know is not said", "[report_status]") {
  CHECK(parse_status(run_reporter("nothing").line) == WorkerStatus());
  const auto extremes = parse_status(run_reporter("extremes").line);
  REQUIRE(extremes);
  CHECK(extremes->step > std::int64_t{1} << 61);
  CHECK(extremes->phase == std::string(64, 'x'));
  CHECK_FALSE(extremes->loss);
  WorkerStatus before;
  before.loss = 0.5;
  CHECK(std::isnan(parse_status(run_reporter("extremes").line, before)->loss.value()));
}

TEST_CASE("a program in C does not wait for a full pipe, and runs without ddprun", "[report_status]") {
  CHECK(run_reporter("all", true, /*full=*/true).status == ExitStatus::exited(3));
  CHECK(run_reporter("all", /*with_pipe=*/false).status == ExitStatus::exited(3));
}

TEST_CASE("a program in C writes to no descriptor that is not a pipe of ddprun's", "[report_status]") {
  const TempDir folder;
  const auto file = folder.path() / "file", fifo = folder.path() / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const UniqueFd reading(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const auto run_with = [](const std::filesystem::path& path, int flags) {
    const UniqueFd fd(::open(path.c_str(), flags, 0600));
    REQUIRE(fd);
    Command command = reporter("all");
    command.env["DDPRUN_STATUS_FD"] = std::to_string(fd.get());
    return Child(command).wait();
  };
  CHECK(run_with(file, O_WRONLY | O_CREAT | O_NONBLOCK) == ExitStatus::exited(3));
  CHECK(read_file(file).empty());
  for (const int flags : {O_WRONLY, O_RDWR | O_NONBLOCK}) {
    CHECK(run_with(fifo, flags) == ExitStatus::exited(3));
    CHECK(read_file(reading, fifo, 1 << 20).empty());
  }
  CHECK(run_with(fifo, O_WRONLY | O_NONBLOCK) == ExitStatus::exited(0));
  CHECK(parse_status(read_file(reading, fifo, 1 << 20)));
}

}  // namespace
}  // namespace ddprun::test
