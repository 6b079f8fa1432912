#!/usr/bin/env python3
"""Saves Hugging Face's Trainer every step. Kill it and start it again: it continues where it was.

    pip install transformers accelerate
    python trainer.py
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import holdfast.torch as hf


def main():
    text = torch.frombuffer(bytearray(open("/usr/share/common-licenses/GPL-3", "rb").read()),
                            dtype=torch.uint8).long()
    rows = text[:len(text) // 64 * 64].view(-1, 64)
    data = [{"input_ids": row, "labels": row} for row in rows]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2,
                                       n_head=4))
    callback = hf.TrainerCallback(job="gpt2-gpl")
    trainer = Trainer(
        model=model, train_dataset=data, callbacks=[callback],
        args=TrainingArguments(output_dir="/tmp/gpt2-gpl", save_strategy="no", report_to=[],
                               per_device_train_batch_size=8, num_train_epochs=3))
    trainer.train(resume_from_checkpoint=callback.resume(trainer))


if __name__ == "__main__":
    main()
