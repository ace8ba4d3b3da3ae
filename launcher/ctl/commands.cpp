#include "launcher/ctl/commands.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include <ddprun/common/errors.h>
#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace {

using json = nlohmann::ordered_json;

constexpr std::chrono::seconds kStacksPatience{40};
constexpr std::chrono::milliseconds kFollowEvery{200};
constexpr std::size_t kPlainWidth = 160;

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) != 0) throw IoError("stdout", "cannot write", errno);
}

int list_jobs() {
  std::vector<json> views;
  for (const JobConnection& job : find_jobs()) views.push_back(job.view());
  if (views.empty()) {
    print("no job of yours runs on this machine\n");
    return 0;
  }
  for (const std::string& line : job_list(views)) print(line + "\n");
  return 0;
}

int show_once(const std::string& wanted) {
  std::vector<JobConnection> jobs;
  if (wanted.empty()) jobs = find_jobs();
  if (jobs.empty()) jobs.push_back(find_job(wanted));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const JobScreen screen = job_screen({jobs[i].view(), nullptr, gpu_use()}, SortBy::kRank, kPlainWidth);
    for (const std::string& line : screen.head)
      print((i > 0 && &line == &screen.head[0] ? "\n" : "") + line + "\n");
    print("\n" + screen.columns + "\n");
    for (const ScreenRow& row : screen.rows) print(row.text + "\n");
  }
  return 0;
}

/// What one rank has written: its log files if it has some, else what ddprun keeps.
class RankLog {
 public:
  RankLog(int rank, std::string prefix) : rank_(rank), prefix_(std::move(prefix)) {}

  void show_new(JobConnection& job, const json& view) {
    std::vector<std::string> files;
    for (const json& rank : view["ranks"])
      if (rank["rank"] == rank_) files = rank["logs"].get<std::vector<std::string>>();
    for (const std::string& file : files) show(file, read_from(file));
    if (!files.empty()) return;
    const json reply = job.ask({{"ask", "output"}, {"rank", rank_}, {"seen", seen_}});
    if (reply["pid"] != pid_) seen_ = 0;  // another worker took its place
    if (reply["pid"] != pid_ && pid_ != 0) return void(pid_ = reply["pid"].get<int>());
    pid_ = reply["pid"].get<int>();
    seen_ = reply["seen"].get<std::uint64_t>();
    show("", reply["text"].get<std::string>());
  }
  void finish() {
    for (auto& [source, partial] : partial_)
      if (!partial.empty()) show(source, "\n");
  }

 private:
  std::string read_from(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::uint64_t& offset = offsets_[path];
    file.seekg(0, std::ios::end);
    if (!file || static_cast<std::uint64_t>(file.tellg()) < offset) offset = 0;  // it began afresh
    file.seekg(static_cast<std::streamoff>(offset));
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    offset += bytes.size();
    return bytes;
  }
  void show(const std::string& source, const std::string& bytes) {
    std::string& text = partial_[source] += bytes;
    std::size_t end;
    while ((end = text.find('\n')) != std::string::npos) {
      print(prefix_ +
            (::isatty(STDOUT_FILENO) == 1 ? printable(last_shown(text.substr(0, end + 1)))
                                          : text.substr(0, end)) +
            "\n");
      text.erase(0, end + 1);
    }
  }

  int rank_;
  std::string prefix_;
  int pid_ = 0;
  std::uint64_t seen_ = 0;
  std::map<std::string, std::uint64_t> offsets_;
  std::map<std::string, std::string> partial_;
};

int show_logs(const CtlOptions& options) {
  JobConnection job = find_job(options.job);
  std::map<int, RankLog> logs;
  json view = job.view();
  bool any = false;
  for (;;) {
    for (const json& rank : view["ranks"]) {
      const int number = rank["rank"].get<int>();
      if (options.rank.value_or(number) != number) continue;
      any = true;
      const std::string prefix =
          options.rank || view["ranks"].size() == 1 ? "" : "[" + std::to_string(number) + "]: ";
      logs.try_emplace(number, number, prefix).first->second.show_new(job, view);
    }
    if (!any && options.rank) throw UsageError("--rank: " + elsewhere(view, *options.rank));
    if (!options.follow) break;
    std::this_thread::sleep_for(kFollowEvery);
    try {
      view = job.ask({{"ask", "status"}});
    } catch (const IoError&) {
      break;  // the job has ended
    }
  }
  for (auto& [rank, log] : logs) log.finish();
  return 0;
}

}  // namespace

