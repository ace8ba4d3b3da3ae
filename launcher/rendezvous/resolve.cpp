#include "launcher/rendezvous/resolve.h"

#include <netdb.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <thread>

#include <ddprun/common/text/printable.h>
#include <ddprun/common/unique_fd.h>

namespace ddprun::launcher {
namespace asio = boost::asio;
using asio::ip::tcp;
namespace {

struct Lookup {
  std::string host, port;
  std::vector<tcp::endpoint> found;
  int error = 0;  ///< getaddrinfo's
  UniqueFd done{::eventfd(0, EFD_CLOEXEC)};
};

void look_up(Lookup& lookup) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  lookup.error = ::getaddrinfo(lookup.host.c_str(), lookup.port.c_str(), &hints, &list);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    tcp::endpoint endpoint;
    if (entry->ai_addrlen > endpoint.capacity()) continue;
    endpoint.resize(entry->ai_addrlen);
    std::memcpy(endpoint.data(), entry->ai_addr, entry->ai_addrlen);
    lookup.found.push_back(endpoint);
  }
  if (list != nullptr) ::freeaddrinfo(list);
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(lookup.done.get(), &one, sizeof one);
}

}  // namespace

asio::awaitable<std::vector<tcp::endpoint>> resolve(Endpoint endpoint) {
  const auto port = static_cast<unsigned short>(endpoint.port);
  boost::system::error_code is_name;
  const auto address = asio::ip::make_address(endpoint.host, is_name);
  if (!is_name) co_return std::vector{tcp::endpoint(address, port)};
  const auto lookup = std::make_shared<Lookup>();
  lookup->host = endpoint.host;
  lookup->port = std::to_string(port);
  if (!lookup->done) throw std::system_error(errno, std::generic_category(), "eventfd");
  asio::posix::stream_descriptor done(co_await asio::this_coro::executor, ::dup(lookup->done.get()));
  std::thread([lookup] { look_up(*lookup); }).detach();  // who waits may go before it comes back
  std::uint64_t count = 0;
  co_await asio::async_read(done, asio::buffer(&count, sizeof count), asio::use_awaitable);
  if (lookup->error != 0)
    throw std::runtime_error("cannot look up " + ddprun::quoted(endpoint.host) + ": " +
                             ::gai_strerror(lookup->error));
  co_return lookup->found;
}

}  // namespace ddprun::launcher
