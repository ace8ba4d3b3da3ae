#pragma once

#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/TensorBody.h>

namespace ddprun::ddp {

/// Runs a function when a backward ends and all its gradients are there, through hooks on the parameters.
class BackwardEnd {
 public:
  BackwardEnd(const std::vector<at::Tensor>& parameters, std::function<void()> function);
  BackwardEnd(const BackwardEnd&) = delete;
  ~BackwardEnd();

  /// The next backward that reaches a parameter runs the function once.
  void arm() { armed_ = true; }
  bool armed() const { return armed_; }  ///< false once it has run

 private:
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
  std::atomic<bool> armed_ = false;  // each device has a backward thread
};

/// Replaces tensors, which all require a gradient, by copies that pass scale times their gradients on to all
/// originals together. As soon as one copy is part of the loss, backward reaches the graph of every original,
/// with an undefined gradient if its copy is not. So parameters behind an unused output are found unused
/// instead of being waited for.
void scale_gradients(const std::vector<at::Tensor*>& tensors, const at::Tensor& scale);

}  // namespace ddprun::ddp
