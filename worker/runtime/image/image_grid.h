#pragma once

#include <string>
#include <vector>

#include <ddprun/image/image.h>

namespace ddprun::image {

/// A small picture with a caption of one or more lines: "pred 3 / true 5".
struct Tile {
  Image picture;  ///< 1, 3 or 4 channels
  std::string caption;
  bool wrong = false;  ///< frame and caption in red
};

/// Draws the tiles in rows, each picture scaled to the same square without smoothing, keeping its
/// proportions.
///
/// columns   0: makes the grid about square
/// returns   RGBA, as_drawing(); a small picture saying so if there are no tiles
/// throws    std::invalid_argument for a picture that encode_png() refuses
Image draw_image_grid(const std::vector<Tile>& tiles, const std::string& title = "", int columns = 0);

}  // namespace ddprun::image
