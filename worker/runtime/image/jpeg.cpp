#include <ddprun/image/jpeg.h>

#include <csetjmp>
#include <cstdio>  // which jpeglib.h needs before it
#include <string>

#include <jpeglib.h>
// after jpeglib.h, whose version it asks for
#include <jerror.h>

#include <ddprun/common/errors.h>

namespace ddprun::image {
namespace {

/// libjpeg leaves a failed call by longjmp, so nothing with a destructor may live between setjmp and the
/// call.
struct Decoder {
  jpeg_decompress_struct jpeg = {};
  jpeg_error_mgr errors = {};
  std::jmp_buf failed = {};
  char message[JMSG_LENGTH_MAX] = "";
};

Decoder& decoder_of(j_common_ptr jpeg) { return *static_cast<Decoder*>(jpeg->client_data); }

void fail(j_common_ptr jpeg) {
  auto& decoder = decoder_of(jpeg);
  (*jpeg->err->format_message)(jpeg, decoder.message);
  std::longjmp(decoder.failed, 1);
}

/// A warning is of damage that libjpeg would paint over; a message of another level is chatter. Bytes between
/// two segments, which some cameras leave there, damage nothing.
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

/// Ends what jpeg_create_decompress began.
struct DestroyAtEnd {
  jpeg_decompress_struct& jpeg;
  ~DestroyAtEnd() { jpeg_destroy_decompress(&jpeg); }
};

}  // namespace

Image decode_jpeg(std::string_view bytes, const std::filesystem::path& path, std::int64_t max_pixels) {
  Decoder decoder;
  auto& jpeg = decoder.jpeg;
  jpeg.err = jpeg_std_error(&decoder.errors);
  decoder.errors.error_exit = fail;
  decoder.errors.emit_message = on_message;
  jpeg.client_data = &decoder;
  const DestroyAtEnd end{jpeg};
  const auto refuse = [&](const std::string& why) {
    throw IoError(path, "is no JPEG file that can be read: " + why);
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

}  // namespace ddprun::image
