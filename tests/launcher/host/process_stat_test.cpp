#include "launcher/host/processes.h"

#include <unistd.h>

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

TEST_CASE("a process's name may hold what separates the fields after it", "[process_stat]") {
  const auto stat =
      parse_stat("42 (a) R 1 (b)) S 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28");
  REQUIRE(stat);
  CHECK(stat->name == "a) R 1 (b)");
  CHECK(stat->state == 'S');
  CHECK(stat->parent == 7);
  CHECK(stat->group == 8);
  CHECK(stat->flags == 12);
  CHECK(stat->user == 17);
  CHECK(stat->system == 18);
  CHECK(stat->start == 25);
  CHECK(stat->pages == 27);
  CHECK(stat->lives());
  CHECK_FALSE(stat->stopped());
  CHECK(stat->is_ending());
}

TEST_CASE("what is not a line of /proc/PID/stat is no process", "[process_stat]") {
  for (const char* line : {"", "42", "42 (name", "42 )name( S 1 2", "42 (name)", "42 (name) S 1 2 3"})
    CHECK_FALSE(parse_stat(line));
}

TEST_CASE("a process is seen with its parent and group, and a missing one is not", "[process_stat]") {
  const auto stat = stat_of(::getpid());
  REQUIRE(stat);
  CHECK(stat->parent == ::getppid());
  CHECK(stat->group == ::getpgrp());
  CHECK(stat->pages > 0);
  CHECK_FALSE(stat->is_ending());
  CHECK_FALSE(stat_of(-1));
}

}  // namespace
}  // namespace ddprun::launcher
