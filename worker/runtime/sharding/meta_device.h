#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace ddprun::ddp {

/// While it lives, this thread makes tensors without memory, unless told a device: Python's
/// `with torch.device("meta")`. A module made so is for FullyShardedDataParallel, which gives each rank its
/// share of the memory; see Options::initialise there.
///
///   auto model = [] { const ddp::MetaDevice meta; return Transformer(70'000'000'000); }();
class MetaDevice {
 public:
  MetaDevice();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace ddprun::ddp
