// The options that tests/worker/ddprun/ddp/ddp_parity_test.cpp leaves out; minutes.
#include "tests/support/catch.h"
#include "tests/worker/ddprun/ddp/parity_case.h"

TEST_CASE("losses of ResNet-18 are Python's with every option", "[ddp_parity][.slow]") {
  ddprun::test::check_parity("resnet18", 2, [](const auto&) { return true; });
}
