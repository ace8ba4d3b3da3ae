#pragma once

#include <optional>
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
  std::optional<double> dice = {};
};

// Pictures are stretched in contrast as matplotlib's imshow() shows one channel of floats: of a grey picture
// the darkest pixel becomes black and the lightest white. Colours stay as they are. All throw
// std::invalid_argument for a picture that encode_png() refuses, or a coloured mask.

/// Draws rows of picture, truth, prediction and both over the picture, titled "Training Image with Points"
/// (`part` replaces Training), "Ground Truth Mask", "Predicted Mask, Dice 0.8312" and "Truth Green,
/// Prediction Orange". Foreground points are a red x, background points a blue one. All rows have the same
/// width; pictures keep their proportions.
///
/// rows     only the first five are drawn
/// returns  RGBA with a transparent ground, and the titles as captions; without rows, a small one with the
///          caption "no samples"
image::Image draw_prediction_rows(const std::vector<PredictionRow>& rows,
                                  const std::string& part = "Training");

/// Draws only the last picture of each of the first five rows, smaller and side by side, with "Dice 0.8312"
/// below it.
image::Image draw_overlays(const std::vector<PredictionRow>& rows);

/// The picture as RGBA, stretched like the others, at most `longest` pixels wide and high.
image::Image shown_picture(const image::Image& picture, int longest);

/// Draws the picture, a small one enlarged, with the predicted mask in orange, its outline and the points;
/// the row's truth may be missing.
image::Image draw_prediction(const PredictionRow& row);

}  // namespace ddprun::sam
