#include <ddprun/data/idx_dataset.h>

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <random>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

using namespace ddprun;
using ddprun::test::ContainsSubstring;

namespace {

/// Bytes that gzip cannot make smaller: more of them than it buffers.
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

std::string content_of(const std::string& file_bytes) {
  const TempDir dir;
  write_file_atomic(dir.path() / "file", file_bytes);
  const auto content = data::read_plain_or_gzip(dir.path() / "file");
  return {reinterpret_cast<const char*>(content.const_data_ptr<std::uint8_t>()),
          static_cast<std::size_t>(content.numel())};
}

}  // namespace

TEST_CASE("a file is read whole however small gzip makes it", "[gz_file]") {
  const std::string zeros(3'000'000, '\0');
  REQUIRE(gzip(zeros).size() < 4000);
  CHECK((content_of(gzip(zeros)) == zeros));
}

TEST_CASE("a file is read whole, plain or gzip", "[gz_file]") {
  for (const std::size_t size : {0, 1, 2, 1000, 131072, 600'000}) {
    const auto bytes = noise(size);
    CAPTURE(size);
    CHECK((content_of(bytes) == bytes));
    CHECK((content_of(gzip(bytes)) == bytes));
  }
  CHECK(content_of(gzip(std::string(5'000'000, 'x'))) == std::string(5'000'000, 'x'));
}

TEST_CASE("gzip files one after the other are one, as for gzip", "[gz_file]") {
  CHECK(content_of(gzip("one ") + gzip("") + gzip("two")) == "one two");
  const auto bytes = noise(300'000);
  CHECK((content_of(gzip(bytes) + gzip(bytes)) == bytes + bytes));
  CHECK(
      (content_of(gzip(bytes) + gzip("end")) == bytes + "end"));  // whose last size says nothing of the whole
}

TEST_CASE("a large gzip file that is cut, changed or followed by something is refused", "[gz_file]") {
  const auto whole = gzip(noise(600'000));
  REQUIRE(whole.size() > 600'000);
  SECTION("cut in its trailer and before it") {
    for (const std::size_t cut : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 100'000, 599'000}) {
      CAPTURE(cut);
      CHECK_THROWS_WITH(content_of(whole.substr(0, whole.size() - cut)),
                        ContainsSubstring("file: is not a whole gzip file: cut or damaged"));
    }
  }
  SECTION("a bit of the checksum or of the length") {
    for (const std::size_t from_end : {8, 1}) {
      auto changed = whole;
      changed[changed.size() - from_end] ^= 1;
      CHECK_THROWS_WITH(content_of(changed), ContainsSubstring("is not a whole gzip file"));
    }
  }
  SECTION("garbage after its end") {
    for (const std::string& garbage : {std::string("x"), std::string(9, '\0'), std::string(200'000, 'x')})
      CHECK_THROWS_WITH(content_of(whole + garbage), ContainsSubstring("is not a whole gzip file"));
  }
}

TEST_CASE("a FIFO is refused and not waited for", "[gz_file]") {
  const TempDir dir;
  REQUIRE(::mkfifo((dir.path() / "fifo").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(data::read_plain_or_gzip(dir.path() / "fifo"),
                    ContainsSubstring("fifo: is a FIFO or a device"));
}
