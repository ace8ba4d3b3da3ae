#include <ddprun/common/status.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <string>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun {
namespace {

WorkerStatus full_status() {
  WorkerStatus status;
  status.step = 1200, status.steps = 9380, status.epoch = 3, status.epochs = 5;
  status.phase = "train";
  status.loss = 0.125;
  status.samples = 153600;
  status.seconds = {1.5, 30.25, 4, 2, 0.5, 2.5};
  status.memory = {123456789, 0};
  return status;
}

TEST_CASE("a status is one line of JSON, and comes back", "[status]") {
  const std::string line = to_json_line(full_status());
  CHECK(line ==
        R"({"step":1200,"steps":9380,"epoch":3,"epochs":5,"phase":"train","loss":0.125,"samples":153600,)"
        R"("seconds":{"data":1.5,"compute":30.25,"communication":4.0,"evaluation":2.0,"checkpoint":0.5,)"
        R"("start":2.5},"memory":{"resident":123456789,"device":0}})"
        "\n");
  CHECK(parse_status(line) == full_status());
  CHECK(to_json_line({}) == "{}\n");
}

TEST_CASE("a number that JSON does not know is left out", "[status]") {
  WorkerStatus status;
  status.seconds.data = std::numeric_limits<double>::infinity();
  CHECK(to_json_line(status) == "{}\n");
}

TEST_CASE("a status has all members, some, or others", "[status]") {
  CHECK(parse_status("{}") == WorkerStatus());
  CHECK(parse_status(R"({"of":[1],"step":7,"seconds":{"nap":"long"},"loss":null,"memory":null})")->step == 7);
  CHECK(parse_status(R"({"loss":-1})")->loss == -1);
  CHECK(parse_status(R"({"seconds":{"data":0}})")->seconds.data == 0);
}

TEST_CASE("a status adds to what was said before", "[status]") {
  WorkerStatus expected = full_status();
  expected.step = 1201;
  expected.seconds.data = 1.75;
  CHECK(parse_status(R"({"step":1201,"phase":null,"seconds":{"data":1.75}})", full_status()) == expected);
}

TEST_CASE("a loss that is no longer a number does not keep its last value", "[status]") {
  for (const double loss : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    WorkerStatus status;
    status.loss = loss;
    CHECK(to_json_line(status) == "{\"loss\":null}\n");
    CHECK(std::isnan(parse_status(to_json_line(status), full_status())->loss.value()));
    CHECK_FALSE(parse_status(to_json_line(status))->loss);  // a program that knows of no loss
  }
}

TEST_CASE("a line that is no status is refused", "[status]") {
  for (const std::string text :
       {"", "step 7", "7", "[]", "null", R"({"step":7)", R"({"step":-1})", R"({"step":1.5})",
        R"({"step":"7"})", R"({"step":18446744073709551615})", R"({"loss":"low"})", R"({"loss":1e999})",
        R"({"loss":NaN})", R"({"seconds":[]})", R"({"seconds":{"data":-1}})",
        R"({"memory":{"resident":1.5}})", R"({"phase":1})"}) {
    INFO(text);
    CHECK_FALSE(parse_status(text));
  }
  CHECK_FALSE(parse_status("{\"x\":" + std::string(2000, '[') + std::string(2000, ']') + "}"));
}

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    reading.reset(ends[0]);
    writing.reset(ends[1]);
    ::fcntl(writing.get(), F_SETFL, O_NONBLOCK);  // as ddprun's are
  }
  std::string read_all() {
    writing.reset();
    return read_file(reading, "pipe", 1 << 20);
  }
  UniqueFd reading, writing;
};

TEST_CASE("each status that is sent is a line in the pipe", "[status]") {
  Pipe pipe;
  const StatusChannel channel(pipe.writing.get());
  REQUIRE(channel.connected());
  channel.send(full_status());
  channel.send({});
  CHECK(pipe.read_all() == to_json_line(full_status()) + "{}\n");
}

TEST_CASE("a status does not wait for room in a full pipe, and is whole or not there", "[status]") {
  Pipe pipe;
  ::fcntl(pipe.writing.get(), F_SETPIPE_SZ, 4096);
  const StatusChannel channel(pipe.writing.get());
  for (int i = 0; i < 1000; ++i) channel.send(full_status());
  const std::string line = to_json_line(full_status()), got = pipe.read_all();
  CHECK(got.size() >= line.size());
  CHECK(got.size() <= 4096);
  CHECK(got.size() % line.size() == 0);
}

TEST_CASE("a status that is too long for one write is not sent", "[status]") {
  Pipe pipe;
  WorkerStatus status;
  status.phase = std::string(kMaxStatusLine, 'x');
  StatusChannel(pipe.writing.get()).send(status);
  CHECK(pipe.read_all().empty());
}

TEST_CASE("a status goes nowhere without a pipe to write to", "[status]") {
  const Pipe pipe;
  for (const int fd : {pipe.reading.get(), 1 << 20, -1}) {
    CHECK_FALSE(StatusChannel(fd).connected());
    StatusChannel(fd).send(full_status());
  }
  CHECK_FALSE(StatusChannel(std::nullopt).connected());
  ::fcntl(pipe.writing.get(), F_SETFL, 0);
  CHECK_FALSE(StatusChannel(pipe.writing.get()).connected());  // a program's pipe to its own child
}

TEST_CASE("every beat is a byte in the pipe", "[heartbeat]") {
  Pipe pipe;
  const Heartbeat heartbeat(pipe.writing.get());
  REQUIRE(heartbeat.connected());
  heartbeat.beat();
  heartbeat.beat();
  CHECK(pipe.read_all().size() == 2);
}

TEST_CASE("a beat does not wait for room in a full pipe", "[heartbeat]") {
  Pipe pipe;
  ::fcntl(pipe.writing.get(), F_SETPIPE_SZ, 4096);
  const Heartbeat heartbeat(pipe.writing.get());
  for (int i = 0; i < 10'000; ++i) heartbeat.beat();
  const auto held = pipe.read_all().size();
  CHECK(held > 0);
  CHECK(held < 10'000);
}

TEST_CASE("programs that a worker starts do not inherit the pipe", "[heartbeat]") {
  const Pipe pipe;
  const Heartbeat heartbeat(pipe.writing.get());
  CHECK((::fcntl(pipe.writing.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("a descriptor that is not a pipe to write to is left alone", "[heartbeat]") {
  const Pipe pipe;
  const TempDir folder;
  const auto path = folder.path() / "file";
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  for (const int fd : {file.get(), socket.get(), pipe.reading.get(), 1 << 20, -1}) {
    const Heartbeat heartbeat(fd);
    CHECK_FALSE(heartbeat.connected());
    heartbeat.beat();
  }
  CHECK(read_file(path).empty());
  CHECK((::fcntl(pipe.reading.get(), F_GETFL) & O_NONBLOCK) == 0);
}

TEST_CASE("without a descriptor beats go nowhere", "[heartbeat]") {
  CHECK_FALSE(Heartbeat().connected());
  CHECK_FALSE(Heartbeat(std::nullopt).connected());
  Heartbeat().beat();
}

}  // namespace
}  // namespace ddprun
