#include <ddprun/data/dataset_files.h>

#include <fstream>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace fs = std::filesystem;
using namespace ddprun;
using ddprun::data::Part;
using ddprun::data::read_cifar10;
using ddprun::test::ContainsSubstring;

namespace {

constexpr std::size_t kRecord = 3073;

/// Records whose label is their number modulo 10, and whose pixels are seed + number + place.
std::string records(int count, int seed) {
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    bytes += static_cast<char>(i % 10);
    for (int place = 0; place < 3072; ++place) bytes += static_cast<char>(seed + i + place);
  }
  return bytes;
}

/// A folder with five training files of 12 records and a test file of 7.
struct CifarFolder {
  CifarFolder() {
    for (int i = 1; i <= 5; ++i) write_file_atomic(batch(i), records(12, 40 * i));
    write_file_atomic(test(), records(7, 3));
  }
  fs::path batch(int i) const { return dir.path() / ("data_batch_" + std::to_string(i) + ".bin"); }
  fs::path test() const { return dir.path() / "test_batch.bin"; }
  TempDir dir;
};

}  // namespace

TEST_CASE("CIFAR-10 is read record by record, file after file", "[cifar10_dataset]") {
  const CifarFolder folder;
  const auto train = read_cifar10(folder.dir.path(), Part::kTrain);
  REQUIRE(train.images_NCHW.sizes().vec() == std::vector<std::int64_t>{60, 3, 32, 32});
  CHECK(train.images_NCHW.scalar_type() == torch::kUInt8);
  CHECK(train.labels_N.equal(torch::arange(12, torch::kInt64).remainder(10).repeat({5})));
  const auto place = torch::arange(3072, torch::kInt64).view({3, 32, 32});
  for (const int i : {0, 11, 12, 59})
    CHECK(train.images_NCHW[i].equal((place + 40 * (i / 12 + 1) + i % 12).to(torch::kUInt8)));
  const auto test = read_cifar10(folder.dir.path(), Part::kTest);
  CHECK(test.images_NCHW[6].equal((place + 3 + 6).to(torch::kUInt8)));
  CHECK(test.labels_N.size(0) == 7);
}

TEST_CASE("CIFAR-10 is found in the folder that its archive unpacks to", "[cifar10_dataset]") {
  const CifarFolder folder;
  const TempDir outer;
  fs::create_directory_symlink(folder.dir.path(), outer.path() / "cifar-10-batches-bin");
  CHECK(read_cifar10(outer.path(), Part::kTrain).labels_N.size(0) == 60);
}

TEST_CASE("CIFAR-10 keeps the first images up to the limit, and reads no more", "[cifar10_dataset]") {
  const CifarFolder folder;
  auto wrong = records(12, 1);
  wrong[5 * kRecord] = 10;
  write_file_atomic(folder.batch(2), wrong);
  const auto images = read_cifar10(folder.dir.path(), Part::kTrain, 17);
  CHECK(images.images_NCHW.size(0) == 17);
  CHECK(images.labels_N[16].item<int>() == 4);
  CHECK_THROWS_AS(read_cifar10(folder.dir.path(), Part::kTrain, 18), IoError);
  CHECK(read_cifar10(folder.dir.path(), Part::kTest, 99).labels_N.size(0) == 7);
}

TEST_CASE("CIFAR-10 refuses wrong files, naming file, record, what was expected and got",
          "[cifar10_dataset]") {
  const CifarFolder folder;
  const auto read = [&](Part part) { return read_cifar10(folder.dir.path(), part); };
  SECTION("cut anywhere") {
    for (const std::size_t size : {1ul, kRecord - 1, kRecord + 1, 7 * kRecord - 1}) {
      write_file_atomic(folder.test(), records(7, 3).substr(0, size));
      CHECK_THROWS_WITH(read(Part::kTest), folder.test().string() + ": expected records of 3073 bytes, got " +
                                               std::to_string(size / kRecord) + " of them and " +
                                               std::to_string(size % kRecord) + " more bytes");
    }
  }
  SECTION("empty") {
    write_file_atomic(folder.test(), "");
    CHECK_THROWS_WITH(read(Part::kTest), ContainsSubstring("got 0 of them and 0 more bytes"));
  }
  SECTION("cut between records") {
    write_file_atomic(folder.batch(4), records(11, 0));
    CHECK_THROWS_WITH(
        read(Part::kTrain),
        folder.batch(4).string() + ": expected 12 records, as many as data_batch_1.bin has, got 11");
  }
  SECTION("a label that is none") {
    for (const char wrong : {'\x0a', '\xff'}) {
      auto bytes = records(7, 3);
      bytes[5 * kRecord] = wrong;
      write_file_atomic(folder.test(), bytes);
      CHECK_THROWS_WITH(read(Part::kTest), folder.test().string() +
                                               ": record 5: expected a label from 0 to 9, got " +
                                               std::to_string(static_cast<unsigned char>(wrong)));
    }
  }
  SECTION("missing") {
    fs::remove(folder.batch(3));
    CHECK_THROWS_WITH(read(Part::kTrain), ContainsSubstring(folder.batch(3).string()));
    fs::remove(folder.batch(1));
    CHECK_THROWS_WITH(read(Part::kTrain),
                      folder.batch(1).string() + ": no such file, here or in cifar-10-batches-bin/");
    write_file_atomic(folder.dir.path() / "batches.meta", "x");
    CHECK_THROWS_WITH(read(Part::kTrain), ContainsSubstring("holds CIFAR-10's Python version, expected the "
                                                            "binary version (data_batch_1.bin)"));
    CHECK_THROWS_WITH(read_cifar10("/no/such", Part::kTest), ContainsSubstring("/no/such: no such folder"));
  }
  SECTION("no file at all") {
    fs::remove(folder.test());
    fs::create_directory(folder.test());
    CHECK_THROWS_WITH(read(Part::kTest), ContainsSubstring("is a folder, expected a file"));
  }
}

TEST_CASE("CIFAR-10 itself is read whole", "[cifar10_dataset]") {
  const auto folder = data::find_dataset("cifar10");
  if (!folder) test::skip("CIFAR-10 (scripts/get_data.sh cifar10) is not there");
  const auto train = read_cifar10(*folder, Part::kTrain), test = read_cifar10(*folder, Part::kTest);
  CHECK(train.labels_N.bincount().eq(5000).all().item<bool>());
  CHECK(test.labels_N.bincount().eq(1000).all().item<bool>());
  const auto means = train.images_NCHW.to(torch::kFloat32).mean(torch::IntArrayRef{0, 2, 3}) / 255;
  for (int c = 0; c < 3; ++c)
    CHECK(means[c].item<double>() ==
          test::Approx(data::kCifar10Mean[static_cast<std::size_t>(c)]).margin(1e-4));
  CHECK(std::string(data::kCifar10Classes[static_cast<std::size_t>(train.labels_N[0].item<int>())]) ==
        "frog");
}
