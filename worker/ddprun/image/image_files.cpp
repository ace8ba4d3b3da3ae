#include <ddprun/image/image_files.h>

#include <png.h>

#include <csetjmp>
#include <cstdio>  // required before jpeglib.h
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include <jpeglib.h>
// after jpeglib.h, whose version it checks
#include <jerror.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>

namespace ddprun::image {
namespace {

// libpng and libjpeg leave a failed call by longjmp, so nothing with a destructor may live between setjmp and
// the call.

/// libpng's structures for reading or writing, and what its callbacks use.
struct Png {
  explicit Png(bool writes)
      : writes(writes),
        png(writes ? png_create_write_struct(PNG_LIBPNG_VER_STRING, this, fail, ignore_warning)
                   : png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, ignore_warning)),
        info(png == nullptr ? nullptr : png_create_info_struct(png)) {
    if (info == nullptr) throw std::bad_alloc();
  }
  ~Png() { writes ? png_destroy_write_struct(&png, &info) : png_destroy_read_struct(&png, &info, nullptr); }
  Png(const Png&) = delete;
  Png& operator=(const Png&) = delete;

  [[noreturn]] static void fail(png_structp png, png_const_charp message) {
    static_cast<Png*>(png_get_error_ptr(png))->error = message;
    std::longjmp(png_jmpbuf(png), 1);
  }
  static void ignore_warning(png_structp, png_const_charp) {}

