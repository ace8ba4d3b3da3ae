#include <ddprun/image/image_files.h>

#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"

namespace ddprun::image {
namespace {

using test::ContainsSubstring;

const std::filesystem::path kPngGolden = std::filesystem::path(DDPRUN_GOLDEN_DIR) / "png";

/// A picture in which no two pixels nearby are alike.
Image pattern(int width, int height, int channels) {
  auto image = make_image(width, height, channels);
  unsigned state = 1;
  for (auto& byte : image.bytes) byte = static_cast<std::uint8_t>((state = state * 1103515245 + 12345) >> 16);
  return image;
}

TEST_CASE("a picture is the same after writing and reading", "[png]") {
  const TempDir dir;
  for (const int channels : {1, 3, 4}) {
    const auto image = pattern(13, 7, channels);
    write_png(dir.path() / "a.png", image);
    const auto read = read_png(dir.path() / "a.png");
    CHECK(read.width == 13);
    CHECK(read.height == 7);
    CHECK(read.channels == channels);
    CHECK(read.bytes == image.bytes);
    CHECK(encode_png(image) == read_file(dir.path() / "a.png"));
  }
}

TEST_CASE("a picture keeps its title and captions in its file", "[png]") {
  auto image = make_image(5, 4, 4);
  image.title = "predictions \xe2\x82\xac";
  image.captions = {{1, 2, 3, "pred \"3\"\ntrue 5", true}, {4, 5, 6, "\xff", false}};
  const auto bytes = encode_png(image);
  const auto read = decode_png(bytes, "a.png");
  CHECK(read.title == image.title);
  REQUIRE(read.captions.size() == 2);
  CHECK((read.captions[0].x == 1 && read.captions[0].y == 2 && read.captions[0].width == 3));
  CHECK((read.captions[0].text == image.captions[0].text && read.captions[0].wrong));
  CHECK(read.captions[1].text == "\xef\xbf\xbd");  // bytes that are not UTF-8
  auto damaged = bytes;
  damaged[damaged.find("[[1,2")] = 'x';
  CHECK(decode_png(damaged, "a.png").captions.empty());
}

TEST_CASE("Pillow reads the pixels that were written", "[png]") {
  const TempDir dir;
  nlohmann::json expected;
  for (const int channels : {1, 3, 4}) {
    const auto name = std::to_string(channels) + ".png";
    const auto image = pattern(5, 300, channels);
    write_png(dir.path() / name, image);
    expected[name] = image.bytes;
  }
  write_file_atomic(dir.path() / "expected.json", expected.dump());
  test::check_python(dir.path(), "PIL", R"(
import json
from PIL import Image
for name, pixels in json.load(open('expected.json')).items():
    picture = Image.open(name)
    assert picture.size == (5, 300) and list(picture.tobytes()) == pixels, name
)");
}

TEST_CASE("every kind of PNG is read as Pillow reads it", "[png]") {
  const auto expected = nlohmann::json::parse(read_file(kPngGolden / "expected.json"));
  CHECK(expected.size() == 9);
  for (const auto& [name, picture] : expected.items()) {
    INFO(name);
    const auto read = read_png(kPngGolden / (name + ".png"));
    CHECK(std::vector{read.width, read.height} == picture["size"].get<std::vector<int>>());
    CHECK(read.channels == picture["channels"].get<int>());
    CHECK(read.bytes == picture["bytes"].get<std::vector<std::uint8_t>>());
  }
}

TEST_CASE("a file that is cut off or damaged is refused, wherever", "[png]") {
  const auto bytes = encode_png(pattern(9, 6, 3));
  for (std::size_t size = 0; size + 12 < bytes.size(); ++size)  // what is behind the pixels may be missing
    CHECK_THROWS_AS(decode_png(std::string_view(bytes).substr(0, size), "a.png"), IoError);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    try {
      const auto image = decode_png(damaged, "a.png");
      CHECK(image.bytes.size() == 9U * 6 * 3);
    } catch (const IoError&) {
    }
  }
  CHECK_THROWS_WITH(decode_png("GIF89a", "a.png"), ContainsSubstring("a.png: is not a readable PNG file: "));
}

TEST_CASE("a picture too large to hold is refused before it is read", "[png]") {
  const auto bytes = encode_png(pattern(20, 10, 1));
  CHECK(decode_png(bytes, "a.png", 200).width == 20);
  CHECK_THROWS_WITH(decode_png(bytes, "a.png", 199), ContainsSubstring("too many pixels"));
}

TEST_CASE("bytes that are not a picture are refused", "[png]") {
  CHECK_THROWS_WITH(encode_png(make_image(2, 2, 2)),
                    ContainsSubstring("1, 3 or 4 channels, got 2 x 2 pixels with 2"));
  CHECK_THROWS_AS(encode_png(make_image(0, 2, 1)), std::invalid_argument);
  auto image = make_image(2, 2, 3);
  image.bytes.pop_back();
  CHECK_THROWS_WITH(encode_png(image), ContainsSubstring("are 12 bytes, got 11"));
  CHECK_THROWS_AS(write_png("/no/such/folder/a.png", make_image(1, 1, 1)), IoError);
}

}  // namespace
}  // namespace ddprun::image
