#include <ddprun/image/drawing.h>

#include <cairo-svg.h>
#include <cairo.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numbers>
#include <stdexcept>

#include <ddprun/common/text.h>

namespace ddprun::image {
namespace {

using Surface = std::unique_ptr<cairo_surface_t, decltype(&cairo_surface_destroy)>;
using Context = std::unique_ptr<cairo_t, decltype(&cairo_destroy)>;

void check(cairo_status_t status) {
  if (status == CAIRO_STATUS_NO_MEMORY) throw std::bad_alloc();
  if (status != CAIRO_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cannot draw: ") + cairo_status_to_string(status));
}

void run(cairo_surface_t* surface, bool white_ground, const Draw& draw) {
  const Context cairo(cairo_create(surface), cairo_destroy);
  check(cairo_status(cairo.get()));
  if (white_ground) {
    set_colour(cairo.get(), {1, 1, 1});
    cairo_paint(cairo.get());
  }
  draw(cairo.get());
  check(cairo_status(cairo.get()));
}

cairo_status_t append(void* text, const unsigned char* bytes, unsigned size) {
  static_cast<std::string*>(text)->append(reinterpret_cast<const char*>(bytes), size);
  return CAIRO_STATUS_SUCCESS;
}

void set_font(cairo_t* cairo, const TextStyle& style) {
  cairo_select_font_face(cairo, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                         style.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(cairo, style.size);
}

/// The text as one line, cut to what anyone would read, because measuring takes time.
std::string showable(std::string_view text) { return one_line(valid_utf8(text.substr(0, 400))); }

double advance(cairo_t* cairo, const std::string& text) {
  cairo_text_extents_t extents;
  cairo_text_extents(cairo, text.c_str(), &extents);
  return extents.x_advance;
}

}  // namespace

Colour colour_of(std::size_t index) {
  constexpr std::array<Colour, 7> kColours = {{{0.0, 0.447, 0.698},
                                               {0.835, 0.369, 0.0},
                                               {0.0, 0.62, 0.451},
                                               {0.8, 0.475, 0.655},
                                               {0.902, 0.624, 0.0},
                                               {0.337, 0.706, 0.914},
                                               {0.35, 0.35, 0.35}}};
  return kColours[index % kColours.size()];
}

Image draw_image(int width, int height, const Draw& draw) {
  width *= kPixelScale, height *= kPixelScale;
  const Surface surface(cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height), cairo_surface_destroy);
  check(cairo_surface_status(surface.get()));
  cairo_surface_set_device_scale(surface.get(), kPixelScale, kPixelScale);
  run(surface.get(), true, draw);
  cairo_surface_flush(surface.get());
  auto image = make_image(width, height, 3);
  for (int y = 0; y < height; ++y) {
    const auto* row = cairo_image_surface_get_data(surface.get()) +
                      static_cast<std::ptrdiff_t>(y) * cairo_image_surface_get_stride(surface.get());
    for (int x = 0; x < width; ++x) {
      std::uint32_t word = 0;  // 0x00rrggbb
      std::memcpy(&word, row + 4 * x, sizeof word);
      auto* pixel = image.pixel(x, y);
      for (int channel = 0; channel < 3; ++channel)
        pixel[channel] = static_cast<std::uint8_t>(word >> (16 - 8 * channel));
    }
  }
  return image;
}

std::string draw_svg(int width, int height, const Draw& draw) {
  std::string svg;
  const Surface surface(cairo_svg_surface_create_for_stream(append, &svg, width, height),
                        cairo_surface_destroy);
  check(cairo_surface_status(surface.get()));
  cairo_svg_surface_set_document_unit(surface.get(), CAIRO_SVG_UNIT_PX);
  run(surface.get(), false, draw);
  cairo_surface_finish(surface.get());  // writes the rest
  check(cairo_surface_status(surface.get()));
  return svg;
}

Image as_drawing(const Image& picture) {
  auto drawing = make_image(picture.width, picture.height, 4, 254);
  for (int y = 0; y < picture.height; ++y)
    for (int x = 0; x < picture.width; ++x) std::copy_n(picture.pixel(x, y), 3, drawing.pixel(x, y));
  return drawing;
}

Image draw_note(const std::string& text) {
  return as_drawing(draw_image(200, 60, [&](cairo_t* cairo) {
    draw_text(cairo, 100, 30, text, {.align = Align::centre, .colour = kQuietInk});
  }));
}

void set_colour(cairo_t* cairo, Colour colour) {
  cairo_set_source_rgba(cairo, colour.red, colour.green, colour.blue, colour.alpha);
}

double text_width(cairo_t* cairo, std::string_view text, const TextStyle& style) {
  set_font(cairo, style);
  return advance(cairo, showable(text));
}

void draw_text(cairo_t* cairo, double x, double y, std::string_view text, const TextStyle& style) {
  const auto shown = showable(text);
  set_font(cairo, style);
  set_colour(cairo, style.colour);
  const double width = style.align == Align::left ? 0 : advance(cairo, shown);
  constexpr double kHalfHeight = 0.36;  // of a capital letter, relative to the font size
  cairo_move_to(cairo, x - (style.align == Align::centre ? width / 2 : width), y + kHalfHeight * style.size);
  cairo_show_text(cairo, shown.c_str());
}

void draw_text_upwards(cairo_t* cairo, double x, double y, std::string_view text, const TextStyle& style) {
  cairo_save(cairo);
  cairo_translate(cairo, x, y);
  cairo_rotate(cairo, -std::numbers::pi / 2);
  draw_text(cairo, 0, 0, text, style);
  cairo_restore(cairo);
}

std::string fitted(cairo_t* cairo, const std::string& text, double width, const TextStyle& style) {
  if (text_width(cairo, text, style) <= width) return text;
  std::string cut = showable(text);
  while (!cut.empty()) {
    while (is_continuation(cut.back())) cut.pop_back();
    cut.pop_back();
    if (text_width(cairo, cut + "...", style) <= width) return cut + "...";
  }
  return "";
}

}  // namespace ddprun::image
