#include <ddprun/common/logging.h>

#include <unistd.h>

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

#include <ddprun/common/files.h>

namespace ddprun {
namespace {

/// "warning: " and "error: " in compiler style; nothing before ordinary lines.
class LevelWord : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    static const bool colours = takes_colours(STDERR_FILENO);
    std::string_view word;
    if (message.level == spdlog::level::warn) word = colours ? "\x1b[1;33mwarning:\x1b[0m " : "warning: ";
    if (message.level >= spdlog::level::err) word = colours ? "\x1b[1;31merror:\x1b[0m " : "error: ";
    out.append(word.data(), word.data() + word.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<LevelWord>(); }
};

spdlog::level::level_enum level_from_environment() {
  const char* value = std::getenv("LOGLEVEL");
  if (value == nullptr) return spdlog::level::info;
  std::string name(value);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto level = spdlog::level::from_str(name);
  return level == spdlog::level::off && name != "off" ? spdlog::level::info : level;
}

std::function<void(std::string)>& destination() {
  static std::function<void(std::string)> function;
  return function;
}

class LineSink : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (const auto& write = destination()) return write(std::string(line.data(), line.size()));
    write_all(STDERR_FILENO, std::string_view(line.data(), line.size()));
  }
  void flush_() override {}
};

}  // namespace

void configure_logging(const std::string& name) {
  auto logger = std::make_shared<spdlog::logger>(name, std::make_shared<LineSink>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<LevelWord>('*').set_pattern("%n: %*%v");
  logger->set_formatter(std::move(formatter));
  logger->set_level(level_from_environment());
  spdlog::set_default_logger(std::move(logger));
}

void log_only_problems() {
  if (spdlog::get_level() < spdlog::level::warn) spdlog::set_level(spdlog::level::warn);
}

void log_to(std::function<void(std::string)> write) { destination() = std::move(write); }

bool takes_escapes(int descriptor) {
  const char* terminal = std::getenv("TERM");
  return (terminal == nullptr || std::string_view(terminal) != "dumb") && ::isatty(descriptor) == 1;
}

bool takes_colours(int descriptor) {
  const char* no_colour = std::getenv("NO_COLOR");
  return (no_colour == nullptr || *no_colour == '\0') && std::getenv("TERM") != nullptr &&
         takes_escapes(descriptor);
}

void log_info(std::string_view line) { spdlog::log(spdlog::level::info, line); }
void log_warning(std::string_view line) { spdlog::log(spdlog::level::warn, line); }
void log_error(std::string_view line) { spdlog::log(spdlog::level::err, line); }

}  // namespace ddprun
