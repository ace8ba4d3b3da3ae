#include <ddprun/data/idx_dataset.h>

#include <zlib.h>

#include <fstream>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/data/find_dataset.h>
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
    CHECK_THROWS_WITH(folder.open(), ContainsSubstring("expected 3 labels, one an image, got 2"));
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
                    ContainsSubstring("train-images-idx3-ubyte: no such file, nor with .gz"));
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
