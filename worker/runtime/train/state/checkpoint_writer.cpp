#include <ddprun/train/state/checkpoint_writer.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/serialize/portable_value.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/state/shard_index.h>

namespace ddprun::train {
namespace {

void remove_doomed(const CheckpointWriter::Request& request) {
  for (const auto& doomed : request.doomed) {
    if (std::find(request.paths.begin(), request.paths.end(), doomed) != request.paths.end()) continue;
    std::error_code error;
    if (!std::filesystem::remove(doomed, error) && error)
      throw IoError(doomed, "cannot delete this replaced checkpoint", error.value());
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter() : thread_([this] { run(); }) {}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointWriter::write(const TrainingState& state, Request request) {
  std::unique_lock lock(mutex_);
  wait_until_idle(lock);
  rethrow();
  // The thread waits for a request, so the memory is ours.
  snapshot_ =
      serialize::snapshot(to_file_value(state, request.paths.empty() ? "" : request.paths.front()), memory_);
  request_ = std::move(request);
  lock.unlock();
  changed_.notify_all();
}

bool CheckpointWriter::busy() const {
  const std::lock_guard lock(mutex_);
  return request_.has_value();
}

void CheckpointWriter::flush() {
  std::unique_lock lock(mutex_);
  wait_until_idle(lock);
  rethrow();
}

void CheckpointWriter::release_memory() {
  std::unique_lock lock(mutex_);
  wait_until_idle(lock);
  snapshot_ = {};
  memory_ = {};
}

void CheckpointWriter::wait_until_idle(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [this] { return !request_; });
}

/// With the mutex held.
void CheckpointWriter::rethrow() {
  if (auto error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

void CheckpointWriter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return request_ || ending_; });
    if (!request_) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      carry_out(*request_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    request_.reset();
    changed_.notify_all();
  }
}

void CheckpointWriter::carry_out(const Request& request) {
  wrote_first_ = false;
  if (request.finish_shards)
    snapshot_.toGenericDict().insert_or_assign("shards", request.finish_shards([this] {
      const std::lock_guard lock(mutex_);
      return ending_;
    }));
  for (const auto& path : request.paths) {
    serialize::write_pt(path, snapshot_);                            // and verified
    if (!std::exchange(wrote_first_, true)) remove_doomed(request);  // now: the next may need the space
  }
  if (!request.paths.empty()) remove_unused_shards(request.paths.front().parent_path());
}

}  // namespace ddprun::train
