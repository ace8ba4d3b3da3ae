#include <ddprun/data/find_dataset.h>

#include <cstdlib>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace fs = std::filesystem;
using namespace ddprun;
using ddprun::data::find_data;
using ddprun::test::ContainsSubstring;

namespace {

/// The two folders that a user can fill, private while this lives (a test case is a process of its own).
struct Folders {
  Folders() {
    ::setenv("DDPRUN_DATA", own.path().c_str(), 1);
    ::setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
  }
  fs::path make_own(const std::string& name) const { return make(own.path() / name); }
  fs::path make_cached(const std::string& name) const { return make(cache.path() / "ddprun/data" / name); }
  static fs::path make(const fs::path& path) {
    fs::create_directories(path);
    return path;
  }
  TempDir own, cache;
};

}  // namespace

TEST_CASE("data is found by name in DDPRUN_DATA first, then in the cache", "[locate]") {
  const Folders folders;
  const auto cached = folders.make_cached("cifar10");
  CHECK(data::find_dataset("cifar10") == cached);
  const auto own = folders.make_own("cifar10");
  CHECK(data::find_dataset("cifar10") == own);
  CHECK(data::find_dataset("no-such-set") == std::nullopt);
}

TEST_CASE("data is a name, a folder or nothing", "[locate]") {
  const Folders folders;
  CHECK_THROWS_AS(find_data("", {"one", "two"}), UsageError);
  CHECK_THROWS_WITH(find_data("two", {"one", "two"}),
                    ContainsSubstring("--data: no data set 'two' in " + folders.own.path().string() + ", ") &&
                        ContainsSubstring(", /usr/share/datasets or ") &&
                        ContainsSubstring("; scripts/get_data.sh two fetches it"));
  const auto given = folders.own.path().string();
  CHECK(find_data(given, {"one", "two"}) == given);
  for (const std::string none : {"none", "./none", "/no/such/folder"})
    CHECK_THROWS_WITH(find_data(none, {"one", "two"}),
                      "--data: expected a folder or one of the names one, two, got '" + none + "'");
  const auto two = folders.make_cached("two");
  CHECK(find_data("", {"one", "two"}) == two);
  const auto one = folders.make_cached("one");
  CHECK(find_data("", {"one", "two"}) == one);
  CHECK(find_data("two", {"one", "two"}) == two);
}
