#include "launcher/ctl/jobs.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include "launcher/status/job_questions.h"

namespace ddprun::launcher {
namespace {

using json = nlohmann::ordered_json;
constexpr std::chrono::seconds kFirstAnswer{2};

void set_patience(int fd, std::chrono::seconds patience) {
  const timeval limit{patience.count(), 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/// Of a socket that nobody listens on yet: its ddprun was killed at the start.
bool is_old(const std::filesystem::path& path) {
  struct stat info {};
  constexpr std::time_t kMinute = 60;
  return ::stat(path.c_str(), &info) == 0 && std::time(nullptr) - info.st_mtime > kMinute;
}

bool is_meant(const json& view, const std::string& wanted) {
  const auto job = view["job"].get<std::string>(), run_id = view["run_id"].get<std::string>();
  return job.starts_with(wanted) || run_id.starts_with(wanted) ||
         std::to_string(view["pid"].get<int>()) == wanted;
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
  if (reply.contains("error")) throw IoError(path_, printable(reply["error"].get<std::string>()));
  return reply;
}

std::vector<JobConnection> find_jobs() {
  std::vector<JobConnection> jobs;
  const auto folder = control_folder();
  if (!is_private_folder(folder)) return jobs;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(folder, unreadable)) {
    if (entry.path().extension() == ".new" && is_old(entry.path())) ::unlink(entry.path().c_str());
    if (entry.path().extension() != ".sock") continue;
    try {
      JobConnection job(entry.path());
      job.view_ = job.ask({{"ask", "status"}}, kFirstAnswer);
      jobs.push_back(std::move(job));
    } catch (const IoError& error) {  // the job has ended or is about to, or ddprun is stopped
      if (error.error_number == ECONNREFUSED) ::unlink(entry.path().c_str());
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
  if (jobs.empty()) throw UsageError("no job of yours runs on this machine");
  if (meant.size() == 1) return std::move(jobs[meant[0]]);
  throw UsageError((wanted.empty()  ? "expected a JOB"
                    : meant.empty() ? "no job is called " + single_quoted(wanted)
                                    : single_quoted(wanted) + " means several jobs") +
                   "; these run: " + names);
}

}  // namespace ddprun::launcher
