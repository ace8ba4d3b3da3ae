// Tells ddprun, or torchrun, why this program fails; the launcher shows this report first. C++17, a single
// header, only the standard library and POSIX.
//
//   #include <ddprun/report_error.h>
//
//   int run(int argc, char** argv);                  // the program; may throw
//   int main(int argc, char** argv) { return ddprun::record(argc, argv, run); }
//
// or, for a program that should still end by std::terminate, ddprun::report_uncaught_exceptions() as the
// first line of main. A program that detects its own failure calls ddprun::report_error("...").
//
// The report goes to stderr and to the file that TORCHELASTIC_ERROR_FILE names, in torch elastic's format;
// without a launcher there is no file. If there are several reports, the last one wins.
#pragma once

#include <cxxabi.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <string>
#include <string_view>
#include <typeinfo>

namespace ddprun {
namespace detail {

// A launcher reads at most 64 KiB; these are bytes as written to the file.
constexpr std::size_t kMaxMessage = 24 * 1024;
constexpr std::size_t kMaxCallStack = 32 * 1024;

/// The size in bytes of the UTF-8 character at the start of the text; 0 if there is none.
inline std::size_t utf8_size(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t size = byte(0) < 0x80 ? 1 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3 : 4;
  if (size == 1) return 1;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < size) return 0;
  for (std::size_t i = 1; i < size; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool overlong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xf0 && byte(1) < 0x90);
  const bool beyond = (byte(0) == 0xed && byte(1) >= 0xa0) || (byte(0) == 0xf4 && byte(1) >= 0x90);
  return overlong || beyond ? 0 : size;
}

/// The text as a JSON string of about max_bytes at most; invalid UTF-8 becomes U+FFFD.
inline std::string json_string(std::string_view text, std::size_t max_bytes) {
  std::string json = "\"";
  while (!text.empty()) {
    if (json.size() > max_bytes) return json + "...\"";
    const char c = text[0];
    const std::size_t size = utf8_size(text);
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (c == '\n') {
      json += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      json += escape;
    } else if (size == 0) {
      json += "\xef\xbf\xbd";
    } else {
      json += text.substr(0, size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return json + "\"";
}

inline bool write_and_close(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return ::close(fd) == 0 && bytes.empty();
}

/// Replaces path with a file of these bytes: a reader sees all of them or none. Leaves anything but a regular
/// file, such as /dev/null, alone.
inline bool replace_file(const std::string& path, std::string_view bytes) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) return false;
  const std::string temporary = path + ".tmp." + std::to_string(::getpid());
  ::unlink(temporary.c_str());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  if (write_and_close(fd, bytes) && ::rename(temporary.c_str(), path.c_str()) == 0) return true;
  ::unlink(temporary.c_str());
  return false;
}

/// The type of the current exception: "std::runtime_error".
inline std::string current_exception_type() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (type == nullptr) return "unknown exception";
  int status = -1;
  char* readable = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
  const std::string name = status == 0 ? readable : type->name();
  std::free(readable);
  return name;
}

/// "Type: text" for the current exception, then the exceptions nested in it by std::throw_with_nested.
inline std::string describe_current_exception() {
  try {
    throw;
  } catch (const std::exception& error) {
    const std::string text = current_exception_type() + ": " + error.what();
    try {
      std::rethrow_if_nested(error);
    } catch (...) {
      return text + "\ncaused by " + describe_current_exception();
    }
    return text;
  } catch (const std::string& thrown) {
    return "exception: " + thrown;
  } catch (const char* thrown) {
    return std::string("exception: ") + (thrown != nullptr ? thrown : "(null)");
  } catch (...) {
    return current_exception_type();
  }
}

}  // namespace detail

/// Reports why this program is about to fail. returns whether the launcher's file was written; false without
/// one. Never throws, and leaves ending the program to the caller.
///
/// message      "Type: text", or any text; UTF-8
/// call_stack   where it happened, as lines of text; may be empty
inline bool report_error(const char* message, const char* call_stack = "") noexcept {
  try {
    if (message == nullptr) message = "unknown error";
    if (call_stack == nullptr) call_stack = "";
    std::fprintf(stderr, "error: %s\n", message);
    const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
    if (path == nullptr || *path == '\0') return false;
    return detail::replace_file(
        path,
        "{\"message\": {\"message\": " + detail::json_string(message, detail::kMaxMessage) +
            ", \"extraInfo\": {\"py_callstack\": " + detail::json_string(call_stack, detail::kMaxCallStack) +
            ", \"timestamp\": \"" + std::to_string(std::time(nullptr)) + "\"}}}");
  } catch (...) {
    return false;  // perhaps out of memory
  }
}

/// Reports the current exception; call it in a catch block.
inline bool report_current_exception() noexcept {
  try {
    return report_error(detail::describe_current_exception().c_str());
  } catch (...) {
    return report_error("unknown exception");
  }
}

/// Runs a main function. Reports an exception that leaves it and returns 1.
template <typename Main>
int record(int argc, char** argv, Main&& main_function) {
  try {
    return main_function(argc, argv);
  } catch (...) {
    if (!std::current_exception()) throw;  // pthread_exit, which is not a failure
    report_current_exception();
    return 1;
  }
}

/// From now on std::terminate (an uncaught exception, in any thread) reports first, then ends the program as
/// before: by default with SIGABRT, and a core file where enabled.
inline void report_uncaught_exceptions() noexcept {
  static std::terminate_handler previous = nullptr;
  if (previous != nullptr) return;
  previous = std::set_terminate([] {
    static std::atomic<bool> reporting{false};
    static thread_local bool reports = false;
    if (!reporting.exchange(true)) {
      reports = true;
      if (std::current_exception()) {
        report_current_exception();
      } else {
        report_error("std::terminate was called without an exception");
      }
    } else if (!reports) {
      for (;;) ::pause();  // another thread is reporting, and will end the process
    }
    if (previous != nullptr) previous();
    std::abort();
  });
}

}  // namespace ddprun
