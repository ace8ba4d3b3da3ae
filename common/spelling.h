#pragma once

#include <string>
#include <string_view>

namespace ddprun {

/// "--batch-size,--batch_size" for "--batch-size": CLI11's list of names, so that every flag has both of
/// torchrun's spellings. A flag of one word is returned as it is. Further names may follow: "-t,--tee-all".
std::string both_spellings(std::string_view names);

}  // namespace ddprun
