#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace ddprun::train {

/// Where an epoch stands, for the bar.
struct BarState {
  std::string label;       ///< "epoch 1/5"
  std::int64_t done = 0;   ///< batches
  std::int64_t total = 0;  ///< batches
  double seconds = 0;      ///< since the epoch began
  double samples_per_second = 0;
  double loss = 0;
  std::string measure = {};  ///< of the epoch so far: "acc 0.8731"; empty: none
  std::int64_t first = 0;    ///< batches that were done before `seconds` began: of a resumed epoch
};

/// One line of at most `columns` characters:
///   epoch 1/5  45% |#######         | 105/235 [00:12<00:15, 2134 samples/s, loss 0.4120, acc 0.8731]
/// Where the terminal is too narrow the bar itself goes first, then the line's end.
std::string render_bar(const BarState& state, int columns);

/// A progress bar on the terminal's last line, below the log lines. Silent unless stderr is a terminal.
class Progress {
 public:
  /// enabled  false keeps it silent on a terminal too
  explicit Progress(bool enabled);

  /// Whether update() would draw: what the bar tells may cost time to find out.
  bool due() const;
  /// Redraws the bar, ten times a second at most.
  void update(const BarState& state);
  /// Takes the bar away, for log lines or for good.
  void clear();

 private:
  bool enabled_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_draw_{};
};

}  // namespace ddprun::train
