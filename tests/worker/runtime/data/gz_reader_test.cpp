#include <ddprun/data/gz_reader.h>

#include <sys/stat.h>

#include <algorithm>
#include <random>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

using namespace ddprun;
using ddprun::data::GzReader;
using ddprun::test::ContainsSubstring;

namespace {

/// Bytes that gzip cannot make smaller: more of them than it, or the reader, buffers.
std::string noise(std::size_t size) {
  std::mt19937 random(7);
  std::string bytes(size, '\0');
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
  return bytes;
}

std::string gzip(const std::string& bytes) {
  const TempDir dir;
  const gzFile file = ::gzopen((dir.path() / "gz").c_str(), "wb");
  REQUIRE(::gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) ==
          static_cast<int>(bytes.size()));
  REQUIRE(::gzclose(file) == Z_OK);
  return read_file(dir.path() / "gz");
}

/// What a reader gives that is asked for `step` bytes at a time, until it gives fewer.
std::string content_of(const std::string& file_bytes, std::size_t step = std::size_t{1} << 22) {
  const TempDir dir;
  write_file_atomic(dir.path() / "file", file_bytes);
  GzReader reader(dir.path() / "file");
  std::string content, part(step, '\0');
  for (std::size_t got = step; got == step; content.append(part, 0, got))
    got = reader.read(part.data(), step);
  return content;
}

}  // namespace

TEST_CASE("a file is read whole, plain or gzip, in any steps", "[gz_reader]") {
  for (const std::size_t size : {0, 1, 2, 1000, 131072, 600'000}) {
    const auto bytes = noise(size);
    for (const std::size_t step : {100UL, 131072UL, 600'000UL, 4'000'000UL}) {
      CAPTURE(size, step);
      CHECK((content_of(bytes, step) == bytes));
      CHECK((content_of(gzip(bytes), step) == bytes));
    }
  }
  CHECK(content_of(gzip(std::string(5'000'000, 'x'))) == std::string(5'000'000, 'x'));
}

TEST_CASE("gzip files one after the other are one, as for gzip", "[gz_reader]") {
  CHECK(content_of(gzip("one ") + gzip("") + gzip("two")) == "one two");
  const auto bytes = noise(300'000);
  CHECK((content_of(gzip(bytes) + gzip(bytes)) == bytes + bytes));
}

TEST_CASE("a large gzip file that is cut, changed or followed by something is refused", "[gz_reader]") {
  const auto whole = gzip(noise(600'000));
  REQUIRE(whole.size() > 600'000);
  SECTION("cut in its trailer and before it") {
    for (const std::size_t cut : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 100'000, 599'000}) {
      CAPTURE(cut);
      CHECK_THROWS_WITH(content_of(whole.substr(0, whole.size() - cut)),
                        ContainsSubstring("file: is not a whole gzip file (it is cut)"));
    }
  }
  SECTION("a bit of the checksum or of the length") {
    for (const auto& [from_end, reason] :
         {std::pair(8, "incorrect data check"), std::pair(1, "incorrect length check")}) {
      auto changed = whole;
      changed[changed.size() - static_cast<std::size_t>(from_end)] ^= 1;
      CHECK_THROWS_WITH(content_of(changed), ContainsSubstring(reason));
    }
  }
  SECTION("garbage after its end") {
    for (const std::string& garbage : {std::string("x"), std::string(9, '\0'), std::string(200'000, 'x')})
      CHECK_THROWS_WITH(content_of(whole + garbage), ContainsSubstring("is not a whole gzip file"));
  }
}

TEST_CASE("a FIFO is refused and not waited for", "[gz_reader]") {
  const TempDir dir;
  REQUIRE(::mkfifo((dir.path() / "fifo").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(GzReader(dir.path() / "fifo"), ContainsSubstring("fifo: is a FIFO or a device"));
}
