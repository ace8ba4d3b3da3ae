#include <ddprun/common/recovery.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tests/support/catch.h"

namespace ddprun::test {
namespace {

struct Pair {
  Pair() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    ours.reset(ends[0]);
    theirs.reset(ends[1]);
  }
  UniqueFd ours, theirs;
};

void send_text(const UniqueFd& fd, const std::string& text) {
  REQUIRE(::send(fd.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
}

bool same_file(int a, int b) {
  struct stat first {
  }, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_ino == second.st_ino &&
         first.st_dev == second.st_dev;
}

}  // namespace

TEST_CASE("a notice of a new round arrives as it was sent, with rank 0's socket", "[round_notice]") {
  const Pair pair;
  const UniqueFd store(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool with_socket = GENERATE(true, false);
  REQUIRE(send_notice(pair.ours.get(), {2, 3, "10.0.0.1", 40001, {1, 4}}, with_socket ? store.get() : -1));
  const auto received = receive_notice(pair.theirs.get());
  REQUIRE(received);
  CHECK(received->notice.round == 2);
  CHECK(received->notice.restart_count == 3);
  CHECK(received->notice.master_addr == "10.0.0.1");
  CHECK(received->notice.master_port == 40001);
  CHECK(received->notice.lost == std::vector{1, 4});
  CHECK(static_cast<bool>(received->store) == with_socket);
  if (with_socket) CHECK(same_file(received->store.get(), store.get()));
  CHECK_FALSE(receive_notice(pair.theirs.get()));
}

TEST_CASE("packets that are no notice are dropped", "[round_notice]") {
  const Pair pair;
  send_text(pair.ours, "}");
  send_text(pair.ours, R"({"round": "one"})");
  REQUIRE(send_notice(pair.ours.get(), {1, 1, "a", 1, {}}, -1));
  const auto received = receive_notice(pair.theirs.get());
  REQUIRE(received);
  CHECK(received->notice.round == 1);
}

TEST_CASE("the last word counts of a program that can or cannot go on", "[round_notice]") {
  const Pair pair;
  CHECK_FALSE(receive_abilities(pair.ours.get()));
  send_abilities(pair.theirs.get(), {true, true});
  send_text(pair.theirs, std::string(70'000, 'x'));
  auto said = receive_abilities(pair.ours.get());
  REQUIRE(said);
  CHECK((said->recovers && said->stands_by));
  send_abilities(pair.theirs.get(), {true, true});
  send_text(pair.theirs, R"({"recovers": false})");
  send_text(pair.theirs, R"({"recovers": 1})");
  said = receive_abilities(pair.ours.get());
  REQUIRE(said);
  CHECK_FALSE((said->recovers || said->stands_by));
  CHECK_FALSE(receive_abilities(pair.ours.get()));
}

TEST_CASE("a notice to nobody, or to one that does not read, does not wait", "[round_notice]") {
  Pair pair;
  bool full = false;
  for (int i = 0; i < 100'000 && !full; ++i) full = !send_notice(pair.ours.get(), {i, i, "a", 1, {}}, -1);
  CHECK(full);
  pair.theirs.reset();
  CHECK_FALSE(send_notice(pair.ours.get(), {1, 1, "a", 1, {}}, -1));
}

}  // namespace ddprun::test
