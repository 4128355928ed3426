"""peer_torch.py - the same training run as bench/train.sh gives Tessera, in PyTorch + transformers.

LlamaForCausalLM from a configuration, eager mode with scaled-dot-product attention, AdamW (fused
where this build has it), global-norm clipping, the cosine schedule of MaxText. Reads the same file as
bytes, holds the same part out, prints the same step and evaluation lines, so that bench/measure.c
reads both sides alike. Rows are windows of the file; their order is this script's own.
"""
import argparse
import math
import time

import numpy
import torch
import transformers


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    sizes = dict(layers=4, emb=256, heads=8, kv=4, ffn=704, vocab=320, batch=16, seq=256, steps=40, threads=0)
    for name, default in sizes.items():
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    p.add_argument("--learning-rate", type=float, default=2e-3)
    p.add_argument("--eval-fraction", type=float, default=0.0)
    p.add_argument("--device", default="cpu")
    p.add_argument("--compile", action="store_true")
    return p.parse_args()


def learning_rate(step, steps, peak, warm_fraction=0.1, final=0.1):
    warm = int(steps * warm_fraction)
    if step < warm:
        return peak * step / warm
    a = (math.cos(math.pi * (step - warm) / max(steps - warm - 1, 1)) + 1) / 2
    return peak * (a + final * (1 - a))


def windows(data, seq):
    """(inputs, targets), each [rows, seq]: windows side by side, targets one byte ahead."""
    rows = (len(data) - 1) // seq
    x = torch.from_numpy(data[: rows * seq].astype(numpy.int64)).view(rows, seq)
    y = torch.from_numpy(data[1 : rows * seq + 1].astype(numpy.int64)).view(rows, seq)
    return x, y


def make_optimizer(model, peak):
    options = dict(lr=peak, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    try:
        return torch.optim.AdamW(model.parameters(), fused=True, **options)
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(model.parameters(), **options)


def main():
    a = arguments()
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    data = numpy.fromfile(a.data, dtype=numpy.uint8)
    held_out = int(len(data) * a.eval_fraction)
    x, y = (t.to(a.device) for t in windows(data[: len(data) - held_out], a.seq))

    config = transformers.LlamaConfig(
        vocab_size=a.vocab, hidden_size=a.emb, intermediate_size=a.ffn, num_hidden_layers=a.layers,
        num_attention_heads=a.heads, num_key_value_heads=a.kv, head_dim=a.emb // a.heads,
        max_position_embeddings=max(a.seq, 256), rms_norm_eps=1e-5, tie_word_embeddings=False,
        use_cache=False, attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config).to(a.device)
    forward = torch.compile(model) if a.compile else model
    optimizer = make_optimizer(model, a.learning_rate)
    flops = 6 * sum(p.numel() for n, p in model.named_parameters() if "embed_tokens" not in n) * a.batch * a.seq

    def loss_of(inputs, targets):
        with torch.autocast(torch.device(a.device).type, dtype=torch.bfloat16, enabled=a.dtype == "bfloat16"):
            logits = forward(inputs).logits
        return torch.nn.functional.cross_entropy(logits.float().view(-1, a.vocab), targets.reshape(-1))

    order = torch.randperm(len(x)).to(a.device)
    at = 0
    for step in range(a.steps):
        began = time.perf_counter()
        if at + a.batch > len(x):
            order, at = torch.randperm(len(x)).to(a.device), 0
        rows = order[at : at + a.batch]
        at += a.batch
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, a.steps, a.learning_rate)
        loss = loss_of(x[rows], y[rows])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        seconds = time.perf_counter() - began
        tokens = a.batch * a.seq
        print(f"completed step: {step}, seconds: {seconds:.4f}, TFLOP/s/device: {flops / seconds / 1e12:.3f}, "
              f"Tokens/s/device: {tokens / seconds:.3f}, total_weights: {tokens}, loss: {value:.4f}", flush=True)

    if held_out > 0:
        ex, ey = (t.to(a.device) for t in windows(data[len(data) - held_out :], a.seq))
        with torch.no_grad():
            batches = zip(ex.split(a.batch), ey.split(a.batch))
            mean = sum(loss_of(bx, by).item() * len(bx) for bx, by in batches) / len(ex)
        print(f"Completed eval after train step {a.steps - 1}, loss={mean:.4f}, perplexity={math.exp(mean):.4f}")


if __name__ == "__main__":
    main()
