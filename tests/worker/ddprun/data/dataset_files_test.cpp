#include <ddprun/data/dataset_files.h>

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace fs = std::filesystem;
using namespace ddprun;
using ddprun::data::IdxDataset;
using ddprun::data::Part;
using ddprun::test::ContainsSubstring;

namespace {

std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string idx(std::uint32_t magic, const std::vector<std::uint32_t>& shape, const std::string& values) {
  std::string bytes = big_endian(magic);
  for (const auto size : shape) bytes += big_endian(size);
  return bytes + values;
}

/// n images whose pixels are all 10 * their number.
std::string images(int n) {
  std::string values;
  for (int i = 0; i < n; ++i) values += std::string(28 * 28, static_cast<char>(10 * i));
  return idx(0x803, {static_cast<std::uint32_t>(n), 28, 28}, values);
}

std::string labels(const std::string& values) {
  return idx(0x801, {static_cast<std::uint32_t>(values.size())}, values);
}

void write_gz(const fs::path& path, const std::string& bytes) {
  const gzFile file = ::gzopen(path.c_str(), "wb");
  REQUIRE(::gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) ==
          static_cast<int>(bytes.size()));
  REQUIRE(::gzclose(file) == Z_OK);
}

/// A folder with a good test part of three images.
struct IdxFolder {
  IdxFolder() {
    write_file_atomic(images_path(), images(3));
    write_file_atomic(labels_path(), labels(std::string("\x02\x09\x00", 3)));
  }
  fs::path images_path() const { return dir.path() / "t10k-images-idx3-ubyte"; }
  fs::path labels_path() const { return dir.path() / "t10k-labels-idx1-ubyte"; }
  IdxDataset open(std::int64_t limit = 0) const { return {dir.path(), Part::kTest, 0.5f, 0.25f, limit}; }
  TempDir dir;
};

}  // namespace

TEST_CASE("dataset reads images and labels, plain and gzip", "[idx_dataset]") {
  IdxFolder folder;
  if (GENERATE(false, true)) {
    fs::remove(folder.images_path());
    fs::remove(folder.labels_path());
    write_gz(folder.images_path().string() + ".gz", images(3));
    write_gz(folder.labels_path().string() + ".gz", labels(std::string("\x02\x09\x00", 3)));
  }
  const auto dataset = folder.open();
  REQUIRE(dataset.size() == 3);
  const auto batch = dataset.get_batch({2, 0, 2});
  CHECK(batch.input.sizes().vec() == std::vector<std::int64_t>{3, 1, 28, 28});
  CHECK(batch.input.scalar_type() == torch::kFloat32);
  CHECK(batch.target.equal(torch::tensor({0, 2, 0}, torch::kInt64)));
  const float expected = (20.f / 255 - 0.5f) / 0.25f;
  CHECK(batch.input[0].eq(expected).all().item<bool>());
  CHECK(batch.input[1].eq(-2.f).all().item<bool>());
}

TEST_CASE("dataset keeps the first examples up to the limit", "[idx_dataset]") {
  const IdxFolder folder;
  CHECK(folder.open(2).size() == 2);
  CHECK(folder.open(2).get_batch({1}).target.item<int>() == 9);
  CHECK(folder.open(99).size() == 3);
}

TEST_CASE("dataset refuses a file cut at any byte", "[idx_dataset]") {
  const IdxFolder folder;
  const auto whole = labels(std::string("\x02\x09\x00", 3));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_file_atomic(folder.labels_path(), whole.substr(0, size));
    CHECK_THROWS_WITH(folder.open(), ContainsSubstring("t10k-labels-idx1-ubyte: is cut: expected"));
  }
  write_file_atomic(folder.images_path(), images(3).substr(0, 16 + 28 * 28 * 3 - 1));
  CHECK_THROWS_WITH(folder.open(), ContainsSubstring("is cut: expected 2352 bytes of values, got 2351"));
}

TEST_CASE("dataset refuses a gzip file cut at any byte or with a flipped bit", "[idx_dataset]") {
  const IdxFolder folder;
  fs::remove(folder.labels_path());
  const fs::path path = folder.labels_path().string() + ".gz";
  write_gz(path, labels(std::string("\x02\x09\x00", 3)));
  const auto whole = read_file(path);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    write_file_atomic(path, whole.substr(0, size));
    CHECK_THROWS_AS(folder.open(), IoError);
  }
  auto flipped = whole;
  flipped[whole.size() - 6] ^= 1;  // in the checksum of the content
  write_file_atomic(path, flipped);
  CHECK_THROWS_AS(folder.open(), IoError);
}

