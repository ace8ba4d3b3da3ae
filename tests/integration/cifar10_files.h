#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace ddprun::test {

/// CIFAR-10's files with pictures by the formula of scripts/golden_tasks.py; the test's are the first ones.
inline void write_cifar10(const std::filesystem::path& folder, int train, int test) {
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& name, int first, int count) {
    std::ofstream file(folder / name, std::ios::binary);
    for (int image = first; image < first + count; ++image) {
      file.put(static_cast<char>(image % 10));
      for (int pixel = 0; pixel < 3072; ++pixel)
        file.put(static_cast<char>((image * 37 + pixel * 11 + image * pixel / 5 % 97) % 256));
    }
  };
  for (int i = 0; i < 5; ++i) write("data_batch_" + std::to_string(i + 1) + ".bin", i * train / 5, train / 5);
  write("test_batch.bin", 0, test);
}

}  // namespace ddprun::test
