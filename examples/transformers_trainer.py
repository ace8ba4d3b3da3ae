"""Hugging Face's Trainer under ddprun: the ranks start warm, report their progress, and continue from the newest checkpoint when all of them restart:

    ddprun --nproc-per-node=2 --max-restarts=10 --preload=torch,transformers.trainer examples/transformers_trainer.py FOLDER

In another terminal, watch the job with ddpctl top, or end the process of any rank with kill -9.
"""
import pathlib
import sys

import ddprun
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

folder = pathlib.Path(sys.argv[1])


class Report(TrainerCallback):
    """Tells ddprun how the training goes, and marks the checkpoints that all ranks have completely written."""

    def on_step_end(self, args, state, control, **_):
        ddprun.heartbeat()
        ddprun.status(step=state.global_step, steps=state.max_steps, epoch=int(state.epoch), epochs=int(args.num_train_epochs), phase="train")

    def on_log(self, args, state, control, logs=None, **_):
        ddprun.status(loss=logs.get("loss"))
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step}: loss {logs['loss']}", flush=True)

    def on_save(self, args, state, control, **_):
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        if state.is_world_process_zero:
            (folder / f"checkpoint-{state.global_step}" / "whole").touch()


whole = [mark.parent for mark in folder.glob("checkpoint-*/whole")]
newest = max(whole, key=lambda checkpoint: int(checkpoint.name.split("-")[1]), default=None)
set_seed(0)  # the same data and first weights on every rank
data = [{"input_ids": words, "labels": words} for words in torch.randint(0, 100, (640, 16))]
net = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=2, n_head=2))
arguments = TrainingArguments(
    output_dir=str(folder), num_train_epochs=4, per_device_train_batch_size=8, seed=0, use_cpu=not torch.cuda.is_available(), logging_steps=1,
    save_steps=20, save_total_limit=2, report_to="none", disable_tqdm=True,  # 2: the newest one stays until the next one is complete
)
trainer = Trainer(net, arguments, train_dataset=data, callbacks=[Report()])
trainer.train(resume_from_checkpoint=str(newest) if newest else None)
weights = sum(parameter.double().sum() for parameter in net.parameters()).item()
print(f"rank {arguments.process_index}: weights {weights:.17g} after {trainer.state.global_step} steps", flush=True)
