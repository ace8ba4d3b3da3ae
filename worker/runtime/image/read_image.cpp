#include <ddprun/image/read_image.h>

#include <array>
#include <fstream>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/image/jpeg.h>
#include <ddprun/image/png.h>

namespace ddprun::image {
namespace {

/// An unsigned number, its highest byte first; 0 once the file has ended.
std::int64_t read_number(std::istream& file, int bytes) {
  std::int64_t number = 0;
  for (int i = 0; i < bytes; ++i) number = number << 8 | (file.get() & 0xff);
  return file ? number : 0;
}

/// Goes through a JPEG file's segments to the one that begins a frame; the file stands behind its signature.
std::optional<PictureSize> size_of_jpeg(std::istream& file) {
  for (int segments = 0; segments < 1000; ++segments) {
    const auto marker = read_number(file, 2);
    const auto length = read_number(file, 2);
    if (marker < 0xffc0 || length < 2) return std::nullopt;
    const bool begins_frame = marker <= 0xffcf && marker != 0xffc4 && marker != 0xffc8 && marker != 0xffcc;
    if (!begins_frame) {
      file.seekg(length - 2, std::ios::cur);
      continue;
    }
    file.get();  // bits of a sample
    const auto height = read_number(file, 2), width = read_number(file, 2);
    return PictureSize{width, height};
  }
  return std::nullopt;
}

}  // namespace

std::optional<PictureSize> peek_size(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;  // a FIFO would wait
  std::ifstream file(path, std::ios::binary);
  std::optional<PictureSize> size;
  if (const auto begin = read_number(file, 2); begin == 0xffd8) {
    size = size_of_jpeg(file);
  } else if (begin == 0x8950) {
    file.seekg(16);
    const auto width = read_number(file, 4), height = read_number(file, 4);
    size = PictureSize{width, height};
  }
  return file && size && size->width > 0 && size->height > 0 ? size : std::nullopt;
}

Image decode_image(std::string_view bytes, const std::filesystem::path& path, std::int64_t max_pixels) {
  if (bytes.starts_with("\x89PNG")) return decode_png(bytes, path, max_pixels);
  if (bytes.starts_with("\xff\xd8")) return decode_jpeg(bytes, path, max_pixels);
  throw IoError(path, bytes.empty() ? "is empty, expected a PNG or JPEG image"
                                    : "is neither a PNG nor a JPEG image, by how it begins");
}

Image read_image(const std::filesystem::path& path, std::int64_t max_pixels) {
  return decode_image(read_file(open_regular_file(path), path, std::size_t{1} << 30), path, max_pixels);
}

}  // namespace ddprun::image
