#include <ddprun/data/loader.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <stdexcept>

#include <ATen/Context.h>
#include <torch/types.h>

#include "tests/support/catch.h"

using ddprun::data::Batch;
using ddprun::data::Dataset;
using ddprun::data::Loader;

namespace {

/// Example i is the number i. Counts what was asked for; can fail on one example.
class Numbers : public Dataset {
 public:
  explicit Numbers(std::int64_t bad = -1) : bad_(bad) {}
  std::int64_t size() const override { return 1000; }
  Batch get_batch(const std::vector<std::int64_t>& indices) const override {
    ++batches_asked;
    for (const auto i : indices)
      if (i == bad_) throw std::runtime_error("example " + std::to_string(i) + " is bad");
    auto values = torch::tensor(indices, torch::kInt64);
    return {values.to(torch::kFloat32), values, {values + 1, values.sum()}};
  }
  mutable std::atomic<int> batches_asked{0};

 private:
  std::int64_t bad_;
};

std::vector<std::int64_t> counting(std::int64_t n) {
  std::vector<std::int64_t> v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), 0);
  return v;
}

std::ptrdiff_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

std::vector<std::vector<std::int64_t>> drain_targets(Loader& loader) {
  std::vector<std::vector<std::int64_t>> all;
  while (auto batch = loader.next()) {
    const auto* begin = batch->target.const_data_ptr<std::int64_t>();
    all.emplace_back(begin, begin + batch->size());
  }
  return all;
}

}  // namespace

TEST_CASE("loader gives the same batches whatever the number of threads", "[loader]") {
  const Numbers numbers;
  Loader reference(numbers, counting(103), 10, 0);
  const auto expected = drain_targets(reference);
  REQUIRE(expected.size() == 11);
  CHECK(expected.back() == std::vector<std::int64_t>{100, 101, 102});
  for (const int threads : {1, 2, 5}) {
    Loader loader(numbers, counting(103), 10, threads);
    CHECK(loader.batches() == 11);
    CHECK(drain_targets(loader) == expected);
    CHECK_FALSE(loader.next());
  }
}

TEST_CASE("loader hands an example's error to the consumer, at its batch", "[loader]") {
  const Numbers numbers(25);
  for (const int threads : {0, 1, 3}) {
    Loader loader(numbers, counting(50), 10, threads);
    CHECK(loader.next());
    CHECK(loader.next());
    CHECK_THROWS_WITH(loader.next(), "example 25 is bad");
    CHECK(loader.next());  // the batches after it are whole
  }
}

TEST_CASE("loader prepares no more than its window ahead", "[loader]") {
  const Numbers numbers;
  Loader loader(numbers, counting(1000), 10, 2);
  for (int i = 0; i < 10; ++i) REQUIRE(loader.next());
  CHECK(numbers.batches_asked <= 10 + 2 * 2);
}

TEST_CASE("loader ends at once when it is dropped halfway", "[loader]") {
  const Numbers numbers;
  Loader loader(numbers, counting(1000), 1, 3);
  REQUIRE(loader.next());
}

TEST_CASE("loader keeps its threads from epoch to epoch", "[loader]") {
  const Numbers numbers;
  for (const int threads : {0, 1, 3}) {
    Loader loader(numbers, {.batch_size = 10, .threads = threads});
    CHECK_FALSE(loader.next());
    const auto before = threads_of_this_process();
    for (int epoch = 0; epoch < 20; ++epoch) {
      loader.start_epoch(counting(95 + epoch));
      const auto batches = drain_targets(loader);
      REQUIRE(batches.size() == static_cast<std::size_t>(loader.batches()));
      CHECK(batches.back().back() == 95 + epoch - 1);
      CHECK(loader.position() == loader.batches());
      CHECK_FALSE(loader.next());
    }
    CHECK(threads_of_this_process() == before);
  }
}

