#include "launcher/cli/node_options.h"

#include <cstdio>

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using Names = std::vector<std::string>;

/// What `scontrol show hostnames` prints; none: it cannot be run here.
std::optional<Names> shown_by_slurm(const std::string& list) {
  FILE* output = ::popen(("scontrol show hostnames '" + list + "' 2>/dev/null").c_str(), "r");
  if (output == nullptr) return {};
  Names names;
  char line[512];
  while (std::fgets(line, sizeof line, output) != nullptr) {
    names.emplace_back(line);
    if (!names.back().empty() && names.back().back() == '\n') names.back().pop_back();
  }
  return ::pclose(output) == 0 ? std::optional(names) : std::nullopt;
}

TEST_CASE("a list of hosts is expanded in its order", "[host_list]") {
  const auto [list, names] = GENERATE(table<std::string, Names>({
      {"n1", {"n1"}},
      {"localhost", {"localhost"}},
      {"n1,n2", {"n1", "n2"}},
      {"n[1-3]", {"n1", "n2", "n3"}},
      {"n[1-3,7]", {"n1", "n2", "n3", "n7"}},
      {"n[1-3,7],gpu-[001-003]-ib,x",
       {"n1", "n2", "n3", "n7", "gpu-001-ib", "gpu-002-ib", "gpu-003-ib", "x"}},
      {"n[08-11]", {"n08", "n09", "n10", "n11"}},
      {"n[8-11]", {"n8", "n9", "n10", "n11"}},
      {"n[99-101]", {"n99", "n100", "n101"}},
      {"n[099-101]", {"n099", "n100", "n101"}},
      {"n[9-010]", {"n9", "n10"}},
      {"n[000-001]", {"n000", "n001"}},
      {"[1-2]", {"1", "2"}},
      {"n[1-2]0", {"n10", "n20"}},
      {"r[1-2]n[3-4]", {"r1n3", "r1n4", "r2n3", "r2n4"}},
      {"r[1-2]n[3,05]x", {"r1n3x", "r1n05x", "r2n3x", "r2n05x"}},
      {"n[2,1]", {"n2", "n1"}},
      {"n1,n1", {"n1", "n1"}},
      {"n[5-5]", {"n5"}},
      {"a.b-c_D9.example", {"a.b-c_D9.example"}},
      {"n[999999999999999998-999999999999999999]", {"n999999999999999998", "n999999999999999999"}},
  }));
  INFO(list);
  CHECK(expand_host_list(list, 1000) == names);
}

TEST_CASE("text other than a list of hosts gives none", "[host_list]") {
  const std::string list = GENERATE(values<std::string>({"",
                                                         ",",
                                                         "a,",
                                                         ",a",
                                                         "a,,b",
                                                         "n[",
                                                         "n]",
                                                         "n[]",
                                                         "n[1",
                                                         "n1]",
                                                         "n[[1]]",
                                                         "n[1]]",
                                                         "n[1,]",
                                                         "n[,1]",
                                                         "n[1,,2]",
                                                         "n[3-1]",
                                                         "n[a-b]",
                                                         "n[-1]",
                                                         "n[1-]",
                                                         "n[1-2-3]",
                                                         "n[1 - 2]",
                                                         "n[+1]",
                                                         "n[0x1]",
                                                         "n[0-3:2]",
                                                         "n 1",
                                                         "n1 n2",
                                                         "n{1-2}",
                                                         "n1\n",
                                                         "n/1",
                                                         "n(x2)",
                                                         "h\xc3\xb6st",
                                                         "n[1000000000000000000]",
                                                         std::string("n\0", 2),
                                                         std::string(300, 'a'),
                                                         "n[1-2]" + std::string(300, 'a')}));
  INFO(list);
  CHECK_FALSE(expand_host_list(list, 1000));
}

TEST_CASE("a list of more hosts than allowed is none, at no cost", "[host_list]") {
  CHECK(expand_host_list("n[1-10]", 10)->size() == 10);
  CHECK_FALSE(expand_host_list("n[1-11]", 10));
  CHECK_FALSE(expand_host_list("n[1-10],x", 10));
  CHECK_FALSE(expand_host_list("n[1-4]x[1-3]", 10));
  CHECK_FALSE(expand_host_list("n[0-999999999999999999]", 100'000));
  CHECK_FALSE(expand_host_list("a[1-1000]b[1-1000]c[1-1000]d[1-1000]", 100'000));
  CHECK(expand_host_list("n[1-100000]", 100'000)->back() == "n100000");
}

TEST_CASE("Slurm expands a list of hosts in the same way", "[host_list]") {
  if (shown_by_slurm("n1") != Names{"n1"}) test::skip("no scontrol here that works");
  const std::string list = GENERATE(values<std::string>({"n1",
                                                         "n1,n2",
                                                         "n[1-3,7]",
                                                         "n[1-3,7],gpu-[001-010],x",
                                                         "n[08-12]",
                                                         "n[8-12]",
                                                         "n[9-010]",
                                                         "n[1-010]",
                                                         "n[98-102]",
                                                         "n[098-102]",
                                                         "n[0998-1002]",
                                                         "n[000-001]",
                                                         "[1-3]",
                                                         "r[1-2]n[1-4]",

                                                         "n[2,1,5-6]",
                                                         "n1,n1",
                                                         "n[5-5]",
                                                         "node-1.rack_2.example,node-2",
                                                         "n[1-2][3-4]",
                                                         "n[1-2]3[4-5]",
                                                         "cn-0[01-03],cn-[1-300]"}));
  INFO(list);
  CHECK(expand_host_list(list, 100'000) == shown_by_slurm(list));
}

TEST_CASE("numbers of tasks are expanded", "[host_list]") {
  using Counts = std::vector<int>;
  const auto [list, counts] = GENERATE(table<std::string, Counts>({{"1", {1}},
                                                                   {"2(x3),1", {2, 2, 2, 1}},
                                                                   {"4,2(x2)", {4, 2, 2}},
                                                                   {"128(x1)", {128}},
                                                                   {"1000000", {1000000}}}));
  CHECK(expand_counts(list, 4) == counts);
  const std::string wrong = GENERATE(values<std::string>({"",
                                                          "0",
                                                          "-1",
                                                          "a",
                                                          "1,",
                                                          ",1",
                                                          "1,,1",
                                                          "2(x",
                                                          "2(x)",
                                                          "2(x0)",
                                                          "2(3)",
                                                          "2x3",
                                                          "(x3)",
                                                          "2(x3)1",
                                                          "2(x-1)",
                                                          "2 (x3)",
                                                          "1000001",
                                                          "1(x5)",
                                                          "1(x4),1",
                                                          "1(x999999999999)",
                                                          "1(x99999999999999999999)"}));
  INFO(wrong);
  CHECK_FALSE(expand_counts(wrong, 4));
}

}  // namespace
}  // namespace ddprun::launcher
