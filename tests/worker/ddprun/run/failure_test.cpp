#include <ddprun/run/run_worker.h>

#include <c10/util/Exception.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>
#include <vector>

#include <ddprun/common/error_file.h>
#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
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
             ContainsSubstring("out of memory or threads"));
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

namespace {

/// Until there is none.
void use_up_memory() {
  void* volatile taken = nullptr;
  for (std::size_t size = 1 << 20; size > 0; size /= 2) {
    do {
      taken = ::malloc(size);
    } while (taken != nullptr);
  }
}

/// A worker that can have no more memory.
void run_without_memory(const std::filesystem::path& error_file) noexcept {
  ::setenv("TORCHELASTIC_ERROR_FILE", error_file.c_str(), 1);
  ddprun::prepare_worker("worker");
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = 0;
  if (::setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(3);
  use_up_memory();
  const std::vector<char> more(1 << 20);
  std::_Exit(more.size() == 0 ? 4 : 5);
}

}  // namespace

TEST_CASE("a worker that can have no more memory says so in its error file", "[failure]") {
  const ddprun::TempDir dir;
  const auto file = dir.path() / "error.json";
  const pid_t child = ::fork();
  if (child == 0) run_without_memory(file);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(describe(ddprun::ExitStatus::from_wait_status(status)) == "exit code 1");
  const auto content = ddprun::read_error_file(file);
  REQUIRE(content.error);
  CHECK(content.error->message == "memory ran out: std::bad_alloc");
}
