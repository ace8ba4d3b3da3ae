#include "launcher/ctl/commands.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <thread>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

using namespace ddprun;
using ddprun::launcher::JobConnection;
using ddprun::test::ContainsSubstring;
namespace asio = boost::asio;
using asio::local::stream_protocol;

TEST_CASE("a job that has ended is said to have ended, however often it is asked", "[ctl]") {
  const TempDir dir;
  const auto path = dir.path() / "job.sock";
  asio::io_context context;
  std::optional<stream_protocol::acceptor> acceptor(std::in_place, context,
                                                    stream_protocol::endpoint(path.string()));
  JobConnection connection(path);
  acceptor.reset();
  SECTION("its socket is gone") { std::filesystem::remove(path); }
  SECTION("nobody listens there") {}
  for (int times = 0; times < 3; ++times) try {
      connection.ask({{"ask", "status"}});
      FAIL("it has answered");
    } catch (const IoError& error) {
      CHECK(error.error_number == 0);
      CHECK_THAT(error.what(), ContainsSubstring("the job has ended"));
    }
}

TEST_CASE("an answer that comes too late is not taken for the next one", "[ctl]") {
  const TempDir dir;
  const auto path = dir.path() / "job.sock";
  asio::io_context context;
  stream_protocol::acceptor acceptor(context, stream_protocol::endpoint(path.string()));
  std::promise<void> asked_again;
  std::thread job([&, late = asked_again.get_future()] {
    const auto answer = [](stream_protocol::socket& client, const std::string& text) {
      boost::system::error_code gone;
      asio::write(client, asio::buffer("{\"answer\": \"" + text + "\"}\n"), gone);
    };
    asio::streambuf question, next;
    auto first = acceptor.accept();
    asio::read_until(first, question, '\n');
    late.wait();
    answer(first, "late");
    auto second = acceptor.accept();
    asio::read_until(second, next, '\n');
    answer(second, "new");
  });
  JobConnection connection(path);
  try {
    connection.ask({{"ask", "output"}}, std::chrono::seconds(1));
    FAIL("it has answered");
  } catch (const IoError& error) {
    CHECK(error.error_number == ETIMEDOUT);
  }
  asked_again.set_value();
  CHECK(connection.ask({{"ask", "status"}})["answer"] == "new");
  job.join();
}
