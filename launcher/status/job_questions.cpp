#include "launcher/status/job_questions.h"

#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>

namespace ddprun::launcher {
namespace {

using json = nlohmann::ordered_json;
constexpr int kMostRequestLevels = 4;

json refusal(const std::string& text) { return {{"error", text}}; }

}  // namespace

boost::asio::awaitable<std::string> answer_line(const JobQuestions& questions, std::string line) {
  json reply = refusal(R"(expected {"ask": "status", "output", "stacks" or "stop"})");
  try {
    const auto request = parse_shallow_json(line, kMostRequestLevels);
    const std::string ask = request.is_object() ? request.value("ask", "") : "";
    const auto rank = request.is_object() && request.contains("rank")
                          ? std::optional(request.at("rank").get<int>())
                          : std::nullopt;
    if (ask == "status") reply = questions.view();
    if (ask == "output") reply = questions.output(rank.value_or(0), request.value("seen", std::uint64_t{0}));
    if (ask == "stop") reply = questions.stop();
    if (ask == "stacks") reply = co_await questions.stacks(rank);
  } catch (const std::exception& error) {  // not JSON, or of another form
    reply = refusal(error.what());
  }
  co_return reply.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::filesystem::path control_folder() {
  if (const auto named = process_env("DDPRUN_CONTROL_DIR"); named && !named->empty()) return *named;
  return "/tmp/ddprun-" + std::to_string(::geteuid());
}

bool is_private_folder(const std::filesystem::path& folder) {
  struct stat info {};
  return ::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & 077) == 0;
}

}  // namespace ddprun::launcher
