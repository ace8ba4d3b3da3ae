#include <ddprun/image/png.h>

#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>

namespace ddprun::image {
namespace {

/// libpng's structures for reading, and what its callbacks use. libpng leaves a failed call by longjmp, so
/// nothing with a destructor may live between setjmp and the call.
struct PngReader {
  explicit PngReader(std::string_view bytes);
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  std::string_view rest;  // still to be read
  std::string error = {};
  png_structp png;
  png_infop info;
};

void fail(png_structp png, png_const_charp message) {
  static_cast<PngReader*>(png_get_error_ptr(png))->error = message;
  std::longjmp(png_jmpbuf(png), 1);
}

void ignore_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep bytes, png_size_t size) {
  auto& rest = static_cast<PngReader*>(png_get_io_ptr(png))->rest;
  if (rest.size() < size) png_error(png, "the file ends too soon");
  std::memcpy(bytes, rest.data(), size);
  rest.remove_prefix(size);
}

PngReader::PngReader(std::string_view bytes)
    : rest(bytes),
      png(png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, ignore_warning)),
      info(png == nullptr ? nullptr : png_create_info_struct(png)) {
  if (info == nullptr) throw std::bad_alloc();
  png_set_read_fn(png, this, read_bytes);
}

std::vector<png_bytep> rows_of(std::vector<png_byte>& bytes, std::size_t height) {
  std::vector<png_bytep> rows;
  for (std::size_t y = 0; y < height; ++y) rows.push_back(bytes.data() + y * (bytes.size() / height));
  return rows;
}

enum class Values { kColours, kLabels };

/// Reads up to the pixels and requests 8 bits per channel, and RGB if transparent; for labels, requests
/// unchanged values in whole bytes.
bool read_header(png_structp png, png_infop info, std::int64_t max_pixels, Values values) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_read_info(png, info);
  const auto width = png_get_image_width(png, info), height = png_get_image_height(png, info);
  if (static_cast<std::int64_t>(width) * height > max_pixels) {
    char message[128];
    std::snprintf(message, sizeof message, "it has too many pixels, %u x %u, expected at most %lld in all",
                  width, height, static_cast<long long>(max_pixels));
    png_error(png, message);
  }
  if (values == Values::kLabels) {
    png_set_packing(png);
    png_set_strip_alpha(png);
  } else {
    png_set_expand(png);
    png_set_strip_16(png);  // as Pillow does
    const bool transparent = (png_get_color_type(png, info) & PNG_COLOR_MASK_ALPHA) != 0 ||
                             png_get_valid(png, info, PNG_INFO_tRNS) != 0;
    if (transparent) png_set_gray_to_rgb(png);
  }
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  return true;
}

bool read_pixels(png_structp png, png_bytepp rows) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_read_image(png, rows);
  png_read_end(png, nullptr);
  return true;
}

/// Reads a row's values. returns  false if a pixel is not grey
bool take_labels(const png_byte* row, std::size_t width, int channels, int bytes_each, std::uint16_t* out) {
  const auto channel_at = [&](std::size_t i) {
    const auto* at = row + i * static_cast<std::size_t>(bytes_each);
    return static_cast<std::uint16_t>(bytes_each == 2 ? at[0] << 8 | at[1] : at[0]);
  };
  const auto count = static_cast<std::size_t>(channels);
  for (std::size_t x = 0; x < width; ++x) {
    out[x] = channel_at(x * count);
    for (std::size_t i = 1; i < count; ++i)
      if (channel_at(x * count + i) != out[x]) return false;
  }
  return true;
}

}  // namespace

std::string encode_png(const Image& image) {
  check_pixels(image);
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = image.channels == 1 ? PNG_FORMAT_GRAY : image.channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::string bytes(size, '\0');
  if (png_image_write_to_memory(&png, bytes.data(), &size, 0, image.bytes.data(), 0, nullptr) == 0)
    throw std::invalid_argument("a picture of " + std::to_string(image.width) + " x " +
                                std::to_string(image.height) + " pixels cannot be a PNG: " + png.message);
  bytes.resize(size);
  return bytes;
}

Image decode_png(std::string_view bytes, const std::filesystem::path& path, std::int64_t max_pixels) {
  PngReader reader(bytes);
  const auto refuse = [&] { throw IoError(path, "is not a readable PNG file: " + reader.error); };
  if (!read_header(reader.png, reader.info, max_pixels, Values::kColours)) refuse();
  auto image = make_image(static_cast<int>(png_get_image_width(reader.png, reader.info)),
                          static_cast<int>(png_get_image_height(reader.png, reader.info)),
                          png_get_channels(reader.png, reader.info));
  auto rows = rows_of(image.bytes, static_cast<std::size_t>(image.height));
  if (!read_pixels(reader.png, rows.data())) refuse();
  return image;
}

LabelMap decode_png_labels(std::string_view bytes, const std::filesystem::path& path,
                           std::int64_t max_pixels) {
  PngReader reader(bytes);
  const auto refuse = [&] { throw IoError(path, "is not a readable PNG file: " + reader.error); };
  if (!read_header(reader.png, reader.info, max_pixels, Values::kLabels)) refuse();
  const std::size_t width = png_get_image_width(reader.png, reader.info),
                    height = png_get_image_height(reader.png, reader.info);
  std::vector<png_byte> pixels(png_get_rowbytes(reader.png, reader.info) * height);
  auto rows = rows_of(pixels, height);
  if (!read_pixels(reader.png, rows.data())) refuse();
  LabelMap labels{static_cast<int>(width), static_cast<int>(height),
                  std::vector<std::uint16_t>(width * height)};
  const int channels = png_get_channels(reader.png, reader.info),
            bytes_each = png_get_bit_depth(reader.png, reader.info) / 8;
  for (std::size_t y = 0; y < height; ++y)
    if (!take_labels(rows[y], width, channels, bytes_each, labels.values.data() + y * width))
      throw IoError(path, "has colours, expected a mask: grey numbers of instances, or a palette's");
  return labels;
}

void write_png(const std::filesystem::path& path, const Image& image) {
  write_file_atomic(path, encode_png(image));
}

Image read_png(const std::filesystem::path& path) {
  return decode_png(read_file(path, std::size_t{1} << 30), path);
}

}  // namespace ddprun::image
