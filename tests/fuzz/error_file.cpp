// A worker's error file and what the failure report makes of it: the input is the file; what follows a
// <section> is the worker's stderr.
#include <ddprun/common/error_file.h>

#include "launcher/outcome/failure_report.h"
#include "tests/fuzz/fuzz.h"

namespace ddprun::fuzz {
using namespace launcher;
namespace {

constexpr std::size_t kMaxReport = 100'000;

void expect_content(const ErrorFileContent& content, std::string_view bytes) {
  expect(!content.error || content.problem.empty(), "there is an error or a problem, not both");
  expect(is_utf8(content.problem) && content.problem.find('\n') == std::string::npos, "a problem is one line",
         content.problem);
  if (!content.error) {
    expect(content.problem.empty() == bytes.empty(), "only an empty file is nothing");
    return;
  }
  expect(is_utf8(content.error->message), "a message is UTF-8", content.error->message);
  expect(is_utf8(content.error->call_stack), "a call stack is UTF-8", content.error->call_stack);
}

void expect_read_back(const ScratchFile& file, const WorkerError& error) {
  constexpr std::size_t kSmall = 4096;  // however much of it is escaped, it fits again
  if (error.message.size() + error.call_stack.size() > kSmall) return;
  write_error_file(file.other_path(), error);
  const auto again = read_error_file(file.other_path()).error;
  expect(again.has_value(), "what was written is read");
  expect(again->message == error.message, "a message comes back", error.message);
  expect(again->call_stack == error.call_stack, "a call stack comes back", error.call_stack);
  expect(again->timestamp == error.timestamp, "a time comes back", std::to_string(error.timestamp));
  expect(again->error_code == error.error_code, "a code comes back");
}

WorkerRecord failed_worker(const ErrorFileContent& content) {
  WorkerRecord worker;
  worker.status = ExitStatus::exited(1);
  worker.error = content;
  return worker;
}

void expect_report(const ErrorFileContent& content, const std::string& standard_error) {
  FailureReport report;
  report.program = content.error ? content.error->message : "program";
  report.root_cause = failed_worker(content);
  report.root_cause.last_lines = split(standard_error, '\n');
  report.others = {failed_worker(content)};
  const std::string text = describe(report);
  expect(is_safe_text(text), "a report drives no terminal", text);
  expect(text.size() <= kMaxReport, "a report is bounded", std::to_string(text.size()));
}

}  // namespace
}  // namespace ddprun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::fuzz;
  static const ScratchFile file;
  auto sections = split(text_of(data, size), kSection, 2);
  sections.resize(2);
  file.write(sections[0]);
  const auto content = ddprun::read_error_file(file.path());
  expect_content(content, sections[0]);
  if (content.error) expect_read_back(file, *content.error);
  expect_report(content, sections[1]);
  return 0;
}
