#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <ddprun/common/files.h>

namespace ddprun::launcher {

/// A pipe from each worker. Its writer never waits for ddprun: if the pipe is full, it drops its data.
///
/// Pipes are read at most ten times a second, so that short steps do not keep ddprun busy; bytes may seem up
/// to 0.1 s younger than they are.
class WorkerPipes {
 public:
  using OnBytes = std::function<void(std::size_t index, std::string_view bytes)>;

  WorkerPipes(boost::asio::io_context& io, OnBytes on_bytes);
  ~WorkerPipes();
  WorkerPipes(const WorkerPipes&) = delete;
  WorkerPipes& operator=(const WorkerPipes&) = delete;

  /// Opens a worker's pipe, and closes that of an earlier worker in its place. returns its writing end, to
  /// close once the worker has inherited it. throws std::system_error
  UniqueFd open(std::size_t index);

  /// Reads what the workers have written so far.
  void read_now();

 private:
  struct Pipe;
  static void close(Pipe& pipe);
  static void watch(const std::shared_ptr<Pipe>& pipe);
  static void take_bytes(const std::shared_ptr<Pipe>& pipe);

  boost::asio::io_context& io_;
  std::shared_ptr<const OnBytes> on_bytes_;
  std::vector<std::shared_ptr<Pipe>> pipes_;
};

}  // namespace ddprun::launcher
