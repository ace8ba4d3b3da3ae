#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ddprun/image/image.h>

namespace ddprun::image {

/// How often class `row` was predicted as class `column`.
struct ConfusionMatrix {
  std::vector<std::string> classes;
  std::vector<std::int64_t> counts;  ///< classes x classes, row by row; rows are the true classes
};

/// Draws cells shaded by their share of the row, with counts where they fit, and the accuracy in the title.
/// From 1 to 1000 classes.
///
/// size    units of each side (kPixelScale), at least 200
/// throws  std::invalid_argument unless there are classes squared counts, all >= 0, and 1 .. 1000 classes
Image draw_confusion_matrix(const ConfusionMatrix& matrix, const std::string& title = "confusion matrix",
                            int size = 720);

}  // namespace ddprun::image
