#include "launcher/output/output_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <utility>

#include <ddprun/common/invariant.h>
#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

// The delay before an unfinished line shows on a terminal, and so the time between two states of a progress
// bar.
constexpr std::chrono::milliseconds kPartialDelay{100};
// Drawn bytes of a transient line: no terminal is wider.
constexpr std::size_t kMaxTransient = 2048;
constexpr int kTimeColumns = 25;  // "2026-11-21T12:10:46.123Z "

void set_nonblocking(const UniqueFd& fd) {
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0)
    throw std::system_error(errno, std::generic_category(), "fcntl");
}

/// Without echo; a newline stays one byte.
bool make_raw(int terminal) {
  termios modes{};
  if (::tcgetattr(terminal, &modes) != 0) return false;
  ::cfmakeraw(&modes);
  return ::tcsetattr(terminal, TCSANOW, &modes) == 0;
}

/// Ignores anything but a terminal, and a margin that would leave nothing.
void copy_window_size(int from, int to, int margin) {
  winsize size{};
  if (::ioctl(from, TIOCGWINSZ, &size) != 0) return;
  if (size.ws_col > margin) size.ws_col = static_cast<unsigned short>(size.ws_col - margin);
  ::ioctl(to, TIOCSWINSZ, &size);
}

/// Whether nothing of it can be seen, as of a progress bar that cleared itself.
bool is_blank(std::string_view text) { return text.find_first_not_of(" \t") == std::string_view::npos; }

}  // namespace

OutputChannel open_output_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  OutputChannel channel{UniqueFd(ends[0]), UniqueFd(ends[1])};
  set_nonblocking(channel.reading);
  return channel;
}

OutputChannel open_output_terminal(int like, int margin) {
  OutputChannel channel;
  channel.reading.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!channel.reading || ::unlockpt(channel.reading.get()) != 0) return open_output_pipe();
  // Not by its path, which may name another terminal in our mount namespace.
  channel.writing.reset(::ioctl(channel.reading.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!channel.writing || !make_raw(channel.writing.get())) return open_output_pipe();
  copy_window_size(like, channel.reading.get(), margin);
  set_nonblocking(channel.reading);
  return channel;
}

int margin_of(const StreamPlan& plan) {
  const auto columns = std::ranges::count_if(plan.prefix, [](char byte) { return !is_continuation(byte); });
  return static_cast<int>(columns) + (plan.timestamps ? kTimeColumns : 0);
}

OutputStream::OutputStream(asio::io_context& io, UniqueFd source, OutputTargets targets)
    : source_(io, source.release()),
      fd_(source_.native_handle()),
      partial_timer_(io),
      targets_(std::move(targets)),
      to_terminal_(targets_.console && targets_.console->is_terminal()) {}

OutputStream::~OutputStream() {
  if (targets_.console) targets_.console->forget(this);
  if (targets_.writer) targets_.writer->forget(this);
}

void OutputStream::start(Bytes on_bytes, std::function<void()> on_end) {
  on_bytes_ = std::move(on_bytes);
  on_end_ = std::move(on_end);
  wait();
}

void OutputStream::update_window_size() {
  if (to_terminal_ && source_.is_open())
    copy_window_size(targets_.console->fd(), source_.native_handle(), margin_of(targets_.plan));
}

void OutputStream::prefix_stacks() {
  if (!targets_.plan.stack_prefix.empty()) targets_.plan.prefix = targets_.plan.stack_prefix;
}

bool OutputStream::unread() const {
  if (ended_ || finished_) return false;
  pollfd source{fd_, POLLIN, 0};
  return held_up_ || ::poll(&source, 1, 0) > 0;
}

void OutputStream::wait() {
  source_.async_wait(source_.wait_read, [weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (self && !error && !self->finished_) self->read();
  });
}

void OutputStream::read() {
  if (hold_up(targets_.console.get()) || hold_up(targets_.writer)) return;
  char buffer[1 << 16];
  const ssize_t n = ::read(source_.native_handle(), buffer, sizeof buffer);
  if (n > 0) take(std::string_view(buffer, static_cast<std::size_t>(n)));
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return wait();
  ended_ = true;  // also EIO: every process has closed the terminal
  finish();
  on_end_();
}

/// Stops reading until the target has room, if it has none now.
template <typename Target>
bool OutputStream::hold_up(Target* target) {
  if (!target || target->has_room()) return false;
  check_invariant(!held_up_, "a stream waits for one target at a time");
  held_up_ = true;
  target->when_room(this, [this] {
    held_up_ = false;
    wait();
  });
  return true;
}

void OutputStream::finish() {
  if (std::exchange(finished_, true)) return;
  held_up_ = false;
  partial_timer_.cancel();
  boost::system::error_code ignored;
  source_.close(ignored);
  const std::string rest(splitter_.partial());
  splitter_.drop_partial();
  if (!rest.empty()) take_line(rest);
  if (!filtered_.empty()) targets_.writer->write(targets_.filtered, std::exchange(filtered_, {}));
  if (targets_.writer) targets_.writer->forget(this);
  targets_.file = targets_.filtered = nullptr;  // a replaced worker's would stay open
  if (!targets_.console) return;
  if (!line_start_.empty()) targets_.console->end_line(this);
  targets_.console->forget(this);
}

void OutputStream::take(std::string_view bytes) {
  check_invariant(!finished_, "no output follows the end of a stream");
  on_bytes_(bytes);
  if (targets_.file) targets_.writer->write(targets_.file, std::string(bytes));
  if (!targets_.console && !targets_.filtered) return;
  line_start_ = targets_.plan.prefix;
  if (targets_.plan.timestamps) line_start_ = utc_iso(JobClock::Wall::now(), 3) + " " + targets_.plan.prefix;
  const bool together = !to_terminal_ && !targets_.filtered;  // no line of its own is looked at
  splitter_.add(
      bytes, [this](std::string_view line) { take_line(line); }, together);
  if (!filtered_.empty()) targets_.writer->write(targets_.filtered, std::exchange(filtered_, {}));
  if (to_terminal_ && !splitter_.partial().empty()) schedule_partial();
}

void OutputStream::take_line(std::string_view line) {
  if (targets_.filtered && matches_any(line, targets_.plan.filters)) {
    filtered_ += targets_.plan.filtered_prefix;
    filtered_ += line;
    if (line.back() != '\n') filtered_ += '\n';
  }
  if (targets_.console) print(line);
}

void OutputStream::print(std::string_view line) {
  if (!to_terminal_) return targets_.console->write(this, line_start_, line);
  const std::string shown = sanitized(last_shown(line));
  if (is_blank(shown) && line.back() != '\n') return;
  targets_.console->write(this, line_start_, shown + '\n');
}

void OutputStream::schedule_partial() {
  if (std::exchange(partial_due_, true)) return;
  partial_timer_.expires_after(kPartialDelay);
  partial_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (self && !error && !self->finished_) self->show_partial();
  });
}

void OutputStream::show_partial() {
  partial_due_ = false;
  if (!targets_.filtered) splitter_.drop_overwritten();
  if (splitter_.partial().empty()) return;
  const std::string shown = sanitized(last_shown(splitter_.partial()).substr(0, kMaxTransient));
  targets_.console->show_transient(this, is_blank(shown) ? "" : line_start_ + shown);
}

}  // namespace ddprun::launcher
