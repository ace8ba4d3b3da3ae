#include "launcher/plan/launch_plan.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using Words = std::vector<std::string>;

TEST_CASE("a name that may hold a secret is known in any case", "[redact]") {
  for (const char* name : {"--api-key", "HF_TOKEN", "my_Secret", "PGPASSWORD", "--passwd", "AWS_CREDENTIALS"})
    CHECK(is_secret_name(name));
  for (const char* name : {"--lr", "PATH", "pass", ""}) CHECK_FALSE(is_secret_name(name));
}

TEST_CASE("values of secret flags and variables are hidden in a command", "[redact]") {
  CHECK(redacted({"a.py", "--api-key=V", "--api-key", "V", "--lr", "1"}) ==
        Words{"a.py", "--api-key=***", "--api-key", "***", "--lr", "1"});
  CHECK(redacted({"env", "API_TOKEN=V", "a.py", "-Dpassword=V", "-secret", "V"}) ==
        Words{"env", "API_TOKEN=***", "a.py", "-Dpassword=***", "-secret", "***"});
  CHECK(redacted({"docker", "--env=API_KEY=V", "-e", "TOKEN=V=W"}) ==
        Words{"docker", "--env=API_KEY=***", "-e", "TOKEN=***"});
}

TEST_CASE("a secret that begins with a dash is hidden, a further flag is not", "[redact]") {
  CHECK(redacted({"--token", "-abc"}) == Words{"--token", "***"});
  CHECK(redacted({"--use-token", "--lr", "1"}) == Words{"--use-token", "--lr", "1"});
  CHECK(redacted({"--use-token", "--key", "V"}) == Words{"--use-token", "--key", "***"});
  CHECK(redacted({"--use-token", "-key", "V"}) == Words{"--use-token", "***", "***"});
  CHECK(redacted({"a", "--token"}) == Words{"a", "--token"});
  CHECK(redacted({"token", "a", "--", "b"}) == Words{"token", "a", "--", "b"});
}

TEST_CASE("passwords in URLs are hidden", "[redact]") {
  CHECK(redacted({"https://me:V@host/x?y=1"}) == Words{"https://me:***@host/x?y=1"});
  CHECK(redacted({"--url=redis://:V@host"}) == Words{"--url=redis://:***@host"});
  CHECK(redacted({"https://host/?a=1&token=V"}) == Words{"https://host/?a=1&token=***"});
  CHECK(redacted({"http://a:2379,http://me:V@b:2379,x://:W@c"}) ==
        Words{"http://a:2379,http://me:***@b:2379,x://:***@c"});
  CHECK(redacted({"https://host/?next=https://me:V@b/"}) == Words{"https://host/?next=https://me:***@b/"});
  CHECK(redacted({"redis://:key=V@host"}) == Words{"redis://:***@host"});
  CHECK(redacted({"redis://:V@host/?key=W"}) == Words{"redis://:***@host/?key=***"});
  for (const char* url : {"https://host:80/", "https://me@host:80/", "https://host/a:b@c", "tcp://[::1]:80"})
    CHECK(redacted({url}) == Words{url});
}

TEST_CASE("variables are hidden by their names", "[redact]") {
  CHECK(redacted_variable("HF_TOKEN=V=W") == "HF_TOKEN=***");
  CHECK(redacted_variable("http_proxy=http://me:V@p:80") == "http_proxy=http://me:***@p:80");
  CHECK(redacted_variable("RANK=1") == "RANK=1");
  CHECK(redacted_variable("odd") == "odd");
}

TEST_CASE("a shown command is what a shell would read, and drives no terminal", "[redact]") {
  CHECK(shown_command({"a.py", "x y", "it's", "", "--lr=0.1", "$HOME", "--key", "V"}) ==
        "a.py 'x y' 'it'\\''s' '' --lr=0.1 '$HOME' --key ***");
  CHECK(shown_command({"a.py", "*.txt", "--token=V"}) == "a.py '*.txt' --token=***");
  CHECK(shown_command({"a\x1b[2Jb\n"}) == "'a?[2Jb?'");
}

}  // namespace
}  // namespace ddprun::launcher
