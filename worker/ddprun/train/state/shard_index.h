#pragma once

#include <ddprun/common/files.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/state_dict_file.h>

namespace torch::optim {
class Optimizer;
}

namespace ddprun::train {

class DictReader;

/// Where the sharded tensors of a checkpoint are. Each rank writes its shards to a separate file, all with
/// the same layout; the checkpoint itself (the index) has the rest, including this as TrainingState::shards.
///
///   last.pt                           the index, written last
///   last-step=80-5f0c.shards/rank-0   units' shards as they are in memory, one after the other
///   last-step=80-5f0c.shards/rank-1
struct ShardIndex {
  struct Parameter {
    std::string name;
    std::int64_t offset = 0;  ///< in its unit, in elements
    std::vector<std::int64_t> sizes, strides;
  };
  struct Unit {
    std::int64_t shard_numel = 0;
    std::vector<Parameter> parameters;
  };
  /// A shard of this unit's values under a key: "model", "ema", or the optimizer's key.
  struct Piece {
    std::string key;
    std::size_t unit = 0;
    at::ScalarType dtype = at::kFloat;
    std::int64_t offset = 0;  ///< in the file, in bytes
  };
  std::vector<Unit> units;
  std::vector<Piece> pieces;
  /// In state_dict()'s order: each name with its parameter's name among the units, "" for a buffer.
  std::vector<std::pair<std::string, std::string>> names;
  std::string folder;                                 ///< beside the checkpoint
  std::int64_t bytes = 0;                             ///< of each file
  std::vector<std::vector<std::uint32_t>> checksums;  ///< by rank: CRC-32 of each kShardChunk bytes

  std::set<std::string> optimizer_keys() const;  ///< of its pieces
};
inline constexpr std::int64_t kShardChunk = std::int64_t{4} << 20;

/// CRC-32.
std::uint32_t crc32_of(const std::string& bytes);

/// What a rank writes for a checkpoint: its pieces, in the index's order.
struct Shards {
  ShardIndex index;
  std::vector<at::Tensor> tensors;

  void add(const std::string& key, std::size_t unit, const at::Tensor& shard);
};

/// For a module's units, without pieces.
ShardIndex make_shard_index(const torch::nn::Module& module,
                            const std::vector<ddp::FullyShardedDataParallel::Unit>& units);

std::string to_text(const ShardIndex& index);

/// Which ranks see which files: "last-step=80-5f0c.shards/rank-0".
using ShardHolders = std::map<std::string, std::set<int>>;

/// Reads only the requested parts of a checkpoint's shards, and checks their CRC-32. All throw IoError naming
/// the file.
class ShardReader {
 public:
  /// checkpoint  the path of the index
  /// shards      its TrainingState::shards
  ShardReader(std::filesystem::path checkpoint, const std::string& shards);

  const ShardIndex& index() const { return index_; }

  /// Reads, to check them, the files that this rank is the first to have; rank 0 also those that nobody has.
  void verify(const ShardHolders& holders = {}, int rank = 0);

  /// A parameter's whole value, contiguous; undefined if it has none under the key.
  at::Tensor whole(const std::string& key, const std::string& parameter);

  /// A rank's shard of a unit, for any number of writing ranks and any units of theirs; undefined if none of
  /// its parameters has a value under the key. throws  IoError also if names or shapes differ
  at::Tensor shard(const std::string& key, const ddp::FullyShardedDataParallel::Unit& unit, int rank);

  /// The tensors of a state_dict, "model" or "ema", without memory for sharded ones: value_of() reads one of
  /// these, valid until the next call, and returns any other unchanged. Tied ones share their storage.
  StateDict hollow(const std::string& key, const c10::IValue& others);
  at::Tensor value_of(const at::Tensor& hollow);

 private:
  struct Found {
    const ShardIndex::Parameter* parameter;
    const ShardIndex::Piece* piece;
    std::int64_t shard_numel;
  };
  std::filesystem::path file(std::size_t rank) const;
  const Found* find(const std::string& key, const std::string& parameter) const;
  at::Tensor whole(const Found& from, const at::Tensor& memory);
  void read(const Found& from, std::int64_t begin, std::int64_t count, char* to);
  void read_bytes(std::size_t rank, std::int64_t begin, std::int64_t count, char* to);
  void load_chunk(std::size_t rank, std::int64_t chunk);

  std::filesystem::path checkpoint_;
  ShardIndex index_;
  std::map<std::pair<std::string, std::string>, Found> places_;        // by key and parameter
  std::map<const void*, std::pair<std::string, std::string>> hollow_;  // by storage
  std::vector<UniqueFd> files_;
  at::Tensor scratch_;  // for value_of()
  std::string chunk_;   // the most recently read one
  std::pair<std::size_t, std::int64_t> chunk_at_ = {0, -1};
};

/// A parameter's steps in a sharded checkpoint's optimizer; None if it has none. throws std::invalid_argument
c10::IValue step_of(const DictReader& state, const std::string& parameter);

/// Reads the sharded tensors into the state, making it whole: for training without shards, and for other
/// programs. keys: "model", "ema" and "optimizer", or some of them. Does nothing if the state is whole.
void gather_shards(TrainingState& state, const std::filesystem::path& source,
                   const std::vector<std::string>& keys);

inline constexpr const char* kShardsEnd = ".shards";
/// The folders of shards in a folder of checkpoints; none if it cannot be read.
std::vector<std::filesystem::path> shard_folders(const std::filesystem::path& folder);

/// Removes what ranks wrote to a folder of shards, and the folder if nothing else is in it. throws  IoError
void remove_shards(const std::filesystem::path& folder);

// -- the optimizer's part --

/// The state of an optimizer over sharded.shards(), like optimizer_state_dict() of an optimizer over the
/// module's parameters. Every rank must call it; all but rank 0 get None. throws  like optimizer_state_dict()
c10::IValue sharded_optimizer_state_dict(torch::optim::Optimizer& optimizer,
                                         const ddp::FullyShardedDataParallel& sharded,
                                         const torch::nn::Module& module, int rank);

/// Loads a dict from sharded_optimizer_state_dict() or optimizer_state_dict(), from any number of ranks, into
/// an optimizer over sharded.shards(). Every rank passes the whole dict. Parameters that share a shard have
/// one number of steps then, the largest; where one of them has no state, it is zero.
///
/// source  the file named in errors
/// throws  IoError if the dict does not fit, as load_optimizer_state()
void load_sharded_optimizer_state(torch::optim::Optimizer& optimizer,
                                  const ddp::FullyShardedDataParallel& sharded,
                                  const torch::nn::Module& module, const c10::IValue& state_dict,
                                  const std::filesystem::path& source);

/// The same for a sharded checkpoint: {"param_groups": ..., "steps": {name: ...}, "scalars": {"step": the
/// most}} with the parameters' numbers in the module. Adds this rank's tensors to the shards.
c10::IValue add_optimizer_pieces(torch::optim::Optimizer& optimizer,
                                 const ddp::FullyShardedDataParallel& sharded,
                                 const torch::nn::Module& module, Shards& shards);

/// The inverse, on any number of ranks: reads what this rank needs. throws  IoError
void load_optimizer_pieces(torch::optim::Optimizer& optimizer, const ddp::FullyShardedDataParallel& sharded,
                           int rank, const c10::IValue& state, ShardReader& reader,
                           const std::filesystem::path& source);

}  // namespace ddprun::train
