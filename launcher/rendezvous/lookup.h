#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/rendezvous/endpoint.h"

namespace ddprun::launcher {

/// Looks up endpoints' addresses aside: a name server may take a minute to fail. An answer that comes too
/// late serves the next look-up.
class AddressBook {
 public:
  using Addresses = std::vector<boost::asio::ip::tcp::endpoint>;

  /// deadline  nullopt: waits for the name server, however long it takes
  /// throws    std::runtime_error with the system's reason
  boost::asio::awaitable<Addresses> resolve(Endpoint endpoint,
                                            std::optional<std::chrono::steady_clock::time_point> deadline);

 private:
  struct Entry;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
};

}  // namespace ddprun::launcher
