#pragma once

#include <memory>
#include <vector>

#include <torch/types.h>

#include <ddprun/ddp/powersgd_hook.h>

namespace ddprun::ddp {

/// PowerSgd's memory of a parameter; undefined if there is none yet.
struct PowerSgdMemory {
  torch::Tensor error;  ///< shaped as the parameter
  torch::Tensor q;      ///< [columns, rank]
};

/// PowerSgd's arithmetic on one bucket. Holds no process group: its last owner may be one of the group's
/// threads, which cannot end the group.
struct PowerSgdRound {
  /// Matrices of one shape, compressed in one operation.
  struct Batch {
    std::vector<torch::Tensor> parts;                       ///< views of the bucket, [rows, columns] each
    std::vector<std::shared_ptr<PowerSgdMemory>> memories;  ///< of the parts
    torch::Tensor matrices;  ///< [parts, rows, columns]: a view of the bucket; a copy of several parts
    torch::Tensor p;         ///< [parts, rows, rank], a view of ps
    torch::Tensor q;         ///< [parts, columns, rank], a view of qs

    bool knows_q() const;
  };

  /// Adds the errors to the bucket's gradients, and picks those worth compressing.
  /// memories  of the bucket's parameters, in order
  PowerSgdRound(Bucket& bucket, std::vector<std::shared_ptr<PowerSgdMemory>> memories,
                const PowerSgd::Options& options, int ranks);

  // The steps of a round, in order.
  void fill_qs(const at::Generator& generator);  ///< the last iteration's Q, else random
  void compute_ps();                             ///< then sum ps over ranks
  void compute_qs();                             ///< then sum qs over ranks
  void decompress();                             ///< writes the compressed gradients' means into the bucket
  void remember();                               ///< keeps what the next iteration needs

  torch::Tensor plain_row() const;         ///< the uncompressed gradients, to sum over ranks
  void unpack_plain(torch::Tensor& sums);  ///< writes their means into the bucket

  PowerSgd::Options options;
  int ranks;
  torch::Tensor buffer;
  torch::Tensor before;  ///< the buffer before compression, with error feedback
  std::vector<torch::Tensor> gradients;
  std::vector<std::shared_ptr<PowerSgdMemory>> memories;  ///< of the gradients
  std::vector<torch::Tensor> plain;                       ///< gradients not worth compressing
  std::vector<Batch> batches;
  torch::Tensor ps, qs;  ///< all P, all Q in a row
  PowerSgd::Compression compression;

 private:
  void make_batches(const std::vector<std::size_t>& compressed);
  void allocate();
  void remember_qs();
  void remember_errors();
};

}  // namespace ddprun::ddp
