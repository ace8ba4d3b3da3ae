#include "launcher/output/log_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include <ddprun/common/errors.h>
#include "tests/launcher/output/output_rig.h"
#include "tests/support/catch.h"

namespace ddprun::test {
using namespace launcher;
namespace {

namespace fs = std::filesystem;

unsigned mode_of(const fs::path& path) {
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

/// No larger file can be written while this lives.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST_CASE("log files are for their owner only, whatever the umask", "[log_file]") {
  const TempDir temp;
  const mode_t before = ::umask(0);
  const LogFolder folder(temp.path() / "made" / "root");
  LogFile file(folder, "run/attempt_0/0/stdout.log");
  ::umask(before);
  file.write("text\n");
  CHECK(read_file(temp.path() / "made/root/run/attempt_0/0/stdout.log") == "text\n");
  CHECK(mode_of(file.path()) == 0600);
  for (fs::path path = file.path().parent_path(); path != temp.path(); path = path.parent_path())
    CHECK(mode_of(path) == 0700);
}

TEST_CASE("latest leads to the newest job, and takes nobody's name", "[log_file]") {
  const TempDir temp;
  const fs::path link = temp.path() / "latest", first = temp.path() / "20261127-081736_05f69a69",
                 second = temp.path() / "my_run_12345678";
  for (const fs::path& job : {first, second}) {
    fs::create_directories(job / "attempt_0");
    link_latest(job);
    CHECK(fs::read_symlink(link) == job.filename());
  }
  fs::remove_all(second);
  link_latest(first);
  CHECK(fs::read_symlink(link) == first.filename());

  const auto stays = [&] {
    const auto before = fs::symlink_status(link).type();
    link_latest(first);
    return fs::symlink_status(link).type() == before;
  };
  fs::remove(link);
  fs::create_directory(link);
  CHECK(stays());
  fs::remove(link);
  write_file_atomic(link, "mine");
  CHECK(stays());
  fs::remove(link);
  fs::create_directories(temp.path() / "run_20261127" / "checkpoints");
  write_file_atomic(temp.path() / "step_00001000", "mine");
  fs::create_directory(temp.path() / "empty_00001000");
  for (const char* target : {"run_20261127", "run7", "./20261127-081736_05f69a69", "step_00001000",
                             "empty_00001000", "0000100a"}) {
    fs::create_symlink(target, link);
    link_latest(first);
    CHECK(fs::read_symlink(link) == target);
    fs::remove(link);
  }
  CHECK(std::distance(fs::directory_iterator(temp.path()), {}) == 4);  // nothing is left beside them
}

TEST_CASE("a file may be named with the folder's path", "[log_file]") {
  const TempDir temp;
  const LogFolder folder(temp.path());
  const LogFile file(folder, temp.path() / "a" / "b.log");
  CHECK(file.path() == temp.path() / "a" / "b.log");
  CHECK(fs::exists(file.path()));
}

TEST_CASE("a log file never follows a link or takes a file that is there", "[log_file]") {
  const TempDir temp, elsewhere;
  const LogFolder folder(temp.path());
  write_file_atomic(temp.path() / "file", "old");
  fs::create_symlink(elsewhere.path() / "victim", temp.path() / "dangling");
  fs::create_symlink(temp.path() / "file", temp.path() / "link");
  fs::create_directory_symlink(elsewhere.path(), temp.path() / "folder");
  for (const char* name : {"file", "dangling", "link", "folder/victim"})
    CHECK_THROWS_AS(LogFile(folder, name), IoError);
  CHECK(read_file(temp.path() / "file") == "old");
  CHECK(fs::is_empty(elsewhere.path()));
}

TEST_CASE("a log file lies inside its folder", "[log_file]") {
  const TempDir temp;
  const LogFolder folder(temp.path() / "logs");
  for (const char* name : {"../out", "a/../../out", "/somewhere/out", "", ".", "a/"})
    CHECK_THROWS_AS(LogFile(folder, name), IoError);
  CHECK(std::distance(fs::directory_iterator(temp.path()), {}) == 1);
}

TEST_CASE("a folder that others may change is refused unless it has the sticky bit", "[log_file]") {
  const TempDir temp;
  ::chmod(temp.path().c_str(), 0777);
  CHECK_THROWS_WITH(LogFolder(temp.path()), ContainsSubstring(temp.path().string() + ": expected a folder"));
  ::chmod(temp.path().c_str(), 01777);
  const LogFolder folder(temp.path());
  fs::create_directory(temp.path() / "open");
  ::chmod((temp.path() / "open").c_str(), 0777);
  CHECK_THROWS_AS(LogFile(folder, "open/file"), IoError);
  CHECK_NOTHROW(LogFile(folder, "closed/file"));
}

TEST_CASE("a folder of another user is refused", "[log_file]") {
  if (::geteuid() != 0) skip("only root can give a folder away");
  const TempDir temp;
  const LogFolder root(temp.path());
  fs::create_directory(temp.path() / "theirs");
  REQUIRE(::chown((temp.path() / "theirs").c_str(), 12345, 12345) == 0);
  CHECK_THROWS_AS(LogFolder(temp.path() / "theirs"), IoError);
  CHECK_THROWS_AS(LogFile(root, "theirs/file"), IoError);
}

TEST_CASE("a folder is safe, unsafe, or on a share whose owners and modes mean nothing", "[log_file]") {
  const auto status = [](uid_t owner, mode_t mode) {
    struct stat info {};
    info.st_uid = owner;
    info.st_mode = mode;
    return info;
  };
  const auto trust = [&](const struct stat& folder, const struct stat& file) {
    return folder_trust(folder, &file, /*us=*/1000);
  };
  using enum FolderTrust;
  CHECK(trust(status(1000, 0700), status(1000, 0600)) == kSafe);
  CHECK(trust(status(1000, 0777), status(1000, 0600)) == kUnsafe);
  CHECK(trust(status(12345, 0700), status(1000, 0600)) == kUnsafe);
  CHECK(trust(status(1000, 0777), status(1000, 0777)) == kUnknown);    // SMB
  CHECK(trust(status(0, 0755), status(0, 0644)) == kUnknown);          // gcsfuse, mounted by root
  CHECK(trust(status(65534, 0700), status(65534, 0600)) == kUnknown);  // NFS with root_squash
  CHECK(trust(status(65534, 0777), status(65534, 0600)) == kUnsafe);
  CHECK(folder_trust(status(65534, 0777), nullptr, 1000) == kUnsafe);
}

TEST_CASE("a log folder that is a file is an error naming it", "[log_file]") {
  const TempDir temp;
  write_file_atomic(temp.path() / "file", "");
  CHECK_THROWS_WITH(LogFolder(temp.path() / "file"),
                    ContainsSubstring("file: cannot open the log folder: Not a"));
  CHECK_THROWS_AS(LogFolder(temp.path() / "file" / "below"), IoError);
}

TEST_CASE("a full file is renamed and begun anew at the end of a line", "[log_file]") {
  const TempDir temp;
  LogFile file(LogFolder(temp.path()), "log", 10);
  file.write("one\ntwo\nthree\n");
  CHECK(read_file(temp.path() / "log.1") == "one\ntwo\n");
  CHECK(read_file(temp.path() / "log") == "three\n");
  file.write("four\n");
  CHECK(read_file(temp.path() / "log.1") == "three\n");
  CHECK(read_file(temp.path() / "log") == "four\n");
  CHECK(mode_of(temp.path() / "log") == 0600);
}

TEST_CASE("a line longer than the limit is divided, and no byte is lost at a rotation", "[log_file]") {
  const TempDir temp;
  LogFile file(LogFolder(temp.path()), "log", 10);
  file.write("abc");
  file.write("defghijkl");
  CHECK(read_file(temp.path() / "log.1") == "abcdefghij");
  CHECK(read_file(temp.path() / "log") == "kl");
  file.write("mnopqrstuvwxyz\n");
  CHECK(read_file(temp.path() / "log.1") + read_file(temp.path() / "log") == "klmnopqrstuvwxyz\n");
}

TEST_CASE("a file that cannot be rotated grows, with one warning", "[log_file]") {
  const TempDir temp;
  CapturedLog log;
  LogFile file(LogFolder(temp.path()), "log", 4);
  fs::create_directory(temp.path() / "log.1");
  for (const char* line : {"one\n", "two\n", "six\n"}) file.write(line);
  CHECK(read_file(temp.path() / "log") == "one\ntwo\nsix\n");
  CHECK(count_of("warning: " + file.path().string() + ": cannot rename", log.text()) == 1);
}

TEST_CASE("a full disk is one warning, and writing is tried again", "[log_file]") {
  const TempDir temp;
  CapturedLog log;
  LogFile file(LogFolder(temp.path()), "log");
  {
    const SmallDisk disk(6);
    for (int i = 0; i < 3; ++i) file.write("1234\n");
  }
  CHECK(read_file(temp.path() / "log") == "1234\n1");
  file.write("after\n");
  CHECK(read_file(temp.path() / "log") == "1234\n1after\n");
  CHECK_THAT(log.text(), ContainsSubstring("ddprun: warning: " + file.path().string() + ": cannot write") &&
                             ContainsSubstring("File too large"));
  CHECK(count_of("\n", log.text()) == 1);
}

}  // namespace
}  // namespace ddprun::test
