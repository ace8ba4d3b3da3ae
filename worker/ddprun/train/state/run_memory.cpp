#include <ddprun/train/state/run_memory.h>

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <ATen/ATen.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/serialize.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/rounds.h>

namespace ddprun::train {
namespace {

constexpr std::uint64_t kMagic = 0x31'53'4E'55'52'50'44'44;  // "DDPRUNS1"
constexpr off_t kFirst = 4096;                               // of the first slot's contents

/// All of these bytes, with ::pread or ::pwrite.
template <auto kCall, class Byte>
bool transfer(int fd, Byte* bytes, std::size_t size, off_t at) {
  while (size > 0) {
    const ssize_t n = kCall(fd, bytes, size, at);
    if (n <= 0) return false;
    bytes += n, at += n, size -= static_cast<std::size_t>(n);
  }
  return true;
}

/// A record's head and state, one after the other.
template <auto kCall, class Record>
bool transfer(int fd, Record& record, off_t at) {
  return transfer<kCall>(fd, record.head.data(), record.head.size(), at) &&
         transfer<kCall>(fd, record.state.data(), record.state.size(),
                         at + static_cast<off_t>(record.head.size()));
}

std::uint32_t checksum(const MemoryFile::Record& record) {
  auto sum = ::crc32_z(0, reinterpret_cast<const Bytef*>(record.head.data()), record.head.size());
  sum = ::crc32_z(sum, reinterpret_cast<const Bytef*>(record.state.data()), record.state.size());
  return static_cast<std::uint32_t>(sum);
}

ddp::ProcessGroup all_of(const ddp::ProcessGroup& group) {
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return *group.new_group(ranks);
}

at::Tensor over(std::string& bytes) {
  return at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

Place place_of(const std::optional<TrainingState>& state, int progress) {
  if (!state) return {};
  return {state->position.epoch, state->position.samples, state->step, progress};
}

nlohmann::json head_of(const RunMemory& memory, const Place& place) {
  return {{"folder", memory.folder.string()},
          {"begun", memory.begun},
          {"run", memory.identity.run},
          {"branch", memory.identity.branch},
          {"place", place}};
}

/// The source's bytes, on every rank that calls this. pass  copies the source's tensors into the others'
template <class Pass>
std::string passed(std::string bytes, const Pass& pass) {
  const auto size = at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong);
  pass({size});
  bytes.resize(static_cast<std::size_t>(size.item<std::int64_t>()));
  pass({over(bytes)});
  return bytes;
}

/// The state in a memory file.
TrainingState unpickled(const std::string& bytes) {
  return to_training_state(torch::pickle_load({bytes.begin(), bytes.end()}), kInMemory);
}

}  // namespace

TrainingState broadcast_state(const ddp::ProcessGroup& group, const std::optional<TrainingState>& state,
                              int source) {
  const auto broadcast = [&](const std::vector<at::Tensor>& from) {
    ddp::broadcast_from(group, from, source);
  };
  std::vector<at::Tensor> tensors;
  std::vector<char> rest;
  auto shapes = nlohmann::json::array();
  if (group.rank() == source) {
    rest = torch::jit::pickle(serialize::portable_value(to_value(*state)), &tensors);
    for (auto& tensor : tensors) {
      tensor = tensor.contiguous();
      shapes.push_back({static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
    }
  }
  // In one string: the shapes, a zero, the rest.
  const auto text = passed(shapes.dump() + '\0' + std::string(rest.begin(), rest.end()), broadcast);
  const auto end = text.find('\0');
  if (group.rank() != source)
    for (const auto& each : nlohmann::json::parse(text.substr(0, end)))
      tensors.push_back(at::empty(each[1].get<std::vector<std::int64_t>>(), each[0].get<at::ScalarType>()));
  std::vector<at::Tensor> bytes;  // Gloo does not send every type
  for (const auto& tensor : tensors)
    if (tensor.numel() > 0) bytes.push_back(tensor.view({-1}).view(at::kByte));
  broadcast(bytes);
  if (group.rank() == source) return *state;
  return to_training_state(
      torch::jit::unpickle(text.data() + end + 1, text.size() - end - 1, nullptr, tensors), kInMemory);
}

/// One of the file's two slots, which both begin with this; its contents follow at `offset`. Written last.
struct MemoryFile::Slot {
  std::uint64_t magic = kMagic, sequence = 0, offset = 0, head_size = 0, state_size = 0, checksum = 0;
  int index = 0;

  std::uint64_t size() const { return head_size + state_size; }
};

MemoryFile::MemoryFile(int fd, off_t begin) : begin_(begin) {
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) fd_ = fd;
}

bool MemoryFile::idle() const {
  const bool written =
      !writing_.valid() || writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  return written && !warned_ && fd_ >= 0;
}

std::vector<MemoryFile::Slot> MemoryFile::slots() const {
  std::vector<Slot> found;
  for (int i = 0; i < 2; ++i) {
    Slot slot;
    if (transfer<::pread>(fd_, reinterpret_cast<char*>(&slot), sizeof slot,
                          begin_ + i * static_cast<off_t>(sizeof slot)) &&
        slot.magic == kMagic)
      found.insert(!found.empty() && slot.sequence > found[0].sequence ? found.begin() : found.end(), slot);
  }
  return found;
}

bool MemoryFile::write_slot(const Slot& slot) {
  return transfer<::pwrite>(fd_, reinterpret_cast<const char*>(&slot), sizeof slot,
                            begin_ + slot.index * static_cast<off_t>(sizeof slot));
}

void MemoryFile::write(const std::string& head, const c10::IValue& state, const std::function<void()>& copied,
                       const std::function<void(const Record*)>& written) {
  wait();
  if (fd_ < 0 || warned_) return;
  memory_.start_over();
  auto copy = serialize::stage(state, memory_);
  if (copied) copied();
  writing_ = std::async(std::launch::async, [this, head, copy = std::move(copy), written] {
    Record record{head, {}};
    try {
      const auto pickled = torch::pickle_save(copy);
      record.state.assign(pickled.begin(), pickled.end());
      put(record);
    } catch (const std::exception& error) {  // for instance out of memory
      give_up(error.what());
    }
    if (written) written(warned_ ? nullptr : &record);
  });
}

void MemoryFile::give_up(const std::string& problem) {
  warned_ = true;
  log_warning(
      "the training's state can no longer be kept in memory: " + problem +
      "; if it is needed, the run continues from what was kept until now, or from a newer checkpoint");
}

void MemoryFile::put(const Record& record) {
  if (warned_) return;
  const auto all = slots();
  const auto* before = all.empty() ? nullptr : &all[0];
  Slot slot;
  slot.sequence = before != nullptr ? before->sequence + 1 : 1;
  slot.index = before != nullptr ? 1 - before->index : 0;
  slot.head_size = record.head.size();
  slot.state_size = record.state.size();
  slot.checksum = checksum(record);
  // Before the other one if there is room, else after it.
  slot.offset = kFirst;
  if (before != nullptr && before->offset < kFirst + slot.size())
    slot.offset = before->offset + before->size();
  if (transfer<::pwrite>(fd_, record, begin_ + static_cast<off_t>(slot.offset)) && write_slot(slot)) return;
  give_up(errno == EFBIG ? "it is larger than the file size limit (ulimit -f) allows" : std::strerror(errno));
}

std::optional<MemoryFile::Record> MemoryFile::contents(const Slot& slot) const {
  Record record;
  record.head.resize(slot.head_size);
  record.state.resize(slot.state_size);
  const bool whole = transfer<::pread>(fd_, record, begin_ + static_cast<off_t>(slot.offset)) &&
                     checksum(record) == slot.checksum;
  return whole ? std::optional(std::move(record)) : std::nullopt;
}

std::optional<MemoryFile::Record> MemoryFile::read() const {
  const auto all = slots();
  return all.empty() ? std::nullopt : contents(all[0]);
}

std::vector<std::string> MemoryFile::heads() const {
  wait();
  std::vector<std::string> heads;
  for (const Slot& slot : slots())
    if (const auto record = contents(slot)) heads.push_back(record->head);
  return heads;
}

void MemoryFile::forget(const std::string& head) {
  for (Slot slot : slots()) {
    const auto record = contents(slot);
    if (record && record->head != head) continue;
    slot.magic = 0;
    write_slot(slot);
  }
}

PartCopies::PartCopies(const ddp::ProcessGroup& group, int distance, MemoryFile& file)
    : group_(all_of(group)),
      to_((group.rank() + distance) % group.size()),
      from_((group.rank() + group.size() - distance) % group.size()),
      file_(file) {}

void PartCopies::abort() { group_.handle()->getBackend(at::kCPU)->abort(); }

void PartCopies::exchange(const MemoryFile::Record& own) try {
  if (failed_) return;
  // Gloo may not notice that a connection has closed.
  const std::jthread watch([this](const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any ended;
    while (!ended.wait_for(lock, stop, std::chrono::milliseconds(200), [&] { return stop.stop_requested(); }))
      if (group_.has_lost_a_rank()) return abort();
  });
  const auto head = exchange_bytes(own.head);
  file_.put({head, exchange_bytes(own.state)});
} catch (const std::exception&) {  // a rank is lost, or has no memory for its part
  failed_ = true;
  abort();  // so that the next rank does not wait either
}

std::string PartCopies::exchange_bytes(const std::string& own) {
  const auto pass = [&](const at::Tensor& sent, const at::Tensor& received) {
    std::vector<at::Tensor> out = {sent}, in = {received};
    const auto receiving = group_.handle()->recv(in, from_, /*tag=*/0);
    group_.handle()->send(out, to_, /*tag=*/0)->wait();
    receiving->wait();
  };
  const auto size = at::full({1}, static_cast<std::int64_t>(own.size()), at::kLong),
             other = at::empty_like(size);
  pass(size, other);
  std::string bytes(static_cast<std::size_t>(other.item<std::int64_t>()), '\0'), sent = own;
  pass(over(sent), over(bytes));
  return bytes;
}

void RunMemory::begin(const RunIdentity& now) {
  identity = now;
  if (!std::exchange(begun, true) && file && !file->read())
    file->write(head_of(*this, {}).dump(), c10::IValue());
}

void RunMemory::snapshot(const TrainingState& newest) const {
  file->write(head_of(*this, place_of(newest, 0)).dump(), to_value(newest));
}

void RunMemory::snapshot_part(const TrainingState& newest, const ddp::ProcessGroup& group) {
  if (copying && copying->failed()) {  // with all ranks there
    if (group.rank() == 0) log_warning("--replicate-shards: a connection was lost: no more copies for now");
    copying.reset();
  }
  auto head = head_of(*this, place_of(newest, 0));
  head.update({{"rank", group.rank()}, {"ranks", group.size()}, {"number", next_part++}});
  // On a GPU, a step that was running when a rank was lost continues with arbitrary numbers: do not keep it.
  file->write(head.dump(), to_value(newest), &ddp::Rounds::check,
              [copying = copying.get()](const MemoryFile::Record* record) {
                if (copying != nullptr) record != nullptr ? copying->exchange(*record) : copying->abort();
              });
}

void RunMemory::drop_states(bool ended) {
  state.reset();
  if (!file) return;
  for (auto* each : files())
    for (const auto& head : each->heads()) each->forget(head);
  if (ended) return;
  file->write(head_of(*this, {}).dump(), c10::IValue());
  file->wait();
}

void RunMemory::connect(const ddp::ProcessGroup& group, int local_ranks) {
  if (!copies) return;
  // The same everywhere, so that each rank has one copy; large enough to reach another node.
  const int distance = static_cast<int>(ddp::all_reduce_max(group, {static_cast<double>(local_ranks)})[0]);
  if (group.size() >= 2 * distance)
    copying = std::make_unique<PartCopies>(group, distance, *copies);
  else if (group.rank() == 0)
    log_warning("--replicate-shards: no copies are kept: copies need at least " +
                std::to_string(2 * distance) + " ranks, twice as many as the largest node has, got " +
                std::to_string(group.size()));
}

void RunMemory::disconnect() {
  if (copying) copying->abort();
  if (file) file->wait();
  copying.reset();
}

void RunMemory::take_over(const std::vector<nlohmann::json>& heads) {
  for (const auto& each : heads) {
    if (folder.empty()) folder = each["folder"].get<std::string>();
    begun = begun || each["begun"].get<bool>();
    if (identity.run.empty() || each["branch"] > identity.branch) identity = {each["run"], each["branch"]};
  }
}

std::vector<MemoryFile*> RunMemory::files() const {
  std::vector<MemoryFile*> all = {file.get()};
  if (copies) all.push_back(copies.get());
  return all;
}

/// Its shards may be on other nodes.
ResumePoint RunMemory::newest_saved() const {
  const VerifyShards unverified = [](const auto&, const auto&) {};
  return find_resume(folder, unverified, identity);
}

bool RunMemory::has_saved(const ddp::ProcessGroup& group) const {
  return ddp::any_rank_true(group, group.rank() == 0 && newest_saved().found());
}

bool RunMemory::saved_later(const ddp::ProcessGroup& group, const Place& place) const {
  bool later = false;
  if (group.rank() == 0) {
    try {
      const auto saved = newest_saved();
      later = saved.found() && place_of(saved.state, 0) > place;
    } catch (const IoError& error) {
      log_warning(error.what());
    }
  }
  return ddp::any_rank_true(group, later);
}

Parts RunMemory::find_parts(const ddp::ProcessGroup& group) {
  auto own = nlohmann::json::array({head_of(*this, {})});
  for (const auto* each : files())
    for (const auto& head : each->heads())
      own.push_back(own[0]), own.back().update(nlohmann::json::parse(head));
  std::vector<std::vector<PartHead>> held;
  next_part = 0;
  for (const auto& text : ddp::all_gather(group, own.dump())) {
    const auto heads = nlohmann::json::parse(text).get<std::vector<nlohmann::json>>();
    take_over(heads);
    held.emplace_back();
    for (const auto& head : heads) {
      const auto number = head.value("number", std::int64_t{-1});
      next_part = std::max(next_part, number + 1);
      if (number >= 0)
        held.back().push_back({number, head["rank"], head["ranks"], head["place"].get<Place>()});
    }
  }
  return choose_parts(held);
}

void RunMemory::share_parts(const ddp::ProcessGroup& group) {
  state.reset();
  const auto parts_of = find_parts(group);
  if (parts_of.holders.empty()) {
    if (begun && group.rank() == 0)
      log_warning("a rank's part of the state was lost: continuing from the last checkpoint");
    return;
  }
  if (saved_later(group, parts_of.place)) return;
  // The older of two states is overwritten next: that must not be the only one that all have.
  for (auto* each : files())
    for (const auto& head : each->heads())
      if (nlohmann::json::parse(head).value("number", std::int64_t{-1}) != parts_of.number)
        each->forget(head);
  const auto part_of = [&](int rank) {
    for (const auto* each : files())
      if (auto record = each->read(); record && nlohmann::json::parse(record->head).value("rank", -1) == rank)
        return std::move(record->state);
    return std::string();
  };
  std::string own;
  for (const auto& [rank, holder] : parts_of.holders) {
    if (group.rank() != rank && group.rank() != holder) continue;
    auto part = group.rank() == holder ? part_of(rank) : "";
    if (rank != holder)
      part = passed(std::move(part), [&](std::vector<at::Tensor> tensors) {
        const auto& handle = group.handle();
        const bool sends = group.rank() == holder;
        (sends ? handle->send(tensors, rank, /*tag=*/0) : handle->recv(tensors, holder, /*tag=*/0))->wait();
      });
    if (group.rank() == rank) own = std::move(part);
  }
  state = unpickled(own);
}

void RunMemory::share(const ddp::ProcessGroup& group) {
  if (parts) return share_parts(group);
  auto head = head_of(*this, place_of(state, progress));
  const auto kept = file && !state ? file->read() : std::nullopt;
  if (kept) head.update(nlohmann::json::parse(kept->head)), head["kept"] = true;
  if (head.contains("program"))
    log_info("the state in ddprun's memory is another program's, and is not used");
  std::vector<nlohmann::json> all;
  std::vector<Offer> offers;
  for (const auto& text : ddp::all_gather(group, head.dump())) {
    all.push_back(nlohmann::json::parse(text));
    offers.push_back({all.back()["place"].get<Place>(), all.back().contains("kept")});
  }
  take_over(all);
  const auto source = choose_source(offers, [&](const Place& place) { return saved_later(group, place); });
  if (!source) return state.reset();
  const auto own = state;  // kept until all have it
  if (group.rank() == *source && !own) state = unpickled(kept->state);
  state = broadcast_state(group, state, *source);
  progress = 0;
  if (group.rank() != 0 || (!own && folder.empty())) return;  // the rest is state that only rank 0 keeps
  auto callbacks = own ? own->callbacks : newest_saved().state.callbacks;
  state->callbacks.merge(callbacks);
}

}  // namespace ddprun::train
