#include "launcher/failure/core_file.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

std::string place(std::string_view pattern) { return core_place(pattern, 123, "/work"); }

TEST_CASE("a pattern that names a file is shown as a path", "[core_file]") {
  CHECK(place("core") == "/work/core");
  CHECK(place("core.%p") == "/work/core.%p");
  CHECK(place("/cores/%e.%p%%") == "/cores/%e.%p%%");
  CHECK(place("").empty());
}

TEST_CASE("a core that is handed on has a handler's name and a way to it", "[core_file]") {
  CHECK(place("|/usr/lib/systemd/systemd-coredump %P %u %g") ==
        "handed to systemd-coredump: coredumpctl info 123");
  CHECK(place("|/usr/share/apport/apport -p%p") == "handed to apport: see /var/crash");
  CHECK(place("|/bin/false") == "handed to false");
  CHECK(place("|") == "handed to ");
  CHECK(place("@@/run/core.socket") == "handed to /run/core.socket");
  CHECK(place("@") == "handed to ");
}

}  // namespace
}  // namespace ddprun::launcher
