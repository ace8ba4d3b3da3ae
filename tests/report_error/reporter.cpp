// A user's program that fails as its first argument says.
#include <ddprun/report_error.h>
#include <pthread.h>

#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <thread>

bool report_from_elsewhere();

namespace {

namespace own {
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
}  // namespace own

int fail_nested() {
  try {
    throw std::out_of_range("inner");
  } catch (...) {
    std::throw_with_nested(std::runtime_error("outer"));
  }
}

int fail(int, char** argv) {
  const std::string text = argv[2] != nullptr ? argv[2] : "";
  const std::map<std::string, std::function<int()>> ways = {
      {"throw", [&]() -> int { throw own::Failure(text); }},
      {"throw-runtime-error", [&]() -> int { throw std::runtime_error(text); }},
      {"throw-string", [&]() -> int { throw text; }},
      {"throw-literal", [&]() -> int { throw "literal"; }},
      {"throw-int", [&]() -> int { throw 7; }},
      {"throw-nested", fail_nested},
      {"throw-huge", [&]() -> int { throw std::runtime_error(std::string(1 << 20, '\x01')); }},
      {"report", [&] { return ddprun::report_error(text.c_str(), "one\ntwo") ? 5 : 6; }},
      {"report-elsewhere", [] { return report_from_elsewhere() ? 5 : 6; }},
      {"report-null", [] { return ddprun::report_error(nullptr, nullptr) ? 5 : 6; }},
      {"return", [] { return 3; }},
      {"pthread-exit", []() -> int { ::pthread_exit(nullptr); }},
  };
  return ways.at(argv[1])();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  if (std::strcmp(argv[1], "uncaught") == 0) {
    ddprun::report_uncaught_exceptions();
    ddprun::report_uncaught_exceptions();  // twice is once
    throw std::runtime_error("nobody catches this");
  }
  if (std::strcmp(argv[1], "uncaught-in-threads") == 0) {
    ddprun::report_uncaught_exceptions();
    const auto run = [] { throw std::runtime_error("in a thread"); };
    std::thread first(run), second(run), third(run);
    first.join();
  }
  if (std::strcmp(argv[1], "terminate") == 0) {
    ddprun::report_uncaught_exceptions();
    std::terminate();
  }
  return ddprun::record(argc, argv, fail);
}
