#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace ddprun::train {

/// The progress of an epoch, for the bar.
struct BarState {
  std::string label;       ///< "epoch 1/5"
  std::int64_t done = 0;   ///< batches
  std::int64_t total = 0;  ///< batches
  double seconds = 0;      ///< since the epoch began
  double samples_per_second = 0;
  double loss = 0;
  std::string measure = {};  ///< "acc 0.8731"; empty: none
  std::int64_t first = 0;    ///< batches done before a resumed epoch began
  double run_left = 0;       ///< estimated seconds of the run after this epoch; 0: this is the last
};

/// How the bar is drawn.
struct BarStyle {
  bool blocks = false;  ///< Unicode blocks, in eighths of a column, instead of '#'
  bool colour = false;
};

/// One line of at most `columns` characters:
///   epoch 1/5  45% |#######         | 105/235 [00:12<00:15, run 04:10, 2134 samples/s, loss 0.4120]
/// If the terminal is too narrow, the bar shrinks first, then the line is cut.
std::string render_bar(const BarState& state, int columns, BarStyle style = {});

/// A progress bar on the terminal's last line, below the log, with blocks and colour if the terminal and
/// locale support them. Silent unless stderr is a terminal.
class Progress {
 public:
  /// enabled  false: silent even on a terminal
  explicit Progress(bool enabled);

  /// Whether update() would draw now; computing the state may take time.
  bool due() const;
  /// Redraws the bar, at most ten times a second.
  void update(const BarState& state);
  /// Erases the bar.
  void clear();

 private:
  bool enabled_;
  BarStyle style_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_draw_{};
};

}  // namespace ddprun::train
