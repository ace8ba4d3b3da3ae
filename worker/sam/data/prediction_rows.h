#pragma once

#include <string>
#include <vector>

#include <ddprun/image/image.h>

namespace ddprun::image {

/// A point of a prompt, in pixels of its picture, whose top left pixel has its middle at 0, 0.
struct PointMark {
  double x = 0;
  double y = 0;
  bool foreground = true;
};

/// A picture with points, and what of it was meant and predicted. The three may differ in size.
struct PredictionRow {
  Image picture;                  ///< 1, 3 or 4 channels
  std::vector<PointMark> points;  ///< none: none is shown
  Image truth;                    ///< 1 channel, white where it is not 0
  Image predicted;                ///< the same
};

/// Rows of picture, truth and prediction, each under its title: "Training Image with Points" (or another
/// `part` than Training), "Ground Truth Mask", "Predicted Mask". Points of the foreground are a red x, those
/// of the background a blue one. All rows are as wide; each picture keeps its proportions.
///
/// rows     the first five are drawn
/// returns  RGB on white; a small picture that says so if there is no row
/// throws   std::invalid_argument for a picture that encode_png() would refuse, or a mask with colours
Image draw_prediction_rows(const std::vector<PredictionRow>& rows, const std::string& part = "Training");

}  // namespace ddprun::image
