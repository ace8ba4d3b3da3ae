#include <ddprun/common/heartbeat.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun {
namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    reading.reset(ends[0]);
    writing.reset(ends[1]);
  }
  std::string read_all() {
    writing.reset();
    std::string bytes;
    char buffer[4096];
    for (ssize_t n; (n = ::read(reading.get(), buffer, sizeof buffer)) > 0;)
      bytes.append(buffer, static_cast<std::size_t>(n));
    return bytes;
  }
  UniqueFd reading, writing;
};

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
