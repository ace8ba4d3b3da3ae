#include "worker/image/read_image.h"

#include "common/errors.h"
#include "common/files.h"
#include "worker/image/jpeg.h"
#include "worker/image/png.h"

namespace ddprun::image {

Image decode_image(std::string_view bytes, const std::filesystem::path& path, std::int64_t max_pixels) {
  if (bytes.starts_with("\x89PNG")) return decode_png(bytes, path, max_pixels);
  if (bytes.starts_with("\xff\xd8")) return decode_jpeg(bytes, path, max_pixels);
  throw IoError(path, bytes.empty() ? "is empty, expected a PNG or JPEG image"
                                    : "is neither a PNG nor a JPEG image, by how it begins");
}

Image read_image(const std::filesystem::path& path, std::int64_t max_pixels) {
  return decode_image(read_file(path, std::size_t{1} << 30), path, max_pixels);
}

}  // namespace ddprun::image
