
#include <cmath>
#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/image/image_files.h>
#include "tests/support/catch.h"

namespace ddprun::image {
namespace {

using test::ContainsSubstring;

const std::filesystem::path kJpegGolden = std::filesystem::path(DDPRUN_GOLDEN_DIR) / "jpeg";

TEST_CASE("JPEG files are read as Pillow reads them", "[jpeg]") {
  const auto expected = nlohmann::json::parse(read_file(kJpegGolden / "expected.json"));
  CHECK(expected.size() == 4);
  for (const auto& [name, picture] : expected.items()) {
    INFO(name);
    const auto read = read_image(kJpegGolden / (name + ".jpg"));
    CHECK(std::vector{read.width, read.height} == picture["size"].get<std::vector<int>>());
    CHECK(read.channels == picture["channels"].get<int>());
    const auto bytes = picture["bytes"].get<std::vector<int>>();
    REQUIRE(read.bytes.size() == bytes.size());
    int largest = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i)
      largest = std::max(largest, std::abs(read.bytes[i] - bytes[i]));
    CHECK(largest <= 1);  // versions of libjpeg-turbo may round differently
  }
}

TEST_CASE("bytes between a JPEG file's segments are passed over", "[jpeg]") {
  const auto bytes = read_file(kJpegGolden / "rgb.jpg");
  REQUIRE(bytes.substr(2, 4) == std::string("\xff\xe0\0\x10", 4));
  const auto whole = decode_jpeg(bytes, "a.jpg").bytes;
  for (const std::size_t at : {std::size_t{2 + 18}, bytes.size() - 2}) {  // behind APP0, before the end
    auto longer = bytes;
    longer.insert(at, "abc");
    CHECK(decode_jpeg(longer, "a.jpg").bytes == whole);
  }
}

TEST_CASE("a JPEG file that is cut off or no JPEG is refused", "[jpeg]") {
  const auto bytes = read_file(kJpegGolden / "rgb.jpg");
  for (std::size_t size = 0; size < bytes.size() - 1; size += 7)
    CHECK_THROWS_AS(decode_jpeg(std::string_view(bytes).substr(0, size), "a.jpg"), IoError);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x44);
    try {
      decode_jpeg(damaged, "a.jpg", 1 << 20);
    } catch (const IoError&) {  // many kinds of damage do not show: JPEG has no checksum
    }
  }
  CHECK_THROWS_WITH(decode_jpeg("GIF89a", "a.jpg"),
                    ContainsSubstring("a.jpg: is not a readable JPEG file: "));
  CHECK_THROWS_WITH(decode_jpeg(bytes, "a.jpg", 19 * 11 - 1), ContainsSubstring("too many pixels"));
  CHECK_THROWS_WITH(read_image(kJpegGolden / "cmyk.jpg"),
                    ContainsSubstring("it has 4 channels, expected 1 or 3"));
}

}  // namespace
}  // namespace ddprun::image
