#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun {
namespace {

constexpr const char* kName = "a skipped test exits with 4 and leaves nothing behind";

/// Runs this program with the one test below, which is then to skip or to fail. returns its wait status
int run_again(const TempDir& temp, const char* how) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setenv("TMPDIR", temp.path().c_str(), 1);
    ::setenv("DDPRUN_SKIP_TEST", how, 1);
    ::execl("/proc/self/exe", "tests", kName, "--out", "/dev/null", nullptr);
    ::_exit(120);
  }
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid ? status : -1;
}

TEST_CASE("a skipped test exits with 4 and leaves nothing behind", "[skip]") {
  if (const char* how = std::getenv("DDPRUN_SKIP_TEST"); how != nullptr) {
    const TempDir folder;
    for (int failures = 0; std::string(how) == "fail" && failures < 4; ++failures) CHECK(failures < 0);
    if (std::string(how) == "skip") test::skip("as asked");
    return;
  }
  const TempDir temp;
  CHECK(run_again(temp, "skip") == W_EXITCODE(4, 0));
  CHECK(run_again(temp, "fail") == W_EXITCODE(1, 0));  // with four failures
  CHECK(run_again(temp, "pass") == W_EXITCODE(0, 0));
  CHECK(std::filesystem::is_empty(temp.path()));
}

}  // namespace
}  // namespace ddprun
