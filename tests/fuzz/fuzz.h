#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <ddprun/common/files.h>

/// What a target defines: reads one input, and ends the program if an invariant is broken.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace ddprun::fuzz {

// Inputs are text, so that a corpus can be read and written by hand. Where a target wants several texts,
// these separate them.
constexpr char kSection = '\x1d';
constexpr char kField = '\x1f';

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Ends the program unless it holds, with a line that says what was expected and what was got.
void expect(bool holds, std::string_view what, std::string_view got = "");

/// The pieces between separators, at most so many: the last one holds the rest. Always at least one.
std::vector<std::string> split(std::string_view text, char separator, std::size_t most = std::size_t(-1));

/// All of it is UTF-8.
bool is_utf8(std::string_view text);

/// UTF-8 without a control character, also C1, but for tabs.
bool is_safe_line(std::string_view text);

/// The same with newlines too.
bool is_safe_text(std::string_view text);

/// What follows a message's "expected ..." can be the user's: a message is one line that drives no terminal.
void expect_message(std::string_view message);

/// A file that holds one input after the other, in a folder that goes with the program.
class ScratchFile {
 public:
  ScratchFile() : folder_("ddprun-fuzz") {}
  std::filesystem::path path() const { return folder_.path() / "input"; }
  /// The second name for what a target writes itself.
  std::filesystem::path other_path() const { return folder_.path() / "output"; }
  void write(std::string_view bytes) const;

 private:
  TempDir folder_;
};

}  // namespace ddprun::fuzz
