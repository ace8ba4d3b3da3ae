#include "launcher/output/console.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include <ddprun/common/files.h>
#include <ddprun/common/invariant.h>
#include <ddprun/common/logging.h>

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

// Go to the start of the line, and clear it.
constexpr std::string_view kClearLine = "\r\x1b[K";
// A text wider than the terminal must not wrap: then the line above could not be cleared.
constexpr std::string_view kWrapOff = "\x1b[?7l";
constexpr std::string_view kWrapOn = "\x1b[?7h";
// With more in the queue the terminal is not keeping up, and nobody needs to see a progress bar's states.
constexpr std::size_t kTransientRoom = 4096;

/// True if both descriptors lead to the same file, pipe or terminal.
bool same_output(int fd, int other) {
  struct stat a {
  }, b{};
  return ::fstat(fd, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

/// Where the lines go. A failure costs one warning; a full disk may get room again, a reader that is gone
/// does not come back.
class ConsoleSink::Descriptor : public WriteTarget {
 public:
  /// The descriptor is shared with other programs, so O_NONBLOCK must not be set on it: pipes and terminals
  /// are opened again. Where that fails (sockets, another user's terminal), and for files, only the thread
  /// writes.
  Descriptor(int fd, std::string name, WriterThread::Warn warn)
      : name_(std::move(name)), warn_(std::move(warn)) {
    struct stat info {};
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    if (::fstat(fd, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISBLK(info.st_mode))
      fd_.reset(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    never_waits_ = static_cast<bool>(fd_);
    if (!fd_) fd_.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  }

  bool gone() const { return gone_; }

  /// Writes as much as goes without waiting. returns how many bytes; 0 also for an error, which the thread
  /// will meet again
  std::size_t write_some(std::string_view bytes) const {
    std::size_t written = 0;
    while (never_waits_ && written < bytes.size()) {
      const ssize_t n = ::write(fd_.get(), bytes.data() + written, bytes.size() - written);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) break;
      written += static_cast<std::size_t>(n);
      check_invariant(written <= bytes.size(), "the console takes no more than it is given");
    }
    return written;
  }

  void write(std::string_view bytes) override {
    if (gone_ || write_all(fd_.get(), bytes)) return;
    const int error = errno;
    const bool disk = error == ENOSPC || error == EDQUOT || error == EFBIG;
    gone_ = !disk;
    if (std::exchange(warned_, true)) return;
    warn_("cannot write to " + name_ + " (" + std::strerror(error) +
          (disk ? "): worker output is missing there" : "): further worker output to it is dropped") +
          "; the job continues");
  }

 private:
  UniqueFd fd_;
  bool never_waits_ = false;
  std::string name_;
  WriterThread::Warn warn_;
  std::atomic<bool> gone_ = false;
  bool warned_ = false;
};

ConsoleSink::ConsoleSink(asio::io_context& io, int fd, std::string name)
    : io_(io),
      fd_(fd),
      is_terminal_(::isatty(fd) == 1),
      moves_cursor_(takes_escapes(fd)),
      thread_(io, kFull),
      target_(std::make_shared<Descriptor>(fd, std::move(name), thread_.warn())) {}

void ConsoleSink::set_full(std::size_t full) { thread_.set_full(full_ = full); }

void ConsoleSink::write(Writer writer, std::string_view prefix, std::string_view lines) {
  if (target_->gone() || lines.empty()) return;
  hide_transient();
  if (transient_owner_ == writer) transient_.clear();
  const bool continues = line_open_ && line_owner_ == writer;
  if (!continues) {
    end_open_line();
    buffer_ += prefix;
  }
  workers_wrote_ = true;
  line_open_ = lines.back() != '\n';
  if (!prefix.empty())
    for (auto end = lines.find('\n') + 1; end != 0 && end != lines.size(); end = lines.find('\n') + 1) {
      buffer_ += lines.substr(0, end);
      buffer_ += prefix;
      lines.remove_prefix(end);
    }
  buffer_ += lines;
  line_owner_ = writer;
  flush_soon();
}

void ConsoleSink::end_open_line() {
  if (std::exchange(line_open_, false)) buffer_ += '\n';
}

void ConsoleSink::end_line(Writer writer) {
  if (line_open_ && line_owner_ == writer) write(writer, "", "\n");
}

void ConsoleSink::write_own(std::string text) {
  if (target_->gone()) return;
  own_size_ += text.size();
  own_.push_back(std::move(text));
  while (own_size_ > kMostOwn && own_.size() > 1) {
    check_invariant(own_.front().size() <= own_size_, "ddprun's waiting messages are counted");
    own_size_ -= own_.front().size();
    own_.pop_front();
    ++own_dropped_;
  }
  flush();
}

/// Takes ddprun's waiting messages into the buffer, if there is room for them or this is the end.
void ConsoleSink::add_own(bool at_end) {
  if (own_.empty()) return;
  if (!at_end && !has_room()) {
    thread_.forget(this);
    return thread_.when_room(this, [this] { flush(); });
  }
  hide_transient();
  end_open_line();
  if (own_dropped_ > 0)
    buffer_ += "ddprun: warning: " + std::to_string(std::exchange(own_dropped_, 0)) +
               " messages are missing here, because nobody read the earlier ones\n";
  for (const std::string& text : own_) buffer_ += text;
  own_.clear();
  own_size_ = 0;
}

void ConsoleSink::show_transient(Writer writer, std::string text) {
  if (target_->gone() || !moves_cursor_ || !has_room()) return;
  if (text == transient_ && writer == transient_owner_) return;
  hide_transient();
  transient_ = std::move(text);
  transient_owner_ = writer;
  flush_soon();
}

void ConsoleSink::forget(Writer writer) {
  thread_.forget(writer);
  if (line_owner_ == writer) line_owner_ = nullptr;
  if (transient_owner_ != writer) return;
  transient_owner_ = nullptr;
  transient_.clear();
  if (!transient_shown_) return;
  hide_transient();
  flush_soon();
}

void ConsoleSink::when_room(Writer writer, std::function<void()> callback) {
  thread_.when_room(writer, std::move(callback));
}

/// One piece for everything that happens in this turn of the loop.
void ConsoleSink::flush_soon() {
  if (std::exchange(flush_due_, true)) return;
  asio::post(io_, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->flush();
  });
}

void ConsoleSink::flush(bool at_end) {
  flush_due_ = false;
  add_own(at_end);
  draw_transient();
  std::string_view rest = buffer_;
  if (thread_.waiting() == 0 && !target_->gone()) rest.remove_prefix(target_->write_some(rest));
  if (!rest.empty()) {
    thread_.write(target_, std::string(rest));
    if (workers_wrote_) workers_bytes_ = thread_.passed();
  }
  buffer_.clear();
  workers_wrote_ = false;
}

asio::awaitable<bool> ConsoleSink::drain(std::optional<Clock::time_point> deadline) {
  flush();
  co_return co_await thread_.drain(workers_bytes_, deadline);
}

void ConsoleSink::finish(std::chrono::milliseconds patience) {
  flush(/*at_end=*/true);
  thread_.finish(patience);
}

void ConsoleSink::hide_transient() {
  if (!std::exchange(transient_shown_, false)) return;
  buffer_ += kClearLine;
  workers_wrote_ = true;
}

void ConsoleSink::draw_transient() {
  if (transient_shown_ || transient_.empty() || thread_.waiting() > kTransientRoom || target_->gone()) return;
  for (const std::string_view part : {kClearLine, kWrapOff, std::string_view(transient_), kWrapOn})
    buffer_ += part;
  transient_shown_ = workers_wrote_ = true;
}

Console::Console(asio::io_context& io, int out_fd, int err_fd)
    : out_(std::make_shared<ConsoleSink>(io, out_fd, "stdout")),
      err_(same_output(out_fd, err_fd) ? out_ : std::make_shared<ConsoleSink>(io, err_fd, "stderr")) {}

asio::awaitable<bool> Console::drain(std::optional<Clock::time_point> deadline) {
  const bool out = co_await out_->drain(deadline);
  const bool err = co_await err_->drain(deadline);
  co_return out&& err;
}

void Console::finish(std::chrono::milliseconds patience) {
  const auto end = Clock::now() + patience;
  out_->finish(patience);
  err_->finish(std::max(std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()), {}));
}

}  // namespace ddprun::launcher
