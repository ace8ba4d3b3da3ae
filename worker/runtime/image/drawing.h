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

/// The colour of the i-th of many, told apart by most eyes (Okabe and Ito 2008); they begin again after
/// seven.
Colour colour_of(std::size_t index);

using Draw = std::function<void(cairo_t*)>;

/// What draw() draws, as RGB on white. throws std::runtime_error with Cairo's words if it fails
Image draw_image(int width, int height, const Draw& draw);
/// The same as an SVG file, on nothing.
std::string draw_svg(int width, int height, const Draw& draw);

void set_colour(cairo_t* cairo, Colour colour);

enum class Align { left, centre, right };
struct TextStyle {
  double size = 13;  ///< pixels
  Align align = Align::left;
  bool bold = false;
  Colour colour = kInk;
};
/// One line of text, its middle at the height y. Any bytes: what is no UTF-8 is replaced.
void draw_text(cairo_t* cairo, double x, double y, std::string_view text, const TextStyle& style);
double text_width(cairo_t* cairo, std::string_view text, const TextStyle& style);

/// The text with "..." in place of its end where it is wider.
std::string fitted(cairo_t* cairo, const std::string& text, double width, const TextStyle& style);

}  // namespace ddprun::image
