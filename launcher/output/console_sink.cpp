#include "launcher/output/console_sink.h"

#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include <ddprun/common/logging.h>

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

// To the start of the line, and nothing from there on.
constexpr std::string_view kClearLine = "\r\x1b[K";
// A text wider than the terminal must not wrap: the line above could not be cleared.
constexpr std::string_view kWrapOff = "\x1b[?7l";
constexpr std::string_view kWrapOn = "\x1b[?7h";

}  // namespace

ConsoleSink::ConsoleSink(asio::io_context& io, int fd, std::string name)
    : io_(io), output_(io, fd), name_(std::move(name)) {}

void ConsoleSink::write(Writer writer, std::string_view prefix, std::string_view line) {
  if (gone_ || line.empty()) return;
  hide_transient();
  if (transient_owner_ == writer) transient_.clear();
  const bool continues = line_open_ && line_owner_ == writer;
  if (line_open_ && !continues) buffer_ += '\n';
  if (!continues) buffer_ += prefix;
  buffer_ += line;
  line_open_ = line.back() != '\n';
  line_owner_ = writer;
  flush_soon();
}

void ConsoleSink::end_line(Writer writer) {
  if (line_open_ && line_owner_ == writer) write(writer, "", "\n");
}

void ConsoleSink::show_transient(Writer writer, std::string text) {
  if (gone_ || !has_room()) return;
  if (text == transient_ && writer == transient_owner_) return;
  hide_transient();
  transient_ = std::move(text);
  transient_owner_ = writer;
  flush_soon();
}

void ConsoleSink::forget(Writer writer) {
  std::erase_if(waiters_, [&](const Waiter& waiter) { return waiter.writer == writer; });
  if (line_owner_ == writer) line_owner_ = nullptr;
  if (transient_owner_ != writer) return;
  transient_owner_ = nullptr;
  transient_.clear();
  if (!transient_shown_) return;
  hide_transient();
  flush_soon();
}

void ConsoleSink::when_room(Writer writer, std::function<void()> callback) {
  waiters_.push_back({writer, std::move(callback)});
}

void ConsoleSink::make_way() {
  hide_transient();
  if (std::exchange(line_open_, false)) buffer_ += '\n';
  if (!blocked_) write_buffer();
  if (!transient_.empty()) flush_soon();
}

/// One write for all that the events of this turn of the loop bring.
void ConsoleSink::flush_soon() {
  if (std::exchange(flush_due_, true)) return;
  asio::post(io_, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->flush();
  });
}

void ConsoleSink::flush() {
  flush_due_ = false;
  draw_transient();
  if (!blocked_) write_buffer();
  call_back();
}

void ConsoleSink::write_buffer() {
  while (!gone_ && waiting_bytes() > 0) {
    const ssize_t n = output_.write(std::string_view(buffer_).substr(written_));
    if (n < 0) return handle_error(errno);
    if (n == 0) break;
    written_ += static_cast<std::size_t>(n);
  }
  // What is written is given up once there is more of it than what it costs to move the rest.
  if (written_ >= waiting_bytes()) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
  if (waiting_bytes() > 0) wait_until_writable();
}

void ConsoleSink::wait_until_writable() {
  blocked_ = true;
  output_.async_wait([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->blocked_ = false;
    self->flush();
  });
}

void ConsoleSink::handle_error(int error) {
  buffer_.clear();
  written_ = 0;
  const bool disk = error == ENOSPC || error == EDQUOT || error == EFBIG;
  gone_ = !disk;
  if (std::exchange(warned_, true)) return;
  log_warning("cannot write to " + name_ + ": " + std::strerror(error) +
              (disk ? ": output is missing there" : ": the workers' further output there is dropped") +
              ", the job goes on");
}

void ConsoleSink::hide_transient() {
  if (std::exchange(transient_shown_, false)) buffer_ += kClearLine;
}

void ConsoleSink::draw_transient() {
  if (transient_shown_ || transient_.empty() || blocked_ || gone_) return;
  buffer_ += kClearLine;
  buffer_ += kWrapOff;
  buffer_ += transient_;
  buffer_ += kWrapOn;
  transient_shown_ = true;
}

void ConsoleSink::call_back() {
  if (waiting_bytes() < kFull / 2)
    for (const Waiter& waiter : std::exchange(waiters_, {})) waiter.callback();
  if (flushed() && on_flushed_) on_flushed_();
}

}  // namespace ddprun::launcher
