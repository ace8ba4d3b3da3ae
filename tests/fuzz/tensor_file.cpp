// Files of tensors that have no checksums: the input is one in torch's older format, or .safetensors.
#include <ddprun/common/errors.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/serialize/safetensors.h>
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun;
  static const fuzz::ScratchFile file;
  file.write(fuzz::text_of(data, size));
  try {
    if (serialize::is_safetensors(file.path()))
      serialize::read_safetensors(file.path());
    else
      serialize::read_pt(file.path());
  } catch (const IoError& error) {
    fuzz::expect_message(error.what());
    fuzz::expect(std::string_view(error.what()).starts_with(file.path().string() + ": "), "it names the file",
                 error.what());
  }
  return 0;
}
