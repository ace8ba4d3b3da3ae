#include <ddprun/train/record/progress.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>

namespace ddprun::train {
namespace {

std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(std::min(seconds, 359999.0));
  return whole >= 3600 ? formatted("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60)
                       : formatted("%02lld:%02lld", whole / 60, whole % 60);
}

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string in_hashes(double fraction, int width) {
  const auto filled = static_cast<std::size_t>(width * fraction);
  return std::string(filled, '#') + std::string(static_cast<std::size_t>(width) - filled, ' ');
}

std::string in_blocks(double fraction, int width) {
  constexpr std::array kEighths = {" ",      "\u258f", "\u258e", "\u258d", "\u258c",
                                   "\u258b", "\u258a", "\u2589", "\u2588"};
  const auto eighths = static_cast<int>(8 * width * fraction);
  std::string bar;
  for (int column = 0; column < width; ++column)
    bar += kEighths[static_cast<std::size_t>(std::clamp(eighths - 8 * column, 0, 8))];
  return bar;
}

/// As the C library would decide, without setting the program's locale.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') {
      const auto text = lower_case(value);
      return text.find("utf-8") != text.npos || text.find("utf8") != text.npos;
    }
  return false;
}

void write_stderr(const std::string& text) {
  // Losing the terminal must not end the training.
  [[maybe_unused]] const auto ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::string render_bar(const BarState& state, int columns, BarStyle style) {
  const double fraction =
      state.total > 0 ? static_cast<double>(state.done) / static_cast<double>(state.total) : 1.0;
  const auto done = static_cast<double>(state.done - state.first);
  const double left = done > 0 ? state.seconds / done * static_cast<double>(state.total - state.done) : 0;
  const auto run = state.run_left > 0 && done > 0 ? ", run " + clock_text(left + state.run_left) : "";
  const auto begin = formatted("%.40s %3.0f%% |", state.label.c_str(), 100 * fraction);
  const auto end =
      formatted("| %lld/%lld [%s<%s%s, %.0f samples/s, loss %.4f%s%.40s]", static_cast<long long>(state.done),
                static_cast<long long>(state.total), clock_text(state.seconds).c_str(),
                clock_text(left).c_str(), run.c_str(), state.samples_per_second, state.loss,
                state.measure.empty() ? "" : ", ", state.measure.c_str());
  constexpr int kMaxWidth = 40;
  const int width = std::clamp(columns - static_cast<int>(begin.size() + end.size()), 0, kMaxWidth);
  if (width == 0) return (begin + end).substr(0, static_cast<std::size_t>(std::max(columns, 0)));
  const std::string bar = style.blocks ? in_blocks(fraction, width) : in_hashes(fraction, width);
  return begin + (style.colour ? "\x1b[32m" + bar + "\x1b[0m" : bar) + end;
}

Progress::Progress(bool enabled) : enabled_(enabled && ::isatty(STDERR_FILENO) == 1) {
  style_.colour = takes_colours(STDERR_FILENO);
  style_.blocks = style_.colour && locale_is_utf8();
}

bool Progress::due() const { return enabled_ && (!drawn_ || std::chrono::steady_clock::now() >= next_draw_); }

void Progress::update(const BarState& state) {
  if (!due()) return;
  next_draw_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  drawn_ = true;
  // One column stays free: some terminals wrap a full line.
  std::string text = "\r";
  text.append(render_bar(state, terminal_columns() - 1, style_)).append("\x1b[K");
  write_stderr(text);
}

void Progress::clear() {
  if (!drawn_) return;
  drawn_ = false;
  write_stderr("\r\x1b[K");
}

}  // namespace ddprun::train
