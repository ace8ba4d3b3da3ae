#pragma once

#include <string>
#include <vector>

#include <ddprun/image/image.h>

namespace ddprun::sam {

/// A point of a prompt in pixels of its picture; 0, 0 is the middle of the top left pixel.
struct PointMark {
  double x = 0;
  double y = 0;
  bool foreground = true;
};

/// A picture with its prompt, the true mask and the predicted one. The three may differ in size.
struct PredictionRow {
  image::Image picture;           ///< 1, 3 or 4 channels
  std::vector<PointMark> points;  ///< may be empty
  image::Image truth;             ///< 1 channel, white where it is not 0
  image::Image predicted;         ///< the same
};

/// Draws rows of picture, truth, prediction and both over the picture, titled "Training Image with Points"
/// (`part` replaces Training), "Ground Truth Mask", "Predicted Mask" and "Truth Green, Prediction Orange".
/// Foreground points are a red x, background points a blue one. All rows have the same width; pictures keep
/// their proportions.
///
/// rows     only the first five are drawn
/// returns  RGBA with a transparent ground, and the titles as captions; without rows, a small one with the
///          caption "no samples"
/// throws   std::invalid_argument for a picture that encode_png() refuses, or a coloured mask
image::Image draw_prediction_rows(const std::vector<PredictionRow>& rows,
                                  const std::string& part = "Training");

}  // namespace ddprun::sam
