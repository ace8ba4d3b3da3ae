#include <ddprun/train/record/progress.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace ddprun::train {
namespace {

std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(std::min(seconds, 359999.0));
  char text[32];
  if (whole >= 3600)
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  else
    std::snprintf(text, sizeof text, "%02lld:%02lld", whole / 60, whole % 60);
  return text;
}

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void write_stderr(const std::string& text) {
  // Losing the terminal must not end the training.
  [[maybe_unused]] const auto ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::string render_bar(const BarState& state, int columns) {
  const double fraction =
      state.total > 0 ? static_cast<double>(state.done) / static_cast<double>(state.total) : 1.0;
  const auto done = static_cast<double>(state.done - state.first);
  const double left = done > 0 ? state.seconds / done * static_cast<double>(state.total - state.done) : 0;
  char head[80], tail[160];
  std::snprintf(head, sizeof head, "%.40s %3.0f%% |", state.label.c_str(), 100 * fraction);
  std::snprintf(tail, sizeof tail, "| %lld/%lld [%s<%s, %.0f samples/s, loss %.4f%s%.40s]",
                static_cast<long long>(state.done), static_cast<long long>(state.total),
                clock_text(state.seconds).c_str(), clock_text(left).c_str(), state.samples_per_second,
                state.loss, state.measure.empty() ? "" : ", ", state.measure.c_str());
  const std::string begin(head), end(tail);
  constexpr int kMaxWidth = 40;
  const int width = std::clamp(columns - static_cast<int>(begin.size() + end.size()), 0, kMaxWidth);
  const int filled = static_cast<int>(width * fraction);
  const auto line = begin + std::string(static_cast<std::size_t>(filled), '#') +
                    std::string(static_cast<std::size_t>(width - filled), ' ') + end;
  return line.substr(0, static_cast<std::size_t>(std::max(columns, 0)));
}

Progress::Progress(bool enabled) : enabled_(enabled && ::isatty(STDERR_FILENO) == 1) {}

bool Progress::due() const { return enabled_ && (!drawn_ || std::chrono::steady_clock::now() >= next_draw_); }

void Progress::update(const BarState& state) {
  if (!due()) return;
  next_draw_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  drawn_ = true;
  // One column stays free: some terminals wrap a full line.
  std::string text = "\r";
  text.append(render_bar(state, terminal_columns() - 1)).append("\x1b[K");
  write_stderr(text);
}

void Progress::clear() {
  if (!drawn_) return;
  drawn_ = false;
  write_stderr("\r\x1b[K");
}

}  // namespace ddprun::train
