#include "launcher/cli/token.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/settings/values.h>
#include <ddprun/common/text/printable.h>

namespace ddprun::launcher {
namespace {

constexpr std::size_t kMaxTokenBytes = 4096;

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n\v\f";
  const auto begin = text.find_first_not_of(kSpace);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::string read_token_file(const std::string& source, const std::filesystem::path& path) {
  const UniqueFd fd = open_regular_file(path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw IoError(path, "cannot stat", errno);
  if ((info.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(info.st_mode & 07777));
    throw UsageError(source + ": expected a file that only its owner can use, got mode " + mode + " of " +
                     quoted(path.string()) + " (chmod 600)");
  }
  return read_file(fd, path, kMaxTokenBytes);
}

}  // namespace

std::string read_token(const settings::Values& values, const EnvLookup& environment) {
  const bool of_file = values.given("token-file");
  const std::string source = of_file ? values.source("token-file") : kTokenVariable;
  const std::string text =
      of_file ? read_token_file(source, values.text("token-file")) : environment(kTokenVariable).value_or("");
  std::string token = trimmed(text);
  if (token.empty() && (of_file || !text.empty()))
    throw UsageError(source + ": expected a token, got nothing but white space" +
                     (of_file ? " in " + quoted(values.text("token-file")) : ""));
  return token;
}

}  // namespace ddprun::launcher
