"""Hugging Face's Trainer under ddprun.elastic: only a lost rank is replaced, by a standby process, and all continue from the newest checkpoint:

    ddprun --nproc-per-node=2 --recover=rank --max-restarts=10 --restart-on-codes=SIGKILL,SIGSEGV,SIGBUS --standby=1 examples/transformers_trainer.py FOLDER

In another terminal, watch the job with ddpctl top, or end the process of any rank with kill -9.
"""
import pathlib
import sys

import ddprun
import torch
from ddprun import elastic
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

folder = pathlib.Path(sys.argv[1])
set_seed(0)  # the same data on every rank
data = [{"input_ids": words, "labels": words} for words in torch.randint(0, 100, (640, 16))]
state = elastic.State(step=0)  # the model and the optimizer are in the Trainer's checkpoints


class Report(TrainerCallback):
    """Tells ddprun how the training goes, and marks the checkpoints that all ranks have completely written."""

    def on_step_end(self, args, training, control, **_):
        state.step = training.global_step
        state.commit()  # ends train() if another rank was lost
        ddprun.status(step=training.global_step, steps=training.max_steps, epoch=int(training.epoch), epochs=int(args.num_train_epochs), phase="train")

    def on_log(self, args, training, control, logs=None, **_):
        ddprun.status(loss=logs.get("loss"))
        if training.is_world_process_zero and "loss" in logs:
            print(f"step {training.global_step}: loss {logs['loss']}", flush=True)

    def on_save(self, args, training, control, **_):
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        if training.is_world_process_zero:
            (folder / f"checkpoint-{training.global_step}" / "whole").touch()


@elastic.run(state)  # a standby process waits here, with everything imported
def train() -> None:
    whole = [mark.parent for mark in folder.glob("checkpoint-*/whole")]
    newest = max(whole, key=lambda checkpoint: int(checkpoint.name.split("-")[1]), default=None)
    set_seed(0)  # the same first weights on every rank
    net = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=4, per_device_train_batch_size=8, seed=0, use_cpu=not torch.cuda.is_available(), logging_steps=1,
        save_steps=20, save_total_limit=2, report_to="none", disable_tqdm=True,  # 2: the newest one stays until the next one is complete
    )
    trainer = Trainer(net, arguments, train_dataset=data, callbacks=[Report()])
    trainer.train(resume_from_checkpoint=str(newest) if newest else None)
    weights = sum(parameter.double().sum() for parameter in net.parameters()).item()
    print(f"rank {arguments.process_index}: weights {weights:.17g} after {trainer.state.global_step} steps", flush=True)


train()
