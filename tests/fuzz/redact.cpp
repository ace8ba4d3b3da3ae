// A command line as it is shown: "word <field> word ...". Where a secret stands, it must not be seen.
#include "launcher/plan/launch_plan.h"

#include <ddprun/common/text.h>
#include "tests/fuzz/fuzz.h"

namespace ddprun::fuzz {
using namespace launcher;
namespace {

using Words = std::vector<std::string>;

constexpr const char* kSecret = "S3CR3T";

/// The words that a shell reads: plain ones, 'quoted' ones, \' between them.
Words shell_words(std::string_view line) {
  Words words;
  bool in_word = false, quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (!quoted && c == ' ') {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (c == '\'') {
      quoted = !quoted;
    } else if (!quoted && c == '\\' && i + 1 < line.size()) {
      words.back() += line[++i];
    } else {
      expect(quoted || std::string_view("$`\"|&;<>()#~!{}[]?").find(c) == std::string_view::npos,
             "what a shell understands is quoted", line);
      expect(quoted || c != '*' || line.find("***") != std::string_view::npos, "a pattern is quoted", line);
      words.back() += c;
    }
  }
  expect(!quoted, "quotes are closed", line);
  return words;
}

void check_shown(const Words& words) {
  const std::string line = shown_command(words);
  expect(is_safe_line(line), "a shown command drives no terminal", line);
  Words expected = redacted(words);
  expect(expected.size() == words.size(), "no word is lost or added");
  for (std::string& word : expected) {
    expect(redacted_variable(word) == word, "what is redacted stays as it is", word);
    word = printable(word);
  }
  expect(shell_words(line) == expected, "a shell reads the same words", line);
}

bool holds_secret(const Words& words) {
  for (const std::string& word : words)
    if (word.find(kSecret) != std::string::npos) return true;
  return false;
}

void expect_hidden(Words words, const Words& with_secret) {
  if (holds_secret(words)) return;
  words.insert(words.end(), with_secret.begin(), with_secret.end());
  expect(!holds_secret(redacted(words)), "a secret is hidden", shown_command(words));
}

/// Puts a secret behind the words, in each way that is promised, with the last word as part of its name.
void check_hidden(const Words& words) {
  const std::string& part = words.back();
  const std::string name = part.substr(0, part.find_first_of("=/"));
  expect_hidden(words, {"--" + name + "token=" + kSecret});
  expect_hidden(words, {"--token" + name, kSecret});
  expect_hidden(words, {"-api-Key" + name, kSecret});
  expect_hidden(words, {name + "PASSWORD" + name + "=" + kSecret});
  expect_hidden(words, {part + "://me:" + std::string(kSecret) + "@host"});
  expect_hidden(words, {part + "://me:" + std::string(kSecret) + "@host?key=1"});
  expect_hidden(words, {part + "://me:" + std::string(kSecret) + "key=@host"});
  const std::string variable =
      redacted_variable(part + "=https://a/,redis://:" + std::string(kSecret) + "@host/x");
  if (!holds_secret({part})) expect(!holds_secret({variable}), "a password is hidden", variable);
}

}  // namespace
}  // namespace ddprun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::fuzz;
  Words words = split(text_of(data, size), kField);
  for (std::string& word : words) word = word.c_str();
  check_shown(words);
  check_hidden(words);
  return 0;
}
