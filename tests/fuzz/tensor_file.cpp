// Files of tensors that have no checksums: the input is one in torch's older format, or .safetensors.
#include "common/errors.h"
#include "tests/fuzz/fuzz.h"
#include "worker/serialize/pt_file.h"
#include "worker/serialize/safetensors.h"

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
