#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/image/image_files.h>
#include "tests/support/catch.h"

namespace ddprun::image {
namespace {

using test::ContainsSubstring;

const std::filesystem::path kLabelPngGolden = std::filesystem::path(DDPRUN_GOLDEN_DIR) / "png_labels";

LabelMap read_labels(const std::string& name) {
  return decode_png_labels(read_file(kLabelPngGolden / name), kLabelPngGolden / name);
}

TEST_CASE("the numbers of a mask are those that Pillow wrote, in every kind of PNG", "[png]") {
  const auto expected = nlohmann::json::parse(read_file(kLabelPngGolden / "expected.json"));
  CHECK(expected.size() == 7);
  for (const auto& [name, rows] : expected.items()) {
    INFO(name);
    const auto labels = read_labels(name + ".png");
    REQUIRE(labels.height == static_cast<int>(rows.size()));
    REQUIRE(labels.width == static_cast<int>(rows[0].size()));
    auto values = labels.values.begin();
    for (const auto& row : rows)
      for (const auto& value : row) CHECK(*values++ == value.get<int>());
  }
}

TEST_CASE("a mask in colours is refused", "[png]") {
  CHECK_THROWS_WITH(read_labels("colours.png"),
                    ContainsSubstring("colours.png: has colours, expected a mask"));
}

TEST_CASE("a mask that is cut off, damaged or no PNG is refused", "[png]") {
  const auto bytes = read_file(kLabelPngGolden / "grey_16.png");
  for (std::size_t size = 0; size + 12 < bytes.size(); ++size)
    CHECK_THROWS_AS(decode_png_labels(std::string_view(bytes).substr(0, size), "a.png"), IoError);
  auto damaged = bytes;
  damaged[bytes.size() / 2] = static_cast<char>(damaged[bytes.size() / 2] ^ 1);
  CHECK_THROWS_AS(decode_png_labels(damaged, "a.png"), IoError);
  CHECK_THROWS_WITH(decode_png_labels("GIF89a", "a.png"),
                    ContainsSubstring("a.png: is not a readable PNG file"));
}

TEST_CASE("too many pixels are counted in the message", "[png]") {
  const auto bytes = read_file(kLabelPngGolden / "grey_16.png");
  CHECK(decode_png_labels(bytes, "a.png", 35).width == 7);
  CHECK_THROWS_WITH(decode_png_labels(bytes, "a.png", 34),
                    ContainsSubstring("it has too many pixels, 7 x 5, expected at most 34 in all"));
}

TEST_CASE("a picture's kind is told by its content, not by its name", "[read_image]") {
  const TempDir dir;
  const auto misnamed = dir.path() / "photo.png";
  write_file_atomic(misnamed, read_file(kLabelPngGolden / "picture.jpg"));
  const auto jpeg = read_image(misnamed);
  CHECK((jpeg.width == 30 && jpeg.height == 20 && jpeg.channels == 3));
  CHECK(read_image(kLabelPngGolden / "grey_8.png").channels == 1);
  CHECK_THROWS_WITH(read_image(misnamed, 599),
                    ContainsSubstring("photo.png: is not a readable JPEG file: it "
                                      "has too many pixels, 30 x 20, expected at most 599"));
}

TEST_CASE("a file's header tells its size", "[read_image]") {
  CHECK(peek_size(kLabelPngGolden / "picture.jpg") == PictureSize{30, 20});
  CHECK(peek_size(kLabelPngGolden / "grey_16.png") == PictureSize{7, 5});
  const auto jpegs = std::filesystem::path(DDPRUN_GOLDEN_DIR) / "jpeg";
  for (const auto* name : {"grey.jpg", "progressive.jpg", "rgb_subsampled.jpg"}) {
    const auto picture = read_image(jpegs / name);
    CHECK(peek_size(jpegs / name) == PictureSize{picture.width, picture.height});
  }
  CHECK(!peek_size("/no/such/file.png"));
  CHECK(!peek_size(kLabelPngGolden));
  const TempDir dir;
  for (const auto& file : {kLabelPngGolden / "picture.jpg", kLabelPngGolden / "grey_16.png"}) {
    const auto bytes = read_file(file);
    for (std::size_t size = 0; size < 20; ++size) {
      write_file_atomic(dir.path() / "a", std::string_view(bytes).substr(0, size));
      CHECK(!peek_size(dir.path() / "a"));
    }
  }
}

TEST_CASE("a file that is not a picture is refused", "[read_image]") {
  CHECK_THROWS_WITH(decode_image("", "a.png"), "a.png: is empty, expected a PNG or JPEG image");
  CHECK_THROWS_WITH(decode_image("II*", "a.tif"), "a.tif: is neither a PNG nor a JPEG image");
  const auto jpeg = read_file(kLabelPngGolden / "picture.jpg");
  CHECK_THROWS_AS(decode_image(std::string_view(jpeg).substr(0, jpeg.size() / 2), "a.jpg"), IoError);
  CHECK_THROWS_AS(read_image("/no/such/file.png"), IoError);
}

}  // namespace
}  // namespace ddprun::image
