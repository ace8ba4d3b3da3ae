#include "launcher/job/server.h"

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using test::ContainsSubstring;
using View = nlohmann::ordered_json;

View job_view() {
  return {{"job", "3f2a91bc"},
          {"run_id", "my \"run\""},
          {"host", "node1"},
          {"ddprun", "0.1.0"},
          {"seconds", 10.5},
          {"restarts", 1},
          {"workers", 1},
          {"stragglers", View::array()},
          {"ranks", {{{"rank", 0}, {"state", "running"}, {"status", {{"step", 7}, {"loss", 0.5}}}}}}};
}

TEST_CASE("a job as Prometheus reads it", "[metrics]") {
  const std::string text = metrics_text(job_view());
  for (const char* line :
       {"# TYPE ddprun_job_restarts_total counter\nddprun_job_restarts_total 1\n",
        "ddprun_job_info{job=\"3f2a91bc\",run_id=\"my \\\"run\\\"\",host=\"node1\",version=\"0.1.0\"} 1\n",
        "\nddprun_worker_loss{rank=\"0\"} 0.5\n", "\nddprun_worker_steps_total{rank=\"0\"} 7\n",
        "\nddprun_worker_slowness_ratio{rank=\"0\"} 1\n"})
    CHECK_THAT(text, ContainsSubstring(line));
  CHECK_THAT(text, !ContainsSubstring("step_seconds"));
}

TEST_CASE("a loss that is no number is NaN", "[metrics]") {
  View view = job_view();
  view["ranks"][0]["status"]["loss"] = nullptr;
  CHECK_THAT(metrics_text(view), ContainsSubstring("\nddprun_worker_loss{rank=\"0\"} NaN\n"));
}

TEST_CASE("labels are UTF-8, or Prometheus would refuse all metrics", "[metrics]") {
  View view = job_view();
  view["run_id"] =
      "a\xff"
      "b";
  CHECK_THAT(metrics_text(view), ContainsSubstring("run_id=\"a\xef\xbf\xbd"
                                                   "b\""));
}

TEST_CASE("a worker that is stopped is still up, one that has ended is not", "[metrics]") {
  View view = job_view();
  view["ranks"][0]["state"] = "stopped";
  CHECK_THAT(metrics_text(view), ContainsSubstring("\nddprun_worker_up{rank=\"0\"} 1\n"));
  view["ranks"][0]["state"] = "exited";
  view["ranks"][0]["exit_code"] = 0;
  CHECK_THAT(metrics_text(view), ContainsSubstring("\nddprun_worker_up{rank=\"0\"} 0\n"));
}

TEST_CASE("the Host header names an address, localhost or this host", "[metrics]") {
  for (const char* host :
       {"", "127.0.0.1", "127.0.0.1:9400", "[::1]:9400", "[::1]", "10.1.2.3:80", "localhost",
        "LocalHost:9400", "localhost.", "my.localhost:9400", "node1:9400", "NODE1.cluster.example"})
    CHECK(names_this_host(host, "node1.cluster.example"));
  for (const char* host :
       {"evil.example", "evil.example:9400", "node1.evil.example", "localhost.evil.example",
        "127.0.0.1.evil.example", "[", ":9400", "node2", "evillocalhost", "[evil.example]"})
    CHECK_FALSE(names_this_host(host, "node1.cluster.example"));
}

}  // namespace
}  // namespace ddprun::launcher
