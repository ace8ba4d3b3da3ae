#include "launcher/output/output_stream.h"

#include <cerrno>
#include <chrono>
#include <utility>

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

// How long a line without an end may stay unseen on a terminal, and so how often a progress bar is redrawn.
constexpr std::chrono::milliseconds kPartialDelay{100};
// Of a transient line no more than this is drawn: more fits on no terminal.
constexpr std::size_t kMaxTransient = 2048;

}  // namespace

OutputStream::OutputStream(asio::io_context& io, UniqueFd source, OutputTargets targets)
    : source_(io, source.release()),
      partial_timer_(io),
      targets_(std::move(targets)),
      to_terminal_(targets_.console && targets_.console->is_terminal()) {}

OutputStream::~OutputStream() {
  if (targets_.console) targets_.console->forget(this);
}

void OutputStream::start(Bytes on_bytes, std::function<void()> on_end) {
  on_bytes_ = std::move(on_bytes);
  on_end_ = std::move(on_end);
  wait();
}

void OutputStream::wait() {
  source_.async_wait(source_.wait_read, [weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (self && !error && !self->finished_) self->read();
  });
}

void OutputStream::read() {
  if (targets_.console && !targets_.console->has_room()) {
    held_up_ = true;
    targets_.console->when_room(this, [this] {
      held_up_ = false;
      wait();
    });
    return;
  }
  char buffer[1 << 16];
  const ssize_t n = ::read(source_.native_handle(), buffer, sizeof buffer);
  if (n > 0) take(std::string_view(buffer, static_cast<std::size_t>(n)));
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return wait();
  ended_ = true;  // or EIO: a terminal that no process has open any more
  finish();
  on_end_();
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
  if (!filtered_.empty()) targets_.filtered->write(std::exchange(filtered_, {}));
  if (!targets_.console) return;
  if (!line_start_.empty()) targets_.console->end_line(this);
  targets_.console->forget(this);
}

void OutputStream::take(std::string_view bytes) {
  on_bytes_(bytes);
  if (targets_.file) targets_.file->write(bytes);
  if (!targets_.console && !targets_.filtered) return;
  line_start_ = targets_.plan.prefix;
  if (targets_.plan.timestamps)
    line_start_ = utc_timestamp(std::chrono::system_clock::now()) + " " + targets_.plan.prefix;
  splitter_.add(bytes, [this](std::string_view line) { take_line(line); });
  if (!filtered_.empty()) targets_.filtered->write(std::exchange(filtered_, {}));
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
  const std::string_view shown = last_shown(line);
  targets_.console->write(this, line_start_, sanitized(shown) + '\n');
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
  const std::string_view shown = last_shown(splitter_.partial()).substr(0, kMaxTransient);
  targets_.console->show_transient(this, line_start_ + sanitized(shown));
}

}  // namespace ddprun::launcher
