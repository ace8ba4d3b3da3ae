#include "worker/config/config.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "tests/worker/config/parse_words.h"

using namespace ddprun;
using namespace ddprun::worker;
using ddprun::test::ContainsSubstring;
using ddprun::test::parse;

namespace {

/// What body throws in a process that may do no more than any user, if we are root too; empty if nothing.
std::string error_without_privileges(const std::function<void()>& body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2]{};
    if (::syscall(SYS_capset, &header, none) != 0) ::_exit(1);
    try {
      body();
    } catch (const std::exception& error) {
      if (::write(ends[1], error.what(), std::strlen(error.what())) < 0) ::_exit(2);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  char text[1000];
  const auto size = ::read(ends[0], text, sizeof text);
  ::close(ends[0]);
  int status = -1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  REQUIRE(status == 0);
  return {text, static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

}  // namespace

TEST_CASE("the defaults are the document's", "[config]") {
  const auto config = parse({"mnist"});
  CHECK(config.task == "mnist");
  CHECK(config.train.epochs == 5);
  CHECK(config.train.batch_size == 128);
  CHECK(config.train.log_interval == 10);
  CHECK(config.train.optim.optimizer.lr == 1e-3);
  CHECK(config.train.progress);
  CHECK_FALSE(config.model.dropout);
  CHECK(config.timeout == std::chrono::minutes(30));
}

TEST_CASE("each task has its own document's defaults, and only its own flags", "[config]") {
  const auto toy = parse({"toy", "50", "10"});
  CHECK(toy.train.epochs == 50);
  CHECK(toy.train.checkpoint.save_every == 10);
  CHECK(toy.train.batch_size == 32);
  CHECK(toy.train.optim.optimizer.kind == train::OptimizerKind::kSgd);
  CHECK(toy.train.optim.optimizer.lr == 1e-3);
  CHECK(parse({"toy", "--save-every=3", "--epochs=4"}).train.checkpoint.save_every == 3);

  const auto linear = parse({"linear"});
  CHECK(linear.train.epochs == 10);
  CHECK(linear.train.batch_size == 32);
  CHECK(linear.train.optim.optimizer.kind == train::OptimizerKind::kAdam);

  const auto cifar10 = parse({"cifar10"});
  CHECK(cifar10.train.epochs == 50);
  CHECK(cifar10.train.batch_size == 128);
  CHECK(cifar10.train.optim.optimizer.lr == 0.1);
  CHECK(cifar10.train.optim.optimizer.momentum == 0.9);
  CHECK(cifar10.train.optim.optimizer.weight_decay == 5e-4);
  CHECK(cifar10.train.optim.scale_lr);
  CHECK(cifar10.train.optim.t_max == 200);
  CHECK(parse({"cifar10", "--t-max", "epochs"}).train.optim.t_max == 0);
  CHECK(cifar10.train.optim.clip_norm == 1.0);
  CHECK(cifar10.train.precision.precision == train::Precision::k16Mixed);
  CHECK(cifar10.train.checkpoint.top_k == 3);
  CHECK(cifar10.train.checkpoint.patience == 10);
  CHECK(cifar10.train.checkpoint.min_delta == 0.001);
  CHECK(cifar10.train.checkpoint.monitor == "val_acc");
  CHECK(cifar10.data.val_split == 0.1);

  CHECK_THROWS_WITH(parse({"linear", "--dropout=0"}), ContainsSubstring("unknown flag '--dropout"));
  CHECK_THROWS_WITH(parse({"mnist", "--stem=cifar"}), ContainsSubstring("unknown flag '--stem"));
  CHECK_THROWS_WITH(parse({"toy", "5", "1", "--data=x"}), ContainsSubstring("unknown flag '--data"));
}

TEST_CASE("every flag has both spellings and both forms of its value", "[config]") {
  const auto dashed = parse({"mnist",
                             "--batch-size",
                             "7",
                             "--log-interval=3",
                             "--limit-train",
                             "100",
                             "--limit-test=50",
                             "--loader-threads",
                             "0",
                             "--init-weights",
                             "w.pt",
                             "--no-progress",
                             "--seed",
                             "9",
                             "--lr",
                             "1e-30",
                             "--dropout",
                             "0",
                             "--timeout",
                             "1.5",
                             "--out",
                             "o",
                             "--epochs=2"});
  const auto underscored =
      parse({"mnist", "--batch_size=7", "--log_interval", "3", "--limit_train=100", "--limit_test", "50",
             "--loader_threads=0", "--init_weights=w.pt", "--no_progress", "--seed=9", "--lr=1e-30",
             "--dropout=0", "--timeout=1.5", "--out=o", "--epochs", "2"});
  CHECK(to_json(dashed) == to_json(underscored));
  for (const auto& config : {dashed, underscored}) {
    CHECK(config.train.batch_size == 7);
    CHECK(config.train.log_interval == 3);
    CHECK(config.data.limit_train == 100);
    CHECK(config.data.limit_test == 50);
    CHECK(config.train.loader_threads == 0);
    CHECK(config.model.init_weights == "w.pt");
    CHECK_FALSE(config.train.progress);
    CHECK(config.train.seed == 9);
    CHECK(config.train.optim.optimizer.lr == 1e-30);
    CHECK(config.model.dropout == 0.0);
    CHECK(config.timeout == std::chrono::milliseconds(1500));
    CHECK(config.train.out == "o");
    CHECK(config.train.epochs == 2);
  }
}

TEST_CASE("the flags of how ranks work together have both spellings and PyTorch's defaults", "[config]") {
  const auto defaults = parse({"mnist"}).train.parallel;
  CHECK(defaults.bucket_mb == 25);
  CHECK(defaults.bucket_view);
  CHECK(defaults.comm_hook == "none");
  CHECK_FALSE((defaults.find_unused || defaults.static_graph || defaults.zero1 || defaults.fsdp ||
               defaults.join || defaults.nan_check));
  for (const auto& config : {parse({"mnist", "--bucket-mb=3", "--find-unused", "--static-graph",
                                    "--no-bucket-view", "--comm-hook=bf16", "--zero1", "--nan-check"}),
                             parse({"mnist", "--bucket_mb", "3", "--find_unused", "--static_graph",
                                    "--no_bucket_view", "--comm_hook", "bf16", "--zero1", "--nan_check"})}) {
    const auto& parallel = config.train.parallel;
    CHECK(parallel.bucket_mb == 3);
    CHECK_FALSE(parallel.bucket_view);
    CHECK(parallel.comm_hook == "bf16");
    CHECK((parallel.find_unused && parallel.static_graph && parallel.zero1 && parallel.nan_check));
    CHECK(nlohmann::json::parse(config.train.config_json)["comm_hook"] == "bf16");
  }
  CHECK(parse({"mnist", "--fsdp"}).train.parallel.fsdp);
  CHECK(parse({"mnist", "--drop_last"}).train.drop_last);
  const auto grouping =
      parse({"mnist", "--norm-weight-decay=0", "--bias-weight-decay=0.1", "--layer-decay=0.75"}).train.optim;
  CHECK(grouping.grouping.norm_weight_decay == 0.0);
  CHECK(grouping.grouping.bias_weight_decay == 0.1);
  CHECK(grouping.grouping.layer_decay == 0.75);
  CHECK(parse({"mnist", "--join"}).train.parallel.join);
}

TEST_CASE("the flag --fast turns on what is as accurate, except where a flag says otherwise", "[config]") {
  CHECK_FALSE(parse({"mnist"}).train.precision.channels_last);
  const auto fast = parse({"mnist", "--fast"}).train.precision;
  CHECK(fast.channels_last);
  CHECK(fast.cudnn_benchmark);
  CHECK(fast.matmul == "highest");
  const auto partly = parse({"mnist", "--fast", "--channels-last=false"}).train.precision;
  CHECK_FALSE(partly.channels_last);
  CHECK(partly.cudnn_benchmark);
}

TEST_CASE("each backend has its own timeout unless one is given", "[config]") {
  CHECK_FALSE(group_options(parse({"mnist"})).timeout);
  CHECK(group_options(parse({"mnist"})).connect_timeout == std::chrono::minutes(5));
  const auto given = group_options(parse({"mnist", "--timeout=7"}));
  CHECK(given.timeout == std::chrono::seconds(7));
  CHECK(given.connect_timeout == std::chrono::seconds(7));
}

TEST_CASE("flags that exclude each other are refused by name", "[config]") {
  const auto [first, second] = GENERATE(table<const char*, std::string>({{"--fsdp", "--zero1"},
                                                                         {"--drop-last", "--join"},
                                                                         {"--fsdp", "--comm-hook"},
                                                                         {"--fsdp", "--find-unused"},
                                                                         {"--fsdp", "--static-graph"},
                                                                         {"--fsdp", "--join"},
                                                                         {"--zero1", "--join"},
                                                                         {"--nan-check", "--join"},
                                                                         {"--static-graph", "--join"},
                                                                         {"--accumulate=2", "--join"},
                                                                         {"--clip-norm=1", "--clip-value"}}));
  const std::map<std::string, std::string> values = {{"--comm-hook", "=fp16"}, {"--clip-value", "=1"}};
  const auto value = values.find(second);
  const auto with_value = second + (value == values.end() ? "" : value->second);
  auto name = std::string(first);
  name = name.substr(0, name.find('='));
  CHECK_THROWS_WITH(parse({"mnist", first, with_value.c_str()}),
                    name + " and " + second + ": expected at most one of them");
}

TEST_CASE("of a flag given twice the last counts, as with argparse", "[config]") {
  CHECK(parse({"mnist", "--epochs", "1", "--epochs=2", "--batch-size=3", "--batch_size=4"}).train.epochs ==
        2);
  CHECK(parse({"mnist", "--batch-size=3", "--batch_size=4"}).train.batch_size == 4);
}

TEST_CASE("a number with leading zeros is decimal", "[config]") {
  CHECK(parse({"mnist", "--limit-train", "010"}).data.limit_train == 10);
  CHECK(parse({"mnist", "--seed=0640"}).train.seed == 640);
}

TEST_CASE("a bad value is refused in one line that names flag, expectation and value", "[config]") {
  const auto [flag, value, expected] = GENERATE(table<const char*, const char*, const char*>({
      {"--epochs", "0", "--epochs: expected an integer from 1 to 2147483647, got '0'"},
      {"--epochs", "foo", "expected an integer from 1 to 2147483647, got 'foo'"},
      {"--epochs", "1.5", "got '1.5'"},
      {"--epochs", "", "--epochs: expected a value after '=', got none"},
      {"--epochs", " 3", "got ' 3'"},
      {"--batch_size", "-1", "expected an integer from 1 to 2147483647, got '-1'"},
      {"--batch-size", "99999999999999999999", "got '99999999999999999999'"},
      {"--limit-train", "0", "expected an integer from 1"},
      {"--loader-threads", "65", "expected an integer from 0 to 64, got '65'"},
      {"--lr", "0", "--lr: expected a number above 0, got '0'"},
      {"--lr", "nan", "got 'nan'"},
      {"--lr", "0x1p3", "--lr: expected a number above 0, got '0x1p3'"},
      {"--val-split", "1", "--val-split: expected a fraction from 0 to less than 1, got '1'"},
      {"--clip-norm", "-1", "--clip-norm: expected a number from 0, got '-1'"},
      {"--lr", "inf", "got 'inf'"},
      {"--lr", "-1e-3", "got '-1e-3'"},
      {"--betas", "0.9,1",
       "--betas: expected two numbers from 0 to less than 1, such as 0.9,0.999, got '0.9,1'"},
      {"--betas", "-0.1,0.9", "got '-0.1,0.9'"},
      {"--betas", "0.9", "got '0.9'"},
      {"--betas", "0.9,0.99,0.999", "got '0.9,0.99,0.999'"},
      {"--betas", "0.9,x", "got '0.9,x'"},
      {"--dropout", "1.01", "--dropout: expected a probability from 0 to 1, got '1.01'"},
      {"--timeout", "0", "--timeout: expected seconds above 0, got '0'"},
      {"--seed", "-1", "expected an integer from 0"},
      {"--bucket-mb", "0", "--bucket-mb: expected an integer from 1 to 1048576, got '0'"},
      {"--device", "tpu", "--device: expected auto, cpu or cuda, got 'tpu'"},
      {"--backend", "mpi", "--backend: expected auto, gloo or nccl, got 'mpi'"},
      {"--t-max", "0", "--t-max: expected an integer from 1 to 2147483647, or epochs, got '0'"},
      {"--lr-schedule", "linear",
       "--lr-schedule: expected none, step, cosine, one-cycle or plateau, got 'linear'"},
      {"--optimizer", "lion", "--optimizer: expected sgd, adam, adamw or adadelta, got 'lion'"},
      {"--save-top-k", "-2", "--save-top-k: expected an integer from -1 to"},
      {"--checkpoint-name", "{epoch:02d", "--checkpoint-name: expected '}' after '{', got '{epoch:02d'"},
      {"--checkpoint-name", "{val_acc:d}",
       "--checkpoint-name: expected a format such as .2f for val_acc, got '"},
      {"--checkpoint-name", "../x", "--checkpoint-name: expected a file name without '/', got '../x'"},
      {"--mode", "most", "--mode: expected min or max, got 'most'"},
      {"--ema", "1", "--ema: expected a decay from 0 to less than 1, got '1'"},
      {"--comm-hook", "fp8", "--comm-hook: expected none, fp16, bf16 or powersgd, got 'fp8'"},
  }));
  CAPTURE(flag, value);
  const auto joined = std::string(flag) + "=" + value;
  CHECK_THROWS_AS(parse({"mnist", joined.c_str()}), UsageError);
  CHECK_THROWS_WITH(parse({"mnist", joined.c_str()}),
                    ContainsSubstring(expected) && !ContainsSubstring("\n"));
}

TEST_CASE("a value with a line end is named whole, in one line", "[config]") {
  CHECK_THROWS_WITH(parse({"mnist", "--lr", "1\n2"}), "--lr: expected a number above 0, got '1?2'");
  CHECK_THROWS_WITH(parse({"mnist", "--fo\no"}), "unknown flag '--fo?o', see worker mnist --help");
  CHECK_THROWS_WITH(parse({"mn\nist"}),
                    ContainsSubstring("unknown task 'mn?ist': did you mean mnist? expected a task"));
}

TEST_CASE("an unknown task, flag or argument and a missing value are named", "[config]") {
  const std::string expected =
      "expected a task (mnist, toy, linear, cifar10 or sam) or a command (advise, env, export, flight, "
      "prune, "
      "report, runs or "
      "TASK --predict)";
  CHECK_THROWS_WITH(parse({}), "no task given, " + expected);
  CHECK_THROWS_WITH(parse({"minst"}), "unknown task 'minst': did you mean mnist? " + expected);
  CHECK_THROWS_WITH(parse({"cifar"}), "unknown task 'cifar': did you mean cifar10? " + expected);
  CHECK_THROWS_WITH(parse({"exprot"}), ContainsSubstring("did you mean export?"));
  CHECK_THROWS_WITH(parse({"nothing"}), "unknown task 'nothing', " + expected);
  CHECK_THROWS_WITH(parse({"toy", "abc", "1"}),
                    "TOTAL_EPOCHS: expected an integer from 1 to 2147483647, got 'abc'");
  CHECK_THROWS_WITH(parse({"mnist", "--eppochs", "3"}), ContainsSubstring("unknown flag '--eppochs'"));
  CHECK_THROWS_WITH(parse({"mnist", "extra"}), "unexpected argument 'extra': worker mnist takes only flags");
  CHECK_THROWS_WITH(parse({"mnist", "--epochs"}), "--epochs: expected a value, got none");
  CHECK_THROWS_WITH(parse({"--epochs", "3"}), ContainsSubstring("unknown flag '--epochs'"));
}

TEST_CASE("an empty value is refused, naming its flag, and takes no flag after it", "[config]") {
  CHECK_THROWS_WITH(parse({"mnist", "--data=", "--max-steps=1"}),
                    "--data: expected a value after '=', got none");
  CHECK_THROWS_WITH(parse({"mnist", "--data", "", "--max-steps=1"}), "--data: expected a value, got none");
  CHECK_THROWS_WITH(parse({"mnist", "--data", "--max-steps=1"}),
                    ContainsSubstring("--data: expected a value, got the flag '--max-steps=1'"));
  CHECK_THROWS_WITH(parse({"mnist", "--resume=", "--epochs=1"}),
                    ContainsSubstring("--resume: expected a value"));
}

TEST_CASE("other programs' names and values of a flag are taken where they mean one of ours", "[config]") {
  const auto config =
      parse({"linear", "--max-epochs=7", "--num_workers", "3", "--accumulate_grad_batches=4",
             "--learning-rate=0.5", "--gradient-clip-val=2", "--find-unused-parameters", "--sync_batchnorm",
             "true", "--trainer.log_every_n_steps=5", "--bucket-cap-mb=3"});
  CHECK(config.train.epochs == 7);
  CHECK(config.train.loader_threads == 3);
  CHECK(config.train.accumulate == 4);
  CHECK(config.train.optim.optimizer.lr == 0.5);
  CHECK(config.train.optim.clip_norm == 2);
  CHECK(config.train.parallel.find_unused);
  CHECK(config.train.parallel.sync_batch_norm);
  CHECK(config.train.log_interval == 5);
  CHECK(config.train.parallel.bucket_mb == 3);
  CHECK(config.stated.contains("epochs"));

  const auto lightning = parse({"mnist", "--precision", "bf16", "--accelerator", "gpu", "--strategy", "ddp",
                                "--devices", "1", "--val-check-interval", "1.0", "--max-time", "00:10:00"});
  CHECK(lightning.train.precision.precision == train::Precision::kBf16Mixed);
  CHECK(lightning.device == ddp::DeviceChoice::kCuda);
  CHECK(lightning.train.max_seconds == 600);
  CHECK(parse({"mnist", "--precision=16"}).train.precision.precision == train::Precision::k16Mixed);
  CHECK(parse({"cifar10", "--precision=32-true"}).train.precision.precision == train::Precision::k32);
  CHECK(parse({"mnist", "--strategy=fsdp"}).train.parallel.fsdp);
  CHECK(parse({"mnist", "--accelerator=cpu"}).device == ddp::DeviceChoice::kCpu);
  CHECK(parse({"mnist", "--fp16"}).train.precision.precision == train::Precision::k16Mixed);
  CHECK_FALSE(parse({"mnist", "--enable_progress_bar=False"}).train.progress);
  CHECK(parse({"mnist", "--ckpt_path=a.ckpt"}).train.checkpoint.resume == "a.ckpt");
  CHECK(parse({"mnist", "--max-epochs=7", "--epochs=2"}).train.epochs == 2);  // the last one
  CHECK(parse({"mnist", "--epochs=2", "--max-epochs=7"}).train.epochs == 7);
}

TEST_CASE("a time has a unit, or Lightning's colons", "[config]") {
  const auto [text, expected] = GENERATE(table<std::string, double>({{"90", 90},
                                                                     {"1.5", 1.5},
                                                                     {"90s", 90},
                                                                     {"10m", 600},
                                                                     {"1.5h", 5400},
                                                                     {"2d", 172800},
                                                                     {"00:10:00", 600},
                                                                     {"01:30:05", 5405},
                                                                     {"02:01:00:00", 176400}}));
  CAPTURE(text);
  CHECK(parse({"mnist", "--max-time", text}).train.max_seconds == expected);
}

TEST_CASE("another program's flag that cannot mean the same is answered with what to write", "[config]") {
  const auto [flag, answer] = GENERATE(table<std::string, std::string>({
      {"--devices=2", "start one worker for each device: ddprun --nproc-per-node=2 worker ..."},
      {"--devices=-1", "start one worker for each GPU: ddprun --nproc-per-node=gpu worker ..."},
      {"--nproc_per_node=2",
       "a flag of ddprun, which goes before worker: ddprun --nproc-per-node=2 worker ..."},
      {"--strategy=deepspeed", "expected ddp or fsdp; --zero1 splits the optimizer's state"},
      {"--accelerator=tpu", "expected gpu, cpu or auto, or --device=cuda, cpu or auto"},
      {"--val-check-interval=0.1", "use --val-every-steps=N, which counts optimizer steps"},
      {"--limit-train-batches=0.1",
       "use --limit-train=N, which counts samples of all ranks, not batches or a fraction of them"},
      {"--adam-beta1=0.9", "use --betas=B1,B2"},
  }));
  auto shown = flag;
  std::ranges::replace(shown, '_', '-');
  CHECK_THROWS_AS(parse({"mnist", flag}), UsageError);
  CHECK_THROWS_WITH(parse({"mnist", flag}), shown + ": " + answer);
}

TEST_CASE("a mistake in another program's flag is answered as one in ours", "[config]") {
  CHECK_THROWS_WITH(parse({"mnist", "--max-epochs=0"}),
                    "--max-epochs: expected an integer from 1 to 2147483647, got '0'");
  CHECK_THROWS_WITH(parse({"mnist", "--max-epochs"}), "--max-epochs: expected a value, got none");
  CHECK_THROWS_WITH(parse({"mnist", "--max-time=10:00"}),
                    "--max-time: expected a time above 0 such as 90, 10m, 1.5h or 2d, got '10:00'");
  CHECK_THROWS_WITH(parse({"mnist", "--precision=64"}),
                    ContainsSubstring("expected 32, bf16-mixed or 16-mixed"));
  // The task has no such setting.
  CHECK_THROWS_WITH(parse({"toy", "1", "1", "--data-path=x"}),
                    ContainsSubstring("unknown flag '--data-path'"));
}

TEST_CASE("every row of the table of other programs' flags leads to a flag of some task", "[config]") {
  Config config;
  const auto ours = all_settings(config);
  for (const auto& row : other_programs_flags()) {
    if (row.means != settings::Foreign::Means::kOurs) continue;
    CAPTURE(row.name, row.what);
    const auto name = row.what.substr(0, row.what.find('='));
    CHECK(std::ranges::any_of(ours, [&](const auto& setting) { return setting.name == name; }));
    CHECK(row.what.find('=') != std::string::npos);
  }
}

TEST_CASE("a run folder is made, for one run at a time", "[config]") {
  const TempDir dir;
  auto config = parse({"mnist"});
  config.train.out = dir.path() / "a" / "b";
  CHECK(make_run_folder(config) == config.train.out);
  CHECK(std::filesystem::is_directory(config.train.out / "checkpoints"));
  CHECK(make_run_folder(config) == config.train.out);  // the same process may have it twice
  const UniqueFd another(::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  REQUIRE(::flock(another.get(), LOCK_EX | LOCK_NB) == 0);
  config.train.out = dir.path();
  CHECK_THROWS_AS(make_run_folder(config), UsageError);
  CHECK_THROWS_WITH(make_run_folder(config), ContainsSubstring("another run is using"));
}

TEST_CASE("a run folder that cannot be made is refused by name", "[config]") {
  auto config = parse({"mnist"});
  config.train.out = "/dev/null/run";
  CHECK_THROWS_AS(make_run_folder(config), IoError);
  CHECK_THROWS_WITH(make_run_folder(config), ContainsSubstring("/dev/null/run: cannot create the folder"));
}

TEST_CASE("a path that is not UTF-8 is in the configuration as JSON", "[config]") {
  const auto json = nlohmann::json::parse(
      parse({"mnist", "--data=/tmp/x\xff", "--init-weights=\xff.pt", "--out=\xff"}).train.config_json);
  CHECK(json["data"] == "/tmp/x\xef\xbf\xbd");
  CHECK(json["init_weights"] == "\xef\xbf\xbd.pt");
}

TEST_CASE("a run folder that cannot be looked into or made is refused by name and reason", "[config]") {
  const TempDir dir;
  auto config = parse({"mnist"});
  SECTION("checkpoints that lead nowhere") {
    config.train.out = dir.path();
    std::filesystem::create_symlink("checkpoints", dir.path() / "checkpoints");
    CHECK_THROWS_WITH(make_run_folder(config),
                      (dir.path() / "checkpoints").string() +
                          ": cannot create the folder: Too many levels of symbolic links");
  }
  SECTION("the default's folder") {
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(dir.path());
    std::filesystem::create_symlink("missing", "runs");  // mkdir: File exists; below it: No such file
    CHECK_THROWS_WITH(make_run_folder(config), "runs: cannot create the folder: File exists");
    std::filesystem::current_path(before);
  }
}

TEST_CASE("a folder of the run that cannot be written to is refused before the training", "[config]") {
  const TempDir dir;
  auto config = parse({"mnist"});
  config.train.out = dir.path();
  std::filesystem::create_directory(dir.path() / "checkpoints");
  const auto part = GENERATE(false, true) ? dir.path() / "checkpoints" : dir.path();
  std::filesystem::permissions(part, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const auto message = error_without_privileges([&] { make_run_folder(config); });
  CHECK(message == part.string() + ": cannot write to the run folder: Permission denied");
}

TEST_CASE("the ranks have as long to meet as a collective, five minutes at most", "[config]") {
  CHECK(group_options(parse({"mnist"})).connect_timeout == std::chrono::minutes(5));
  CHECK(group_options(parse({"mnist", "--timeout=900"})).connect_timeout == std::chrono::minutes(15));
  CHECK(group_options(parse({"mnist", "--timeout=1.5"})).connect_timeout == std::chrono::milliseconds(1500));
}

TEST_CASE("the configuration as JSON says what decides the result", "[config]") {
  const auto json =
      nlohmann::json::parse(parse({"mnist", "--lr", "0.5", "--dropout", "0.1"}).train.config_json);
  CHECK(json["task"] == "mnist");
  CHECK(json["lr"] == 0.5);
  CHECK(json["dropout"] == 0.1);
  CHECK(json["batch_size"] == 128);
}