TEST_CASE("loader goes on in the middle of an epoch", "[loader]") {
  const Numbers numbers;
  Loader reference(numbers, counting(103), 10, 0);
  const auto whole = drain_targets(reference);
  for (const int threads : {0, 2}) {
    Loader loader(numbers, {.batch_size = 10, .threads = threads});
    for (std::int64_t first = 0; first <= 11; ++first) {
      loader.start_epoch(counting(103), 0, first);
      CHECK(loader.position() == first);
      CHECK(loader.batches() == 11);
      CHECK(drain_targets(loader) == std::vector(whole.begin() + first, whole.end()));
    }
    CHECK_THROWS_AS(loader.start_epoch(counting(103), 0, 12), std::invalid_argument);
    CHECK_THROWS_AS(loader.start_epoch(counting(103), 0, -1), std::invalid_argument);
  }
}

TEST_CASE("loader drops what is left of an epoch when another begins", "[loader]") {
  const Numbers numbers(7);  // an error that nobody asks for any more goes with it
  for (const int threads : {0, 1, 4}) {
    Loader loader(numbers, {.batch_size = 1, .threads = threads});
    for (int i = 0; i < 200; ++i) {
      loader.start_epoch(counting(100));
      for (int taken = 0; taken < i % 7; ++taken) REQUIRE(loader.next());
      loader.start_epoch({500 + i, 600 + i});
      CHECK(drain_targets(loader) == std::vector<std::vector<std::int64_t>>{{500 + i}, {600 + i}});
    }
  }
}

TEST_CASE("loader tells the data set the epoch", "[loader]") {
  struct Epochs : Numbers {
    Batch get_epoch_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const override {
      return {torch::full({static_cast<std::int64_t>(indices.size())}, static_cast<double>(epoch)),
              torch::tensor(indices, torch::kInt64)};
    }
  };
  const Epochs epochs;
  for (const int threads : {0, 2}) {
    Loader loader(epochs, {.batch_size = 10, .threads = threads});
    for (const std::int64_t epoch : {0, 7}) {
      loader.start_epoch(counting(50), epoch);
      while (const auto batch = loader.next())
        CHECK(batch->input.eq(static_cast<double>(epoch)).all().item<bool>());
    }
  }
}

TEST_CASE("a batch keeps what else it has, in order", "[loader]") {
  const Numbers numbers;
  for (const int threads : {0, 2}) {
    const auto batch = Loader(numbers, {4, 7}, 2, threads).next();
    REQUIRE(batch->extra.size() == 2);
    CHECK(batch->extra[0].equal(torch::tensor({5, 8}, torch::kInt64)));
    CHECK(batch->extra[1].item<int>() == 11);
  }
  const auto doubled = numbers.get_batch({4, 7}).mapped([](const auto& tensor) { return tensor * 2; });
  CHECK(doubled.input.equal(torch::tensor({8.F, 14.F})));
  CHECK(doubled.target.equal(torch::tensor({8, 14}, torch::kInt64)));
  CHECK(doubled.extra[1].item<int>() == 22);
}

TEST_CASE("loader works ahead only as far as it is told", "[loader]") {
  const Numbers numbers;
  Loader loader(numbers, {.batch_size = 1, .threads = 1, .ahead = 1});
  loader.start_epoch(counting(100));
  for (int i = 0; i < 10; ++i) {
    REQUIRE(loader.next());
    CHECK(numbers.batches_asked <= i + 2);
  }
}

TEST_CASE("loader that cannot have page-locked memory says so at the first batch", "[loader]") {
  if (at::hasCUDA()) ddprun::test::skip("there is a GPU");
  const Numbers numbers;
  for (const int threads : {0, 1}) {
    Loader loader(numbers, {.batch_size = 10, .threads = threads, .pin_memory = true});
    loader.start_epoch(counting(20));
    CHECK_THROWS_AS(loader.next(), c10::Error);
  }
}

TEST_CASE("loader of nothing gives nothing", "[loader]") {
  const Numbers numbers;
  for (const int threads : {0, 2}) CHECK_FALSE(Loader(numbers, {}, 10, threads).next());
}

TEST_CASE("loader refuses a batch size below one", "[loader]") {
  const Numbers numbers;
  CHECK_THROWS_AS(Loader(numbers, counting(3), 0, 0), std::invalid_argument);
  CHECK_THROWS_AS(Loader(numbers, counting(3), 1, -1), std::invalid_argument);
  CHECK_THROWS_AS(Loader(numbers, {.batch_size = 1, .ahead = 0}), std::invalid_argument);
}
