// Runs a fuzz target over its corpus, for machines without a fuzzer; usage: PROGRAM FOLDER
#include <algorithm>
#include <iostream>

#include "tests/fuzz/fuzz.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  if (argc == 2)
    for (const auto& entry : fs::directory_iterator(argv[1])) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    std::cerr << file.string() << std::endl;  // first, for an input that ends the program
    const std::string bytes = ddprun::read_file(file);
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  std::cerr << files.size() << " inputs\n";
  return files.empty() ? 1 : 0;
}
