#include <ddprun/image/read_image.h>

#include <csetjmp>
#include <cstdio>  // required before jpeglib.h
#include <fstream>
#include <string>
#include <system_error>

#include <jpeglib.h>
// after jpeglib.h, whose version it checks
#include <jerror.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/image/png.h>

namespace ddprun::image {
namespace {

/// libjpeg leaves a failed call by longjmp, so nothing with a destructor may live between setjmp and the
/// call.
struct Decoder {
  ~Decoder() { jpeg_destroy_decompress(&jpeg); }

  jpeg_decompress_struct jpeg = {};
  jpeg_error_mgr errors = {};
  std::jmp_buf failed = {};
  char message[JMSG_LENGTH_MAX] = "";
};

void fail(j_common_ptr jpeg) {
  auto& decoder = *static_cast<Decoder*>(jpeg->client_data);
  (*jpeg->err->format_message)(jpeg, decoder.message);
  std::longjmp(decoder.failed, 1);
}

/// Warnings (level < 0) report damage that libjpeg would paint over. Extraneous bytes between segments, which
/// some cameras write, are harmless.
void on_message(j_common_ptr jpeg, int level) {
  if (level < 0 && jpeg->err->msg_code != JWRN_EXTRANEOUS_DATA) fail(jpeg);
}

bool read_header(Decoder& decoder, std::string_view bytes) {
  if (setjmp(decoder.failed) != 0) return false;
  jpeg_create_decompress(&decoder.jpeg);
  jpeg_mem_src(&decoder.jpeg, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&decoder.jpeg, TRUE);
  return true;
}

bool read_pixels(Decoder& decoder, Image& image) {
  if (setjmp(decoder.failed) != 0) return false;
  jpeg_start_decompress(&decoder.jpeg);
  while (decoder.jpeg.output_scanline < decoder.jpeg.output_height) {
    JSAMPROW row = image.pixel(0, static_cast<int>(decoder.jpeg.output_scanline));
    jpeg_read_scanlines(&decoder.jpeg, &row, 1);
  }
  jpeg_finish_decompress(&decoder.jpeg);
  return true;
}

/// A big-endian unsigned number; 0 past the file's end.
std::int64_t read_number(std::istream& file, int bytes) {
  std::int64_t number = 0;
  for (int i = 0; i < bytes; ++i) number = number << 8 | (file.get() & 0xff);
  return file ? number : 0;
}

/// Skips a JPEG file's segments up to the start of a frame; the file position is behind the signature.
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

Image decode_jpeg(std::string_view bytes, const std::filesystem::path& path, std::int64_t max_pixels) {
  Decoder decoder;
  auto& jpeg = decoder.jpeg;
  jpeg.err = jpeg_std_error(&decoder.errors);
  decoder.errors.error_exit = fail;
  decoder.errors.emit_message = on_message;
  jpeg.client_data = &decoder;
  const auto refuse = [&](const std::string& why) {
    throw IoError(path, "is not a readable JPEG file: " + why);
  };

  if (!read_header(decoder, bytes)) refuse(decoder.message);
  if (jpeg.num_components != 1 && jpeg.num_components != 3)
    refuse("it has " + std::to_string(jpeg.num_components) + " channels, expected 1 or 3");
  if (static_cast<std::int64_t>(jpeg.image_width) * jpeg.image_height > max_pixels)
    refuse("it has too many pixels, " + std::to_string(jpeg.image_width) + " x " +
           std::to_string(jpeg.image_height) + ", expected at most " + std::to_string(max_pixels) +
           " in all");
  jpeg.out_color_space = jpeg.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  auto image = make_image(static_cast<int>(jpeg.image_width), static_cast<int>(jpeg.image_height),
                          jpeg.num_components);
  if (!read_pixels(decoder, image)) refuse(decoder.message);
  return image;
}

std::optional<PictureSize> peek_size(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;  // opening a FIFO would block
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
  throw IoError(
      path, bytes.empty() ? "is empty, expected a PNG or JPEG image" : "is neither a PNG nor a JPEG image");
}

Image read_image(const std::filesystem::path& path, std::int64_t max_pixels) {
  return decode_image(read_file(open_regular_file(path), path, std::size_t{1} << 30), path, max_pixels);
}

}  // namespace ddprun::image
