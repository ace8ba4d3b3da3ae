#pragma once

// The whole public interface of ddprun::runtime; each header can be included by itself too.

#include <ddprun/common/error_file.h>
#include <ddprun/common/errors.h>
#include <ddprun/common/heartbeat.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/data/dataset.h>
#include <ddprun/data/distributed_sampler.h>
#include <ddprun/data/loader.h>
#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/ddp/nan_check.h>
#include <ddprun/ddp/powersgd_hook.h>
#include <ddprun/ddp/sync_batch_norm.h>
#include <ddprun/flight/flight_dump.h>
#include <ddprun/flight/flight_recorder.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/cuda_backend.h>
#include <ddprun/group/process_group.h>
#include <ddprun/group/signal_thread.h>
#include <ddprun/group/spawn.h>
#include <ddprun/report/metric_sink.h>
#include <ddprun/report/tensorboard_sink.h>
#include <ddprun/run/run_worker.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/serialize/safetensors.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/sharding/zero_optimizer.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/optimizer_state.h>
#include <ddprun/train/state/state_dict_file.h>
