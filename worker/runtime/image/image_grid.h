#pragma once

#include <string>
#include <vector>

#include <ddprun/image/image.h>

namespace ddprun::image {

/// A small picture and what stands under it: "pred 3 / true 5", or lines with a line end between.
struct Tile {
  Image picture;  ///< 1, 3 or 4 channels
  std::string caption;
  bool wrong = false;  ///< framed, and the caption written, in red
};

/// The tiles in rows, each picture enlarged to the same square without smoothing, its proportions kept.
///
/// columns   0: as many as make the grid about as wide as high
/// returns   RGB; a small picture that says so if there is no tile
/// throws    std::invalid_argument for a picture that encode_png() would refuse
Image draw_image_grid(const std::vector<Tile>& tiles, const std::string& title = "", int columns = 0);

}  // namespace ddprun::image
