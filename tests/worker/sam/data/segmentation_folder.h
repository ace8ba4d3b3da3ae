#pragma once

#include <zlib.h>

#include <filesystem>
#include <functional>
#include <string>

#include <ddprun/common/files.h>
#include <ddprun/image/image_files.h>

namespace ddprun::test {

/// A PNG that claims to be of that size.
inline std::string huge_png(unsigned width, unsigned height) {
  auto bytes = image::encode_png(image::make_image(1, 1, 1));
  const auto put = [&](std::size_t at, std::uint64_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes[at++] = static_cast<char>(value >> shift);
  };
  put(16, width);
  put(20, height);
  put(29, ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()) + 12, 17));
  return bytes;
}

/// A folder of images and masks, made for a test.
struct SegmentationFolder {
  SegmentationFolder() {
    std::filesystem::create_directories(path / "images");
    std::filesystem::create_directories(path / "masks");
  }

  /// One channel, each pixel as value(x, y) says.
  static image::Image grey(int width, int height, const std::function<int(int, int)>& value) {
    auto picture = image::make_image(width, height, 1);
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x) *picture.pixel(x, y) = static_cast<std::uint8_t>(value(x, y));
    return picture;
  }

  void add_image(const std::string& file, int width, int height) const {
    image::write_png(path / "images" / file, grey(width, height, [](int x, int y) { return x * 7 + y * 3; }));
  }
  void add_mask(const std::string& file, int width, int height,
                const std::function<int(int, int)>& value) const {
    image::write_png(path / "masks" / file, grey(width, height, value));
  }
  /// An image whose left third is instance 1, the right third instance 5, what is between background.
  void add(const std::string& name, int width = 30, int height = 20) const {
    add_image(name + ".png", width, height);
    add_mask(name + ".png", width, height, [width](int x, int) {
      return x < width / 3 ? 1 : x >= width - width / 3 ? 5 : 0;
    });
  }

  TempDir dir;
  std::filesystem::path path = dir.path() / "nuclei";
};

}  // namespace ddprun::test