  bool writes;
  std::string error = {};
  std::string_view rest = {};  // still to be read
  std::string written = {};
  png_structp png;
  png_infop info;
};

void read_bytes(png_structp png, png_bytep bytes, png_size_t size) {
  auto& rest = static_cast<Png*>(png_get_io_ptr(png))->rest;
  if (rest.size() < size) png_error(png, "the file ends too soon");
  std::memcpy(bytes, rest.data(), size);
  rest.remove_prefix(size);
}

void write_bytes(png_structp png, png_bytep bytes, png_size_t size) {
  static_cast<Png*>(png_get_io_ptr(png))->written.append(reinterpret_cast<const char*>(bytes), size);
}

void flush_nothing(png_structp) {}

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

/// Reads all rows. throws  IoError
std::vector<std::uint8_t> pixels_of(Png& file, std::string_view bytes, const std::filesystem::path& path,
                                    std::int64_t max_pixels, Values values) {
  file.rest = bytes;
  png_set_read_fn(file.png, &file, read_bytes);
  const auto refuse = [&] { throw IoError(path, "is not a readable PNG file: " + file.error); };
  if (!read_header(file.png, file.info, max_pixels, values)) refuse();
  const std::size_t row = png_get_rowbytes(file.png, file.info),
                    height = png_get_image_height(file.png, file.info);
  std::vector<std::uint8_t> pixels(row * height);
  std::vector<png_bytep> rows;
  for (std::size_t y = 0; y < height; ++y) rows.push_back(pixels.data() + y * row);
  if (!read_pixels(file.png, rows.data())) refuse();
  return pixels;
}

bool write_image(png_structp png, png_infop info, const Image& image, png_textp texts, int count) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  const int type = image.channels == 1   ? PNG_COLOR_TYPE_GRAY
                   : image.channels == 3 ? PNG_COLOR_TYPE_RGB
                                         : PNG_COLOR_TYPE_RGB_ALPHA;
  png_set_IHDR(png, info, static_cast<png_uint_32>(image.width), static_cast<png_uint_32>(image.height), 8,
               type, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_set_text(png, info, texts, count);
  png_write_info(png, info);
  for (int y = 0; y < image.height; ++y) png_write_row(png, image.pixel(0, y));
  png_write_end(png, nullptr);
  return true;
}

// The keywords of a file's texts: the title, and a JSON list of [x, y, width, text, wrong].
constexpr char kTitle[] = "Title", kCaptions[] = "Captions";

std::string captions_text(const std::vector<Caption>& captions) {
  auto list = nlohmann::json::array();
  for (const auto& [x, y, width, text, wrong] : captions) list.push_back({x, y, width, text, wrong});
  return list.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

/// Leaves captions out that another program has damaged.
void read_texts(Png& file, Image& image) {
  png_textp texts = nullptr;
  int count = 0;
  png_get_text(file.png, file.info, &texts, &count);
  for (int i = 0; i < count; ++i) {
    if (std::strcmp(texts[i].key, kTitle) == 0) image.title = texts[i].text;
    if (std::strcmp(texts[i].key, kCaptions) != 0) continue;
    try {
      for (const auto& one : nlohmann::json::parse(texts[i].text))
        image.captions.push_back({one.at(0), one.at(1), one.at(2), one.at(3), one.at(4)});
    } catch (const nlohmann::json::exception&) {
      image.captions.clear();
    }
  }
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

/// libjpeg's structures, and its error.
struct Jpeg {
  ~Jpeg() { jpeg_destroy_decompress(&jpeg); }

  jpeg_decompress_struct jpeg = {};
  jpeg_error_mgr errors = {};
  std::jmp_buf failed = {};
  char message[JMSG_LENGTH_MAX] = "";
};

void fail(j_common_ptr jpeg) {
  auto& decoder = *static_cast<Jpeg*>(jpeg->client_data);
  (*jpeg->err->format_message)(jpeg, decoder.message);
  std::longjmp(decoder.failed, 1);
}

/// Warnings (level < 0) report damage that libjpeg would paint over. Extraneous bytes between segments, which
/// some cameras write, are harmless.
void on_message(j_common_ptr jpeg, int level) {
  if (level < 0 && jpeg->err->msg_code != JWRN_EXTRANEOUS_DATA) fail(jpeg);
}

bool read_jpeg_header(Jpeg& decoder, std::string_view bytes) {
  if (setjmp(decoder.failed) != 0) return false;
  jpeg_create_decompress(&decoder.jpeg);
  jpeg_mem_src(&decoder.jpeg, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&decoder.jpeg, TRUE);
  return true;
}

bool read_jpeg_pixels(Jpeg& decoder, Image& image) {
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

std::string encode_png(const Image& image) {
  check_pixels(image);
  Png file(/*writes=*/true);
  png_set_write_fn(file.png, &file, write_bytes, flush_nothing);
  auto title = image.title, captions = captions_text(image.captions);
  std::vector<png_text> texts;
  const auto add = [&](const char* key, std::string& text) {
    png_text entry = {};
    entry.compression = PNG_ITXT_COMPRESSION_NONE;
    entry.key = const_cast<char*>(key);
    entry.text = text.data();
    texts.push_back(entry);
  };
  if (!title.empty()) add(kTitle, title);
  if (!image.captions.empty()) add(kCaptions, captions);
  if (!write_image(file.png, file.info, image, texts.data(), static_cast<int>(texts.size())))
    throw std::invalid_argument(formatted("a picture of %d x %d pixels cannot be a PNG: %s", image.width,
                                          image.height, file.error.c_str()));
  return std::move(file.written);
}

Image decode_png(std::string_view bytes, const std::filesystem::path& path, std::int64_t max_pixels) {
  Png file(/*writes=*/false);
  Image image;
  image.bytes = pixels_of(file, bytes, path, max_pixels, Values::kColours);
  image.width = static_cast<int>(png_get_image_width(file.png, file.info));
  image.height = static_cast<int>(png_get_image_height(file.png, file.info));
  image.channels = png_get_channels(file.png, file.info);
  read_texts(file, image);
  return image;
}

LabelMap decode_png_labels(std::string_view bytes, const std::filesystem::path& path,
                           std::int64_t max_pixels) {
  Png file(/*writes=*/false);
  const auto pixels = pixels_of(file, bytes, path, max_pixels, Values::kLabels);
  const std::size_t width = png_get_image_width(file.png, file.info),
                    height = png_get_image_height(file.png, file.info);
  LabelMap labels{static_cast<int>(width), static_cast<int>(height),
                  std::vector<std::uint16_t>(width * height)};
  const int channels = png_get_channels(file.png, file.info),
            bytes_each = png_get_bit_depth(file.png, file.info) / 8;
  for (std::size_t y = 0; y < height; ++y)
    if (!take_labels(pixels.data() + y * (pixels.size() / height), width, channels, bytes_each,
                     labels.values.data() + y * width))
      throw IoError(path,
                    "has colours, expected a mask whose grey values or palette entries are instance numbers");
  return labels;
}

void write_png(const std::filesystem::path& path, const Image& image) {
  write_file_atomic(path, encode_png(image));
}

Image read_png(const std::filesystem::path& path) {
  return decode_png(read_file(path, std::size_t{1} << 30), path);
}

Image decode_jpeg(std::string_view bytes, const std::filesystem::path& path, std::int64_t max_pixels) {
  Jpeg decoder;
  auto& jpeg = decoder.jpeg;
  jpeg.err = jpeg_std_error(&decoder.errors);
  decoder.errors.error_exit = fail;
  decoder.errors.emit_message = on_message;
  jpeg.client_data = &decoder;
  const auto refuse = [&](const std::string& why) {
    throw IoError(path, "is not a readable JPEG file: " + why);
  };

  if (!read_jpeg_header(decoder, bytes)) refuse(decoder.message);
  if (jpeg.num_components != 1 && jpeg.num_components != 3)
    refuse(formatted("it has %d channels, expected 1 or 3", jpeg.num_components));
  if (static_cast<std::int64_t>(jpeg.image_width) * jpeg.image_height > max_pixels)
    refuse(formatted("it has too many pixels, %u x %u, expected at most %lld in all", jpeg.image_width,
                     jpeg.image_height, static_cast<long long>(max_pixels)));
  jpeg.out_color_space = jpeg.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  auto image = make_image(static_cast<int>(jpeg.image_width), static_cast<int>(jpeg.image_height),
                          jpeg.num_components);
  if (!read_jpeg_pixels(decoder, image)) refuse(decoder.message);
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
