#include <ddprun/common/invariant.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/support/catch.h"

namespace ddprun {
namespace {

TEST_CASE("a broken invariant ends the process and names what should have been true", "[invariant]") {
  check_invariant(true, "nothing happens");
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);
    ::dup2(ends[1], STDERR_FILENO);
    check_invariant(false, "a round has members");
    ::_exit(0);
  }
  ::close(ends[1]);
  char text[500] = "";
  std::string said;
  for (ssize_t n = 0; (n = ::read(ends[0], text, sizeof text)) > 0;)
    said.append(text, static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  CHECK(said.find("it must be true that a round has members, but it is not\n") != std::string::npos);
}

}  // namespace
}  // namespace ddprun
