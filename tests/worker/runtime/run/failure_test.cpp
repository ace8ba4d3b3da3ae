#include <ddprun/run/run_worker.h>

#include <c10/util/Exception.h>

#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"

using ddprun::describe_failure;
using ddprun::test::ContainsSubstring;

namespace {

template <typename Throw>
ddprun::Failure failure_of(Throw throwing) {
  try {
    throwing();
  } catch (...) {
    return describe_failure(std::current_exception());
  }
  return {};
}

}  // namespace

TEST_CASE("a usage error exits with 2, any other with 1", "[failure]") {
  CHECK(failure_of([] { throw ddprun::UsageError("--epochs: expected"); }).exit_code == 2);
  CHECK(failure_of([] { throw ddprun::IoError("/x", "is cut"); }).exit_code == 1);
  CHECK(failure_of([] { throw std::runtime_error("x"); }).exit_code == 1);
  CHECK(failure_of([] { throw 42; }).exit_code == 1);
}

TEST_CASE("a failure is one line, without LibTorch's stack trace", "[failure]") {
  const auto failure = failure_of([] { TORCH_CHECK(false, "shapes differ\nsecond line"); });
  CHECK(failure.message == "shapes differ");
  CHECK(failure.exit_code == 1);
}

TEST_CASE("a failure for want of memory says so", "[failure]") {
  CHECK(failure_of([] { throw std::bad_alloc(); }).message == "memory ran out: std::bad_alloc");
  CHECK_THAT(failure_of([] {
               throw std::system_error(EAGAIN, std::generic_category());  // as std::thread does
             }).message,
             ContainsSubstring("memory ran out, or threads"));
  CHECK(failure_of([] { throw std::system_error(EPIPE, std::generic_category()); }).message == "Broken pipe");
}

TEST_CASE("a failure is named whole where a name holds a line end", "[failure]") {
  CHECK(failure_of([] { throw ddprun::UsageError("--lr: expected a number above 0, got '1\n2'"); }).message ==
        "--lr: expected a number above 0, got '1?2'");
  CHECK(failure_of([] { throw ddprun::IoError("/tmp/x\ny", "no such folder"); }).message ==
        "/tmp/x?y: no such folder");
  CHECK(failure_of([] { throw std::runtime_error("a\rb"); }).message == "a?b");
  CHECK(failure_of([] { TORCH_CHECK(false, "a\x1b[2Jb"); }).message == "a?[2Jb");
}
