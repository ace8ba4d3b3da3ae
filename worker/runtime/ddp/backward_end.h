#pragma once

#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/TensorBody.h>

namespace ddprun::ddp {

/// Runs a function at the end of a backward, once all gradients of it are there, by hooks on the parameters.
class BackwardEnd {
 public:
  BackwardEnd(const std::vector<at::Tensor>& parameters, std::function<void()> function);
  BackwardEnd(const BackwardEnd&) = delete;
  ~BackwardEnd();

  /// The next backward that reaches any of the parameters runs the function, once.
  void arm() { armed_ = true; }
  bool armed() const { return armed_; }  ///< and it has not run since

 private:
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
  std::atomic<bool> armed_ = false;  // devices have a backward thread each
};

/// Replaces tensors by copies whose gradients, times scale, flow on to all the originals together: as soon as
/// one of the copies is part of the loss, backward reaches the graph of every original, with an undefined
/// gradient where its copy is not. So the parameters behind an output that nobody used are found unused
/// instead of being waited for.
///
/// tensors  all require a gradient
void scale_gradients(const std::vector<at::Tensor*>& tensors, double scale);

}  // namespace ddprun::ddp