std::string ctl_help() {
  return R"(ddpctl: looks at this user's running ddprun jobs on this machine.

usage: ddpctl COMMAND [JOB] [flags]      (JOB: its name in ddpctl ps, its run id or ddprun's pid; or their beginning)

Commands
  ps               list the jobs
  top [JOB]        show a job's ranks as it runs; h there shows the keys
  logs JOB         show what its ranks wrote: their log files, or the last 8 KiB of each
  stacks JOB       show the stacks of its ranks, which go on
  stop JOB         end it, as SIGTERM to ddprun does

JOB can be left out while only one job runs; top then begins with the newest.

Flags
  --once               top: print it as text, all jobs without JOB; without a terminal always
  --interval SECONDS   top: how often to look, 0.1 to 60 [2]
  -f, --follow         logs: go on until the job ends
  --rank R             logs, stacks: only of this rank
  -h, --help, --version
)";
}

CtlOptions parse_ctl_options(const std::vector<std::string>& words) {
  CtlOptions options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    const auto value = [&]() -> std::string {
      if (name.size() < words[i].size()) return words[i].substr(name.size() + 1);
      if (i + 1 == words.size()) throw UsageError(name + ": expected a value");
      return words[++i];
    };
    if (name == "-h" || name == "--help") {
      options.help = true;
    } else if (name == "--version") {
      options.version = true;
    } else if (name == "--once") {
      options.once = true;
    } else if (name == "-f" || name == "--follow") {
      options.follow = true;
    } else if (name == "--rank") {
      const std::string text = value();
      options.rank = parse_integer(text, 0, 1 << 24);
      if (!options.rank) throw UsageError("--rank: expected a rank, from 0, got " + single_quoted(text));
    } else if (name == "--interval") {
      const std::string text = value();
      options.interval = parse_number(text).value_or(0);
      if (options.interval < 0.1 || options.interval > 60)
        throw UsageError("--interval: expected seconds from 0.1 to 60, got " + single_quoted(text));
    } else if (name.starts_with("-")) {
      throw UsageError("unknown flag " + single_quoted(name) + " (ddpctl --help)");
    } else if (options.command.empty()) {
      options.command = words[i];
    } else if (options.job.empty()) {
      options.job = words[i];
    } else {
      throw UsageError("unexpected " + single_quoted(words[i]) + ": one JOB is enough");
    }
  }
  if (options.help || options.version) return options;
  for (const char* command : {"ps", "top", "logs", "stacks", "stop"})
    if (options.command == command) return options;
  throw UsageError("expected ps, top, logs, stacks or stop" +
                   (options.command.empty() ? "" : ", got " + single_quoted(options.command)) +
                   " (ddpctl --help)");
}

std::string stacks_text(JobConnection& job, std::optional<int> rank) {
  json request = {{"ask", "stacks"}};
  if (rank) request["rank"] = *rank;
  std::string text;
  const json reply = job.ask(request, kStacksPatience);
  for (const json& of : reply["ranks"]) {
    text += "rank " + std::to_string(of["rank"].get<int>()) + "\n";
    if (const auto problem = of["problem"].get<std::string>(); !problem.empty())
      text += "no stacks: " + printable(problem) + "\n";
    for (const std::string& line : printable_lines(of["text"].get<std::string>())) text += line + "\n";
    text += "\n";
  }
  return text;
}

int run_command(const CtlOptions& options) {
  if (options.command == "ps") return list_jobs();
  if (options.command == "top") return show_once(options.job);
  if (options.command == "logs") return show_logs(options);
  JobConnection job = find_job(options.job);
  if (options.command == "stacks") {
    if (const auto where = elsewhere(job.view(), options.rank.value_or(-1)); options.rank && !where.empty())
      throw UsageError("--rank: " + where);
    print(stacks_text(job, options.rank));
    return 0;
  }
  job.ask({{"ask", "stop"}});
  print("job " + job.view()["job"].get<std::string>() + " is ending\n");
  return 0;
}

}  // namespace ddprun::launcher
