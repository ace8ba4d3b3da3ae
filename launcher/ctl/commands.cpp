#include "launcher/ctl/commands.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <string_view>
#include <thread>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/moved_files.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/common/text.h>
#include "launcher/job/server.h"

namespace ddprun::launcher {
namespace {

using json = nlohmann::ordered_json;
constexpr std::chrono::seconds kFirstAnswer{2};

void set_patience(int fd, std::chrono::seconds patience) {
  const timeval limit{patience.count(), 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/// Another program of this user's may listen there.
bool is_status(const json& answer) {
  const auto is = [&](const char* name, bool (json::*type)() const) {
    return answer.contains(name) && (answer[name].*type)();
  };
  return is("job", &json::is_string) && is("run_id", &json::is_string) && is("pid", &json::is_number) &&
         is("start", &json::is_string);
}

bool is_meant(const json& view, const std::string& wanted) {
  const auto job = view["job"].get<std::string>(), run_id = view["run_id"].get<std::string>();
  return job.starts_with(wanted) || run_id.starts_with(wanted) ||
         std::to_string(view["pid"].get<int>()) == wanted;
}

constexpr std::chrono::seconds kStacksPatience{15};
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
    print("none of your jobs is running on this machine\n");
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

/// One rank's output: its log files if it has any, else what ddprun keeps.
class RankLog {
 public:
  RankLog(int rank, std::string prefix) : rank_(rank), prefix_(std::move(prefix)) {}

  void show_new(JobConnection& job, const json& view) {
    std::vector<std::string> files;
    for (const json& rank : view["ranks"])
      if (rank["rank"] == rank_) files = rank["logs"].get<std::vector<std::string>>();
    for (const std::string& file : files) show_file(file);
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
  void show_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    std::streamoff& offset = offsets_[path];
    if (!file || file.tellg() < offset) offset = 0;  // the file was started anew
    file.seekg(offset);
    for (std::string bytes(1 << 16, '\0'); file.read(bytes.data(), 1 << 16), file.gcount() > 0;) {
      offset += file.gcount();
      show(path, std::string_view(bytes).substr(0, static_cast<std::size_t>(file.gcount())));
    }
  }
  void show(const std::string& source, std::string_view bytes) {
    std::string& text = partial_[source];
    std::size_t look_from = text.size(), begin = 0;
    text += bytes;
    const bool tty = ::isatty(STDOUT_FILENO) == 1;
    std::string shown;
    for (std::size_t end; (end = text.find('\n', look_from)) != std::string::npos;
         begin = look_from = end + 1) {
      const std::string line = text.substr(begin, end - begin);
      shown += prefix_ + (tty ? printable(last_shown(line)) : line) + "\n";
    }
    text.erase(0, begin);
    if (!shown.empty()) print(shown);
  }

  int rank_;
  std::string prefix_;
  int pid_ = 0;
  std::uint64_t seen_ = 0;
  std::map<std::string, std::streamoff> offsets_;
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
      try {
        logs.try_emplace(number, number, prefix).first->second.show_new(job, view);
      } catch (const IoError& error) {  // the job has just ended
        if (!options.follow || error.error_number != 0) throw;
      }
    }
    if (!any && options.rank) throw UsageError("--rank: " + elsewhere(view, *options.rank));
    if (!options.follow) break;
    std::this_thread::sleep_for(kFollowEvery);
    try {
      view = job.ask({{"ask", "status"}});
    } catch (const IoError& error) {
      if (error.error_number != 0) throw;
      break;  // the job has ended
    }
  }
  for (auto& [rank, log] : logs) log.finish();
  return 0;
}

}  // namespace

JobConnection::JobConnection(const std::filesystem::path& socket) : path_(socket) { connect(); }

void JobConnection::connect() {
  received_.clear();
  fd_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.native().size() >= sizeof address.sun_path) throw IoError(path_, "cannot connect", ENAMETOOLONG);
  std::strcpy(address.sun_path, path_.c_str());
  set_patience(fd_.get(), kFirstAnswer);
  if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw IoError(path_, "cannot connect", errno);
}

void JobConnection::reconnect() try { connect(); } catch (const IoError& error) {
  fd_.reset();
  if (error.error_number == ENOENT || error.error_number == ECONNREFUSED)
    throw IoError(path_, "the job has ended");
  throw;
}

