#include "tests/support/golden.h"

#include <cmath>
#include <filesystem>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun::test {

nlohmann::json read_golden(const std::string& name) {
  return nlohmann::json::parse(read_file(std::filesystem::path(DDPRUN_GOLDEN_DIR) / name));
}

void check_digest(const torch::Tensor& tensor, const nlohmann::json& digest, double tolerance) {
  REQUIRE(tensor.sizes().vec() == digest["shape"].get<std::vector<std::int64_t>>());
  const auto flat = tensor.detach().to(torch::kFloat64).flatten();
  const double norm = digest["norm"];
  const auto size = flat.numel();
  CHECK(std::abs(flat.norm().item<double>() - norm) <= tolerance * norm);
  CHECK(std::abs(flat.sum().item<double>() - digest["sum"].get<double>()) <=
        tolerance * norm * std::sqrt(static_cast<double>(size)));
  const auto& values = digest["values"];
  REQUIRE(values.size() == 50);
  for (std::int64_t i = 0; i < 50; ++i)
    CHECK(std::abs(flat[i * (size - 1) / 49].item<double>() - values[i].get<double>()) <= tolerance * norm);
}

}  // namespace ddprun::test
