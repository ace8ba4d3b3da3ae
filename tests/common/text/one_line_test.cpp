#include <ddprun/common/text/one_line.h>

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"

namespace ddprun {
namespace {

TEST_CASE("a text of several lines becomes one, which cannot drive a terminal", "[one_line]") {
  CHECK(one_line("/tmp/x\ny\r\x1b[2J\x7f") == "/tmp/x?y??[2J?");
  CHECK(one_line(std::string_view("a\0b", 3)) == "a?b");
}

TEST_CASE("an ordinary text stays as it is, tabs and letters beyond ASCII too", "[one_line]") {
  CHECK(one_line("gr\xc3\xb6\xc3\x9f"
                 "er\tLoss: 1") ==
        "gr\xc3\xb6\xc3\x9f"
        "er\tLoss: 1");
  CHECK(one_line("no UTF-8: \xff") == "no UTF-8: \xff");
  CHECK(one_line("").empty());
}

TEST_CASE("an error of ours is one line, whatever it names", "[one_line]") {
  CHECK(UsageError("--lr: got '1\n2'").what() == std::string("--lr: got '1?2'"));
  const IoError error("/tmp/x\ny", "is cut");
  CHECK(error.what() == std::string("/tmp/x?y: is cut"));
  CHECK(error.path == "/tmp/x\ny");
}

}  // namespace
}  // namespace ddprun