json JobConnection::ask(const json& request, std::chrono::seconds patience) {
  if (!fd_) reconnect();
  set_patience(fd_.get(), patience);
  const std::string line = request.dump() + "\n";
  const auto fail = [&](int error) {
    fd_.reset();  // a late answer would be taken for the next one
    if (error == EAGAIN || error == EWOULDBLOCK) throw IoError(path_, "the job does not answer", ETIMEDOUT);
    throw IoError(path_, "the job has ended");
  };
  if (::send(fd_.get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
    fail(errno);
  std::size_t end;
  while ((end = received_.find('\n')) == std::string::npos) {
    char bytes[1 << 16];
    const ssize_t n = ::recv(fd_.get(), bytes, sizeof bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(n < 0 ? errno : 0);
    received_.append(bytes, static_cast<std::size_t>(n));
  }
  const auto reply = json::parse(received_.substr(0, end), nullptr, /*allow_exceptions=*/false);
  received_.erase(0, end + 1);
  if (!reply.is_object()) throw IoError(path_, "the answer is not JSON");
  if (const auto error = reply.find("error"); error != reply.end())
    throw IoError(path_, printable(error->is_string() ? error->get<std::string>() : error->dump()));
  return reply;
}

std::vector<JobConnection> find_jobs() {
  std::vector<JobConnection> jobs;
  const auto folder = control_folder();
  if (!is_private_folder(folder)) return jobs;
  for (const auto& entry : folder_entries(folder)) {
    if (entry.extension() == ".new") remove_if_dead(entry);
    if (!is_job_socket(entry)) continue;
    try {
      JobConnection job(entry);
      job.view_ = job.ask({{"ask", "status"}}, kFirstAnswer);
      if (is_status(job.view_)) jobs.push_back(std::move(job));
    } catch (const IoError& error) {  // the job has ended or is about to, or ddprun is stopped
      if (error.error_number == ECONNREFUSED) remove_if_dead(entry);
      if (error.error_number == ETIMEDOUT) log_warning(error.what());
    }
  }
  std::sort(jobs.begin(), jobs.end(), [](const JobConnection& a, const JobConnection& b) {
    return a.view()["start"] < b.view()["start"];
  });
  return jobs;
}

JobConnection find_job(const std::string& wanted) {
  std::vector<JobConnection> jobs = find_jobs();
  std::string names;
  std::vector<std::size_t> meant;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const json& view = jobs[i].view();
    names += (names.empty() ? "" : ", ") + view["job"].get<std::string>();
    if (is_meant(view, wanted)) meant.push_back(i);
    if (view["job"] == wanted || view["run_id"] == wanted) return std::move(jobs[i]);
  }
  if (jobs.empty()) throw UsageError("none of your jobs is running on this machine");
  if (meant.size() == 1) return std::move(jobs[meant[0]]);
  throw UsageError((wanted.empty()  ? "expected a JOB"
                    : meant.empty() ? "no job is called " + single_quoted(wanted)
                                    : single_quoted(wanted) + " matches several jobs") +
                   "; these are running: " + names);
}

std::string ctl_help() {
  return R"(ddpctl: inspects and controls your running ddprun jobs on this machine.

usage: ddpctl COMMAND [JOB] [flags]
JOB is the job's name in ddpctl ps, its run id or ddprun's pid. The beginning of
one of them is enough.

Commands
  ps               list the jobs
  top [JOB]        show a job's ranks as it runs; the key h shows all keys
  logs JOB         show what its ranks wrote: their log files, or the last 8 KiB
                   of each
  stacks JOB       show the stacks of its ranks, which keep running
  drain NODE [JOB] have a node leave it without losing work: NODE is its name,
                   its node rank, or the JOB of its ddprun
  stop JOB         end the job, on all nodes

JOB can be left out while only one job runs. Without JOB, top begins with the
newest job.

Flags
  --once               top: print the table once as text, for all jobs if JOB
                       is left out; the default without a terminal
  --interval SECONDS   top: seconds between updates, 0.1 to 60 [2]
  -f, --follow         logs: keep showing output until the job ends
  --rank R             logs, stacks: only those of this rank
  -h, --help           show this help
  --version            show the version
)";
}

CtlOptions parse_ctl_options(const std::vector<std::string>& words) {
  CtlOptions options;
  const auto rank_of = [](const std::string& text) -> std::optional<std::optional<int>> {
    if (const auto rank = parse_integer(text, 0, 1 << 24)) return rank;
    return std::nullopt;
  };
  settings::Command command;
  command.name = "ddpctl";
  std::string more;
  command.positionals = {{"command", "COMMAND"}, {"job", "[JOB]"}, {"more", "[JOB]"}};
  command.settings = {
      settings::boolean("help", options.help).short_flag("-h"),
      settings::boolean("version", options.version),
      settings::boolean("once", options.once),
      settings::boolean("follow", options.follow).short_flag("-f"),
      settings::parsed("rank", options.rank, rank_of, "a rank, from 0"),
      settings::number("interval", options.interval, {0.1, 60, false, "seconds from 0.1 to 60"}, ""),
      settings::choice("command", options.command, {"ps", "top", "logs", "stacks", "drain", "stop"})
          .not_a_flag(),
      settings::text("job", options.job).not_a_flag(),
      settings::text("more", more).not_a_flag(),
  };
  const settings::Values values = settings::read_words(words, command);
  values.apply(command.settings);
  if (!options.help && !options.version && !values.given("command"))
    throw UsageError("expected ps, top, logs, stacks, drain or stop (ddpctl --help)");
  if (options.command == "drain") {
    options.node = std::exchange(options.job, more);
    if (options.node.empty()) throw UsageError("expected a node; usage: ddpctl drain NODE [JOB]");
  } else if (values.given("more")) {
    throw UsageError("unexpected argument " + single_quoted(more) + "; usage: ddpctl [flags] COMMAND [JOB]");
  }
  return options;
}

std::string stacks_text(JobConnection& job, std::optional<int> rank) {
  json request = {{"ask", "stacks"}};
  if (rank) request["rank"] = *rank;
  std::string text;
  const json reply = job.ask(request, kStacksPatience);
  for (const json& of : reply["ranks"]) {
    text += "rank " + std::to_string(of["rank"].get<int>()) + "\n";
    if (const auto problem = of["problem"].get<std::string>(); !problem.empty())
      text += (of.value("tools", json::array()).empty() ? "no stacks: " : "") + printable(problem) + "\n";
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
    if (const auto others = other_nodes(job.view()); !options.rank && !others.empty()) print(others + "\n");
    return 0;
  }
  if (options.command == "drain") {
    const json reply = job.ask({{"ask", "drain"}, {"node", options.node}});
    if (!reply.contains("drains")) {
      log_error(printable(reply.value("refused", "the job's ddprun cannot drain nodes")));
      return 1;
    }
    print(printable(reply["drains"].get<std::string>()) + "\n");
    return 0;
  }
  job.ask({{"ask", "stop"}});
  print("job " + job.view()["job"].get<std::string>() + " is ending\n");
  return 0;
}

}  // namespace ddprun::launcher