TEST_CASE("dataset refuses wrong content, naming the file and what was expected", "[idx_dataset]") {
  const IdxFolder folder;
  SECTION("magic number") {
    write_file_atomic(folder.images_path(), labels("abc"));
    CHECK_THROWS_WITH(folder.open(),
                      ContainsSubstring("t10k-images-idx3-ubyte: expected magic number 2051") &&
                          ContainsSubstring("got 2049"));
  }
  SECTION("something other than IDX") {
    write_file_atomic(folder.images_path(), "\x89PNG\r\n and more");
    CHECK_THROWS_WITH(folder.open(), ContainsSubstring("expected magic number 2051"));
  }
  SECTION("more bytes than announced") {
    write_file_atomic(folder.images_path(), images(3) + "x");
    CHECK_THROWS_WITH(folder.open(), ContainsSubstring("more bytes than its header announces"));
  }
  SECTION("a header that asks for too much") {
    write_file_atomic(folder.images_path(), idx(0x803, {0xffffffffu, 0xffffffffu, 28}, ""));
    CHECK_THROWS_WITH(folder.open(), ContainsSubstring("more than 8 GiB"));
    write_file_atomic(folder.images_path(), idx(0x803, {0, 0xffffffffu, 0xffffffffu}, ""));
    CHECK_THROWS_WITH(folder.open(), ContainsSubstring("t10k-images-idx3-ubyte: has a header that asks for"));
  }
  SECTION("other sizes") {
    write_file_atomic(folder.images_path(), idx(0x803, {1, 2, 2}, "abcd"));
    CHECK_THROWS_WITH(folder.open(), ContainsSubstring("expected images of 28 x 28, got 2 x 2"));
  }
  SECTION("no images") {
    write_file_atomic(folder.images_path(), idx(0x803, {0, 28, 28}, ""));
    CHECK_THROWS_WITH(folder.open(), ContainsSubstring("holds no images"));
  }
  SECTION("another number of labels") {
    write_file_atomic(folder.labels_path(), labels(std::string(2, '\0')));
    CHECK_THROWS_WITH(folder.open(), ContainsSubstring("expected 3 labels, one per image, got 2"));
  }
  SECTION("a label that is not a digit") {
    write_file_atomic(folder.labels_path(), labels(std::string("\x02\x0a\x00", 3)));
    CHECK_THROWS_WITH(folder.open(), ContainsSubstring("expected labels from 0 to 9, got 10"));
  }
}

TEST_CASE("dataset names what is missing", "[idx_dataset]") {
  const IdxFolder folder;
  CHECK_THROWS_WITH(IdxDataset("/no/such/folder", Part::kTrain, 0, 1),
                    ContainsSubstring("/no/such/folder: no such folder"));
  CHECK_THROWS_WITH(IdxDataset(folder.dir.path(), Part::kTrain, 0, 1),
                    ContainsSubstring("train-images-idx3-ubyte: no such file, with or without .gz"));
  fs::create_symlink("loop", folder.dir.path() / "loop");  // cannot be looked into, by root neither
  CHECK_THROWS_WITH(IdxDataset(folder.dir.path() / "loop", Part::kTrain, 0, 1),
                    (folder.dir.path() / "loop/train-images-idx3-ubyte").string() +
                        ": cannot be looked up: Too many levels of symbolic links");
  fs::remove(folder.labels_path());
  fs::create_directory(folder.labels_path());
  CHECK_THROWS_WITH(folder.open(), ContainsSubstring("is a folder, expected a file"));
}

TEST_CASE("dataset reads Fashion-MNIST whole", "[idx_dataset]") {
  const auto folder = data::find_dataset("fashion-mnist");
  if (!folder) test::skip("Fashion-MNIST (package dataset-fashion-mnist) is not installed");
  const IdxDataset train(*folder, Part::kTrain, 0.1307f, 0.3081f),
      test(*folder, Part::kTest, 0.1307f, 0.3081f);
  CHECK(train.size() == 60000);
  CHECK(test.size() == 10000);
  CHECK(test.get_batch({0, 1, 2, 3}).target.equal(torch::tensor({9, 2, 1, 1}, torch::kInt64)));
}

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
                        ContainsSubstring("file: is not a complete gzip file: truncated or damaged"));
    }
  }
  SECTION("a bit of the checksum or of the length") {
    for (const std::size_t from_end : {8, 1}) {
      auto changed = whole;
      changed[changed.size() - from_end] ^= 1;
      CHECK_THROWS_WITH(content_of(changed), ContainsSubstring("is not a complete gzip file"));
    }
  }
  SECTION("garbage after its end") {
    for (const std::string& garbage : {std::string("x"), std::string(9, '\0'), std::string(200'000, 'x')})
      CHECK_THROWS_WITH(content_of(whole + garbage), ContainsSubstring("is not a complete gzip file"));
  }
}

TEST_CASE("a FIFO is refused and not waited for", "[gz_file]") {
  const TempDir dir;
  REQUIRE(::mkfifo((dir.path() / "fifo").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(data::read_plain_or_gzip(dir.path() / "fifo"),
                    ContainsSubstring("fifo: is a FIFO or a device"));
}

using ddprun::data::find_data;

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
  for (const std::string none : {"nothing", "./none", "/no/such/folder"})
    CHECK_THROWS_WITH(find_data(none, {"one", "two"}),
                      "--data: expected a folder or one of the names one, two, got '" + none + "'");
  const auto two = folders.make_cached("two");
  CHECK(find_data("", {"one", "two"}) == two);
  const auto one = folders.make_cached("one");
  CHECK(find_data("", {"one", "two"}) == one);
  CHECK(find_data("two", {"one", "two"}) == two);
}
