#pragma once

#include <memory>
#include <vector>

#include <torch/types.h>

#include <ddprun/ddp/powersgd_hook.h>

namespace ddprun::ddp {

/// What PowerSgd remembers of a parameter; undefined where there is nothing yet.
struct PowerSgdMemory {
  torch::Tensor error;  ///< shaped as the parameter
  torch::Tensor q;      ///< [columns, rank]
};

/// The arithmetic of PowerSgd on one bucket. It holds no process group: its last owner may be a thread of the
/// group, which could not end the group.
struct PowerSgdRound {
  /// Matrices of one shape that are compressed in one operation.
  struct Batch {
    std::vector<torch::Tensor> parts;                       ///< views of the bucket, [rows, columns] each
    std::vector<std::shared_ptr<PowerSgdMemory>> memories;  ///< of the parts
    torch::Tensor matrices;  ///< [parts, rows, columns]: a view of the bucket, or of several parts a copy
    torch::Tensor p;         ///< [parts, rows, rank], a view of the round's
    torch::Tensor q;         ///< [parts, columns, rank], likewise

    bool knows_q() const;
  };

  /// Adds the errors to the bucket's gradients, and sorts out what is worth compressing.
  /// memories  of the bucket's parameters, in order
  PowerSgdRound(Bucket& bucket, std::vector<std::shared_ptr<PowerSgdMemory>> memories,
                const PowerSgd::Options& options, int ranks);

  /// In this order: Q from the last iteration, or from the generator where there is none;
  void fill_qs(const at::Generator& generator);
  void compute_ps();                       ///< then ps are to be summed over ranks,
  void compute_qs();                       ///< then qs,
  void decompress();                       ///< then the bucket has the compressed gradients' means,
  void unpack_plain(torch::Tensor& sums);  ///< and with this, from the summed plain_row(), all of them;
  void remember();                         ///< then what the next iteration needs is kept.

  torch::Tensor plain_row() const;

  PowerSgd::Options options;
  int ranks;
  torch::Tensor buffer;
  torch::Tensor before;  ///< the buffer before compression, with error feedback
  std::vector<torch::Tensor> gradients;
  std::vector<std::shared_ptr<PowerSgdMemory>> memories;  ///< of the gradients
  std::vector<torch::Tensor> plain;                       ///< gradients that are not worth compressing
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
