#include "launcher/output/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <climits>
#include <cstring>
#include <system_error>
#include <utility>

#include <ddprun/common/logging.h>

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

// Go to the start of the line, and clear it.
constexpr std::string_view kClearLine = "\r\x1b[K";
// A text wider than the terminal must not wrap: then the line above could not be cleared.
constexpr std::string_view kWrapOff = "\x1b[?7l";
constexpr std::string_view kWrapOn = "\x1b[?7h";

/// What epoll cannot wait for: files, and devices such as /dev/null.
bool never_waits(const struct stat& info, bool is_terminal) {
  return S_ISREG(info.st_mode) || S_ISBLK(info.st_mode) || (S_ISCHR(info.st_mode) && !is_terminal);
}

/// True if both descriptors lead to the same file, pipe or terminal.
bool same_output(int fd, int other) {
  struct stat a {
  }, b{};
  return ::fstat(fd, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

ConsoleSink::ConsoleSink(asio::io_context& io, int fd, std::string name)
    : io_(io), fd_(fd), waiter_(io), is_terminal_(::isatty(fd) == 1), name_(std::move(name)) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || never_waits(info, is_terminal_)) return;
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const int reopened = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (reopened < 0) {
    watch_shared();
    return;
  }
  fd_ = reopened;
  waiter_.assign(reopened);
  kind_ = Kind::kReopened;
}

// Asio sets O_NONBLOCK on the descriptors it waits for. So it waits for an epoll of ours, which waits for the
// descriptor.
void ConsoleSink::watch_shared() {
  const int watch = ::epoll_create1(EPOLL_CLOEXEC);
  if (watch < 0) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  waiter_.assign(watch);
  epoll_event event{};
  event.events = EPOLLOUT;
  if (::epoll_ctl(watch, EPOLL_CTL_ADD, fd_, &event) == 0) kind_ = Kind::kShared;
}

/// returns how many bytes were written: 0 if it would block, -1 with errno on failure
ssize_t ConsoleSink::write_some(std::string_view bytes) {
  if (kind_ == Kind::kShared) {
    pollfd ready{fd_, POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) return 0;
    bytes = bytes.substr(0, PIPE_BUF);  // a writable pipe accepts this much at once
  }
  ssize_t n;
  do n = ::write(fd_, bytes.data(), bytes.size());
  while (n < 0 && errno == EINTR);
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : n;
}

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

/// One write for everything that happens in this turn of the loop.
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
  if (waiting_bytes() < kFull / 2)
    for (const Waiter& waiter : std::exchange(waiters_, {})) waiter.callback();
  if (flushed() && on_flushed_) on_flushed_();
}

void ConsoleSink::write_buffer() {
  while (!gone_ && waiting_bytes() > 0) {
    const ssize_t n = write_some(std::string_view(buffer_).substr(written_));
    if (n < 0) return handle_error(errno);
    if (n == 0) break;
    written_ += static_cast<std::size_t>(n);
  }
  // Dropping written bytes pays off once they outnumber the rest, which has to move.
  if (written_ >= waiting_bytes()) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
  if (waiting_bytes() > 0) wait_until_writable();
}

void ConsoleSink::wait_until_writable() {
  blocked_ = true;
  const auto type = kind_ == Kind::kShared ? waiter_.wait_read : waiter_.wait_write;
  waiter_.async_wait(type, [weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (!self || error) return;
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
  log_warning("cannot write to " + name_ + " (" + std::strerror(error) +
              (disk ? "): worker output is missing there" : "): further worker output to it is dropped") +
              "; the job continues");
}

void ConsoleSink::hide_transient() {
  if (std::exchange(transient_shown_, false)) buffer_ += kClearLine;
}

void ConsoleSink::draw_transient() {
  if (transient_shown_ || transient_.empty() || blocked_ || gone_) return;
  for (const std::string_view part : {kClearLine, kWrapOff, std::string_view(transient_), kWrapOn})
    buffer_ += part;
  transient_shown_ = true;
}

Console::Console(asio::io_context& io, int out_fd, int err_fd) : wake_up_(io) {
  out_ = std::make_shared<ConsoleSink>(io, out_fd, "stdout");
  err_ = same_output(out_fd, err_fd) ? out_ : std::make_shared<ConsoleSink>(io, err_fd, "stderr");
  for (const auto& sink : {out_, err_}) sink->on_flushed([this] { wake_up_.cancel(); });
}

Console::~Console() {
  for (const auto& sink : {out_, err_}) sink->on_flushed({});
}

void Console::make_way() {
  for (const auto& sink : {out_, err_}) sink->make_way();
}

asio::awaitable<bool> Console::drain(std::optional<Clock::time_point> deadline) {
  out_->flush();
  err_->flush();
  while (!out_->flushed() || !err_->flushed()) {
    wake_up_.expires_at(deadline.value_or(Clock::time_point::max()));
    boost::system::error_code cancelled;
    co_await wake_up_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    if (!cancelled) co_return out_->flushed() && err_->flushed();
  }
  co_return true;
}

}  // namespace ddprun::launcher
