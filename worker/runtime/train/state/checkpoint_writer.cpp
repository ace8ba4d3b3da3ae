#include <ddprun/train/state/checkpoint_writer.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/state/shard_index.h>

namespace ddprun::train {

namespace fs = std::filesystem;
CheckpointWriter::~CheckpointWriter() {
  ending_ = true;
  wait();
}

void CheckpointWriter::write(const TrainingState& state, Request request) {
  flush();
  snapshot_ =
      serialize::snapshot(to_file_value(state, request.paths.empty() ? "" : request.paths.front()), memory_);
  writing_ = std::async(std::launch::async, [this, request = std::move(request)] { carry_out(request); });
}

void CheckpointWriter::wait() const {
  if (writing_.valid()) writing_.wait();
}

bool CheckpointWriter::busy() const {
  return writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void CheckpointWriter::flush() {
  if (writing_.valid()) writing_.get();
}

void CheckpointWriter::release_memory() {
  wait();
  snapshot_ = {};
  memory_ = {};
}

void CheckpointWriter::carry_out(const Request& request) {
  wrote_first_ = false;
  if (request.finish_shards)
    snapshot_.toGenericDict().insert_or_assign("shards",
                                               request.finish_shards([this] { return ending_.load(); }));
  for (const auto& path : request.paths) {
    folder_.make_way(path);
    serialize::write_pt(path, snapshot_);  // and verified
    auto doomed =
        wrote_first_ ? std::vector<fs::path>() : request.doomed;  // now: the next may need the space
    std::erase_if(doomed, [&](const auto& file) {
      return std::ranges::find(request.paths, file) != request.paths.end();
    });
    wrote_first_ = true;
    folder_.wrote(path, doomed);
  }
  if (request.paths.empty()) return;
  remove_unused_shards(request.paths.front().parent_path(), folder_.identity().run);
  folder_.remove_replaced();
}

}  // namespace ddprun::train
