#include "launcher/workers/worker_pipes.h"

#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <fstream>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "launcher/events/clock.h"
#include "tests/launcher/stopped_clock.h"
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;

/// Seconds since 1970, this much from now.
double in(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(WallClock::now().time_since_epoch() + time).count();
}

std::string request(pid_t pid, const std::string& scope, double expires, int signal = SIGKILL) {
  return R"({"version": 1, "pid": )" + std::to_string(pid) + R"(, "scope_id": ")" + scope +
         R"(", "expiration_time": )" + std::to_string(expires) + R"(, "signal": )" + std::to_string(signal) +
         "}\n";
}

struct Rig {
  /// Writes as the client does, which opens the pipe for each request.
  void send(const std::string& line) const { std::ofstream(path) << line; }

  void pass(std::chrono::milliseconds time) { clock.pass(io, time); }

  test::StoppedClock clock;
  TempDir folder;
  std::filesystem::path path = folder.path() / "timers";
  boost::asio::io_context io{1};
  std::vector<FileTimers::Expired> expired;
  FileTimers timers{io, FileTimers::make_pipe(path),
                    [this](const FileTimers::Expired& one) { expired.push_back(one); }};
};

TEST_CASE("a timer that is not taken away in time expires, once", "[file_timers]") {
  Rig rig;
  rig.send(request(7, "slow", in(150ms), SIGTERM) + request(7, "other", in(160ms)) +
           request(8, "far", in(10min)) + request(9, "released", in(50ms)));
  rig.send(request(9, "released", -1));
  rig.pass(149ms);
  CHECK(rig.expired.empty());
  rig.pass(2ms);  // the text of a time is rounded
  REQUIRE(rig.expired.size() == 1);
  CHECK(rig.expired[0].pid == 7);
  CHECK(rig.expired[0].scope == "slow");
  CHECK(rig.expired[0].signal == SIGTERM);
  rig.pass(9min);
  CHECK(rig.expired.size() == 1);
  rig.pass(1min);
  REQUIRE(rig.expired.size() == 2);
  CHECK(rig.expired[1].scope == "far");
}

TEST_CASE("what is not a request is passed over", "[file_timers]") {
  Rig rig;
  rig.send("not JSON\n[1]\n{\"pid\": 7}\n" + request(7, "no signal", in(0ms), 0) +
           request(7, "never", 1e300));
  for (int i = 0; i < 3; ++i) {  // a line without an end
    rig.send(std::string(30'000, 'x'));
    rig.pass(10ms);
  }
  rig.send("\n" + request(8, "late", in(-1s)));
  rig.pass(0ms);
  REQUIRE(rig.expired.size() == 1);
  CHECK(rig.expired[0].pid == 8);
}

TEST_CASE("the pipe replaces an older pipe, and nothing else", "[file_timers]") {
  const TempDir folder;
  boost::asio::io_context io{1};
  const auto path = folder.path() / "timers";
  REQUIRE(::mkfifo(path.c_str(), 0666) == 0);
  {
    const FileTimers timers(io, FileTimers::make_pipe(path), nullptr);
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK(S_ISFIFO(info.st_mode));
    CHECK((info.st_mode & 0777) == 0600);
  }
  std::filesystem::remove(path);
  std::ofstream(path) << "a file";
  CHECK_THROWS_AS(FileTimers::make_pipe(path), IoError);
  CHECK(read_file(path) == "a file");
}

}  // namespace
}  // namespace ddprun::launcher
