#include "worker/sam/sam_model.h"

#include <torch/types.h>

#include <fstream>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

using namespace ddprun;
using ddprun::sam::digest;
using ddprun::sam::TensorCache;

TEST_CASE("TensorCache computes each result once, also for those who come later", "[tensor_cache]") {
  const TempDir dir;
  const auto folder = dir.path() / "a" / "b";
  int computed = 0;
  const auto doubled = [&](const TensorCache& cache, const torch::Tensor& input) {
    return cache.get(input, [&] { return ++computed, input * 2; });
  };
  const auto one = torch::rand({3, 4}), two = torch::rand({3, 4});
  for (int run = 0; run < 2; ++run) {
    const TensorCache cache(folder, 7);
    CHECK(doubled(cache, one).equal(one * 2));
    CHECK(doubled(cache, two).equal(two * 2));
    CHECK(computed == 2);
  }
  doubled(TensorCache(folder, 8), one);  // another version
  CHECK(computed == 3);
  doubled(TensorCache(folder, 7), one.view({4, 3}));  // the same bytes in another shape
  CHECK(computed == 4);
}

TEST_CASE("TensorCache makes a damaged result anew", "[tensor_cache]") {
  const TempDir dir;
  const TensorCache cache(dir.path(), 1);
  const auto input = torch::rand({5});
  const auto get = [&](float factor) { return cache.get(input, [&] { return input * factor; }); };
  get(2);
  for (const auto& file : std::filesystem::directory_iterator(dir.path()))
    std::filesystem::resize_file(file, std::filesystem::file_size(file) - 3);
  CHECK(get(3).equal(input * 3));
  CHECK(get(4).equal(input * 3));
}

TEST_CASE("TensorCache names a folder that cannot be made", "[tensor_cache]") {
  const TempDir dir;
  std::ofstream(dir.path() / "file") << "x";
  CHECK_THROWS_WITH(TensorCache(dir.path() / "file" / "folder", 1),
                    test::ContainsSubstring((dir.path() / "file" / "folder").string()));
}

TEST_CASE("digest tells tensors apart by every byte, by their shape and by what came before",
          "[tensor_cache]") {
  const auto tensor = torch::arange(13, torch::kUInt8);
  for (int i = 0; i < 13; ++i) {
    auto other = tensor.clone();
    other[i] += 1;
    CHECK(digest(other) != digest(tensor));
  }
  CHECK(digest(tensor.view({13, 1})) != digest(tensor));
  CHECK(digest(tensor, 1) != digest(tensor));
  CHECK(digest(torch::arange(26, torch::kUInt8).slice(0, 0, 26, 2)) ==
        digest(torch::arange(0, 26, 2, torch::kUInt8)));
}
