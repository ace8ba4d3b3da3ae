#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <ddprun/image/image.h>

using cairo_t = struct _cairo;

namespace ddprun::image {

struct Colour {
  double red = 0, green = 0, blue = 0, alpha = 1;
};
constexpr Colour kInk{0.13, 0.14, 0.16};
constexpr Colour kQuietInk{0.38, 0.4, 0.43};
constexpr Colour kGridLine{0.87, 0.88, 0.9};
constexpr Colour kWrong{0.78, 0.1, 0.1};

/// The colour of series i: one of seven that most people can tell apart (Okabe and Ito 2008), repeated.
Colour colour_of(std::size_t index);

using Draw = std::function<void(cairo_t*)>;

/// Pixels per unit of a picture's width and height: sharp on high-density screens. Pages measure pictures in
/// units.
constexpr int kPixelScale = 2;

/// Runs draw() on a white ground, width x height units. returns  RGB; throws std::runtime_error with Cairo's
/// message
Image draw_image(int width, int height, const Draw& draw);
/// The same as an SVG file, with a transparent ground.
std::string draw_svg(int width, int height, const Draw& draw);

/// An RGB picture as RGBA, almost opaque (254): in dark mode the report page inverts drawings but leaves the
/// opaque pictures pasted on them alone.
Image as_drawing(const Image& picture);

/// A small picture of this text, for when there is nothing to draw.
Image draw_note(const std::string& text);

void set_colour(cairo_t* cairo, Colour colour);

enum class Align { left, centre, right };
struct TextStyle {
  double size = 13;  ///< units
  Align align = Align::left;
  bool bold = false;
  Colour colour = kInk;
};
/// Draws one line of text, vertically centred at y. Any bytes; invalid UTF-8 is replaced.
void draw_text(cairo_t* cairo, double x, double y, std::string_view text, const TextStyle& style);
/// The same, turned by 90 degrees to read upwards.
void draw_text_upwards(cairo_t* cairo, double x, double y, std::string_view text, const TextStyle& style);
double text_width(cairo_t* cairo, std::string_view text, const TextStyle& style);

/// The text, ending in "..." if it is wider than this.
std::string fitted(cairo_t* cairo, const std::string& text, double width, const TextStyle& style);

}  // namespace ddprun::image
