#include "launcher/workers/file_timers.h"

#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <fstream>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "tests/support/child.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

/// Seconds since 1970, this much from now.
double in(milliseconds time) {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch() + time).count();
}

std::string request(pid_t pid, const std::string& scope, double expires, int signal = SIGKILL) {
  return R"({"version": 1, "pid": )" + std::to_string(pid) + R"(, "scope_id": ")" + scope +
         R"(", "expiration_time": )" + std::to_string(expires) + R"(, "signal": )" + std::to_string(signal) +
         "}\n";
}

struct Rig {
  /// Writes as the client does, which opens the pipe for each request.
  void send(const std::string& line) const { std::ofstream(path) << line; }

  void run_for(milliseconds time) {
    io.restart();
    io.run_for(time);
  }
  void run_until_one_expires() {
    const auto end = std::chrono::steady_clock::now() + test::kDeadline;
    while (expired.empty() && std::chrono::steady_clock::now() < end) {
      io.restart();
      io.run_one_for(test::kDeadline);
    }
  }

  TempDir folder;
  std::filesystem::path path = folder.path() / "timers";
  boost::asio::io_context io{1};
  std::vector<FileTimers::Expired> expired;
  FileTimers timers{io, path, [this](const FileTimers::Expired& one) { expired.push_back(one); }};
};

TEST_CASE("a timer that is not taken away in time expires, once", "[file_timers]") {
  Rig rig;
  rig.send(request(7, "slow", in(milliseconds(150)), SIGTERM) + request(7, "other", in(milliseconds(160))) +
           request(8, "far", in(milliseconds(600'000))) + request(9, "released", in(milliseconds(50))));
  rig.send(request(9, "released", -1));
  rig.run_until_one_expires();
  REQUIRE(rig.expired.size() == 1);
  CHECK(rig.expired[0].pid == 7);
  CHECK(rig.expired[0].scope == "slow");
  CHECK(rig.expired[0].signal == SIGTERM);
  rig.run_for(milliseconds(50));
  CHECK(rig.expired.size() == 1);
}

TEST_CASE("what is not a request is passed over", "[file_timers]") {
  Rig rig;
  rig.send("not JSON\n[1]\n{\"pid\": 7}\n" + request(7, "no signal", in(milliseconds(0)), 0) +
           request(7, "never", 1e300));
  for (int i = 0; i < 3; ++i) {  // a line without an end
    rig.send(std::string(30'000, 'x'));
    rig.run_for(milliseconds(10));
  }
  rig.send("\n" + request(8, "late", in(milliseconds(-1000))));
  rig.run_until_one_expires();
  REQUIRE(rig.expired.size() == 1);
  CHECK(rig.expired[0].pid == 8);
}

TEST_CASE("the pipe replaces an older pipe, and nothing else", "[file_timers]") {
  const TempDir folder;
  boost::asio::io_context io{1};
  const auto path = folder.path() / "timers";
  REQUIRE(::mkfifo(path.c_str(), 0666) == 0);
  {
    const FileTimers timers(io, path, nullptr);
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK(S_ISFIFO(info.st_mode));
    CHECK((info.st_mode & 0777) == 0600);
  }
  CHECK_FALSE(std::filesystem::exists(path));
  std::ofstream(path) << "a file";
  CHECK_THROWS_AS(FileTimers(io, path, nullptr), IoError);
  CHECK(read_file(path) == "a file");
}

}  // namespace
}  // namespace ddprun::launcher
