#include "launcher/workers/worker_pipes.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "tests/launcher/stopped_clock.h"
#include "tests/support/catch.h"
#include "tests/support/child.h"

namespace ddprun::launcher {
namespace {

using test::Child;
using test::Command;
using namespace std::chrono_literals;

/// Runs the loop until the worker has sent a beat. False if the deadline passes.
bool run_until_beat(boost::asio::io_context& io, const Heartbeats& heartbeats, std::size_t index) {
  const auto end = std::chrono::steady_clock::now() + test::kDeadline;
  while (std::chrono::steady_clock::now() < end) {
    if (heartbeats.last_beat(index)) return true;
    io.restart();
    io.run_one_for(test::kDeadline);
  }
  return false;
}

void write_bytes(const UniqueFd& fd, std::size_t count) {
  const std::string bytes(count, '.');
  REQUIRE(::write(fd.get(), bytes.data(), count) == static_cast<ssize_t>(count));
}

/// The command, with the descriptor inherited as ddprun's workers do.
Command with_heartbeat(Command command, int fd) {
  command.env["DDPRUN_HEARTBEAT_FD"] = std::to_string(fd);
  command.in_child = [fd] { ::fcntl(fd, F_SETFD, 0); };
  return command;
}

TEST_CASE("a byte in its pipe is a worker's sign of life, and no other's", "[heartbeat]") {
  boost::asio::io_context io(1);
  Heartbeats heartbeats(io);
  const UniqueFd first = heartbeats.open(0), second = heartbeats.open(1);
  io.poll();
  CHECK_FALSE(heartbeats.last_beat(0));
  const auto before = Heartbeats::Clock::now();
  write_bytes(second, 1);
  REQUIRE(run_until_beat(io, heartbeats, 1));
  CHECK(heartbeats.last_beat(1) >= before);
  CHECK_FALSE(heartbeats.last_beat(0));
}

TEST_CASE("later beats renew it, and old ones are not taken for new", "[heartbeat]") {
  test::StoppedClock clock;
  boost::asio::io_context io(1);
  Heartbeats heartbeats(io);
  const UniqueFd worker = heartbeats.open(0);
  write_bytes(worker, 60'000);
  io.poll();
  const auto first = LoopClock::now();
  CHECK(heartbeats.last_beat(0) == first);
  clock.pass(io, 300ms);  // long enough to look again: nothing may be left
  CHECK(heartbeats.last_beat(0) == first);
  write_bytes(worker, 1);
  clock.pass(io, 0ms);
  CHECK(heartbeats.last_beat(0) == first + 300ms);
}

TEST_CASE("beats without a pause wake ddprun up ten times a second, and fill the pipe meanwhile",
          "[heartbeat]") {
  test::StoppedClock clock;
  boost::asio::io_context io(1);
  Heartbeats heartbeats(io);
  const UniqueFd worker = heartbeats.open(0);
  std::size_t handlers = 0;
  for (int ms = 0; ms < 250; ++ms) {
    write_bytes(worker, 1000 / 4);
    handlers += clock.pass(io, 1ms);
  }
  CHECK(heartbeats.last_beat(0) == LoopClock::now() - 49ms);
  CHECK(handlers == 5);  // two for each time but the last, and not one for each byte
}

TEST_CASE("a worker that is gone leaves nothing to wait for, and its last beat known", "[heartbeat]") {
  test::StoppedClock clock;
  boost::asio::io_context io(1);
  Heartbeats heartbeats(io);
  UniqueFd worker = heartbeats.open(0);
  write_bytes(worker, 3);
  worker.reset();
  io.poll();
  CHECK_FALSE(io.stopped());
  clock.pass(io, 100ms);
  CHECK(io.stopped());
  CHECK(heartbeats.last_beat(0));
}

TEST_CASE("heartbeats may go while their events are on the way", "[heartbeat]") {
  boost::asio::io_context io(1);
  UniqueFd worker;
  {
    Heartbeats heartbeats(io);
    worker = heartbeats.open(0);
    write_bytes(worker, 1);
    REQUIRE(run_until_beat(io, heartbeats, 0));
    write_bytes(worker, 1);
  }
  io.restart();
  io.run_for(test::kDeadline);
  CHECK(io.stopped());
}

TEST_CASE("the writing end does not block and is not inherited unasked", "[heartbeat]") {
  boost::asio::io_context io(1);
  Heartbeats heartbeats(io);
  const UniqueFd worker = heartbeats.open(0);
  CHECK((::fcntl(worker.get(), F_GETFL) & O_NONBLOCK) != 0);
  CHECK((::fcntl(worker.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("a worker's heartbeats arrive", "[heartbeat]") {
  boost::asio::io_context io(1);
  Heartbeats heartbeats(io);
  const UniqueFd fd = heartbeats.open(0);
  Child child(with_heartbeat({{STUB_WORKER_PROGRAM, "beat", "100000"}}, fd.get()));
  CHECK(child.wait().success());  // the pipe holds 65536
  CHECK(run_until_beat(io, heartbeats, 0));
}

TEST_CASE("the heartbeats of the example in Python arrive", "[heartbeat]") {
  boost::asio::io_context io(1);
  Heartbeats heartbeats(io);
  const UniqueFd fd = heartbeats.open(0);
  const Command example{{"python3", DDPRUN_SOURCE_DIR "/examples/heartbeat.py"}};
  Child child(with_heartbeat(example, fd.get()));
  CHECK(child.wait().success());
  CHECK(run_until_beat(io, heartbeats, 0));
  Child without(example);
  CHECK(without.wait().success());
  CHECK(without.err().empty());
}

}  // namespace
}  // namespace ddprun::launcher
