#!/usr/bin/env python3
"""Random Llamas: transformers is the reference, tessera must agree with it within its own bounds.

Usage: published.py FOLDER SEED COUNT        ($TESSERA is the program)

Each model gets a folder like a published one (config.json in one of the forms in use, weights in
f32, bf16 or f16, whole or in shards with an index) and golden.safetensors with transformers'
results in f32. Then `tessera parity` must exit 0, as it is and with the remat and layer stacking
that the seed draws, and `tessera generate` must choose the same tokens.
"""
import json
import os
import pathlib
import random
import subprocess
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, LlamaForCausalLM

# The optimizer that `tessera parity` runs.
LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.01, 1.0
NEW_TOKENS = 12


def describe(draw):
    """A configuration as a config.json may state it."""
    heads = draw.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 12])
    kv_heads = draw.choice([k for k in range(1, heads + 1) if heads % k == 0])
    head_dim = draw.choice([2, 4, 6, 8, 10, 16, 20, 24, 32, 64])
    if draw.random() < 0.4:
        head_dim = max(head_dim, -(-16 // heads) // 2 * 2 + 2)
        hidden = heads * head_dim
    else:
        # transformers wants a multiple; norms over few elements magnify rounding beyond any bound
        hidden = heads * draw.choice([k for k in (3, 5, 8, 11, 14, 17, 24, 40) if heads * k >= 16])
    theta = draw.choice([10000.0, 100000.0, 500000.0])
    scaling = None
    if draw.random() < 0.4:
        low = draw.choice([1.0, 2.0])
        scaling = {"rope_type": "llama3", "factor": draw.choice([2.0, 8.0, 32.0]),
                   "low_freq_factor": low, "high_freq_factor": low * draw.choice([2.0, 4.0]),
                   "original_max_position_embeddings": draw.choice([16, 32, 64])}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "vocab_size": draw.choice([67, 97, 256, 512, 1000]), "hidden_size": hidden,
        "intermediate_size": draw.choice([1, 17, 33, 100, 176, 257, 400]),
        "num_hidden_layers": draw.randint(1, 5), "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "max_position_embeddings": draw.choice([128, 2048]),
        "rms_norm_eps": draw.choice([1e-5, 1e-6]), "attention_bias": False, "mlp_bias": False,
        "attention_dropout": 0.0, "initializer_range": 0.02,
        "tie_word_embeddings": draw.random() < 0.5,
        "bos_token_id": 1, "eos_token_id": draw.choice([2, [2, 3]]), "use_cache": True,
    }
    if head_dim * heads != hidden or draw.random() < 0.3:
        config["head_dim"] = head_dim
    if draw.random() < 0.5:
        config["rope_parameters"] = (scaling or {"rope_type": "default"}) | {"rope_theta": theta}
    else:
        config |= {"rope_theta": theta, "rope_scaling": scaling}
    if kv_heads == heads and draw.random() < 0.5:
        del config["num_key_value_heads"]
    return config


def randomize(model, generator):
    """Norms away from one and matrices that neither vanish nor blow up: every weight matters.

    A tied table makes logits of about 3: far beyond, three AdamW steps in f32 differ from the same
    in f64 by more than any bound.
    """
    hidden = model.config.hidden_size
    with torch.no_grad():
        for name, p in model.named_parameters():
            value = torch.randn(p.shape, generator=generator)
            if "norm" in name:
                p.copy_(1 + 0.2 * value)
            elif "embed_tokens" in name:
                p.copy_(min(0.4, 3.2 * hidden ** -0.5) * value)
            else:
                p.copy_(value * p.shape[-1] ** -0.5)


def write_weights(model, folder, draw):
    """Rounds the model to the dtype of its files and writes it; returns what was done, in words."""
    dtype = draw.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
    shards = draw.choice([1, 1, 2, 3])
    tensors = {}
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(p.to(dtype).float())
            tensors[name] = p.detach().to(dtype).clone()
    names = sorted(tensors)
    if draw.random() < 0.3:                                  # older exporters leave this buffer in
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        names.append("model.layers.0.self_attn.rotary_emb.inv_freq")
    draw.shuffle(names)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        where = {}
        for i in range(shards):
            file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
            mine = names[i::shards]
            save_file({n: tensors[n] for n in mine}, folder / file, metadata={"format": "pt"})
            where |= {n: file for n in mine}
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return f"{str(dtype).removeprefix('torch.')} in {shards}"


def batch(config, generator, draw):
    rows, length = draw.choice([1, 2, 3]), draw.choice([2, 9, 17, 32, 65, 100])
    ids = torch.randint(0, config.vocab_size, (rows, length), generator=generator)
    labels = ids.clone()
    labels[torch.rand(labels.shape, generator=generator) < 0.25] = -100
    labels[:, -1] = ids[:, -1]                               # at least one token is trained
    return ids, labels


def forward_and_gradients(model, ids, labels):
    kept, handles = {}, []

    def keep(module, name):
        def hook(_module, _inputs, output):
            output = output[0] if isinstance(output, tuple) else output
            kept["hidden." + name] = output.detach().clone()
        handles.append(module.register_forward_hook(hook))

    keep(model.model.embed_tokens, "embed")
    keep(model.model.norm, "norm")
    for i, layer in enumerate(model.model.layers):
        keep(layer, str(i))
    output = model(input_ids=ids, labels=labels, use_cache=False)
    for handle in handles:
        handle.remove()
    output.loss.backward()
    kept |= {"logits": output.logits.detach(), "loss": output.loss.detach().reshape(1)}
    kept |= {"grad." + n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    return kept


def greedy(model, ids):
    """The prompt, its continuation, and the smallest gap between the two best tokens on the way."""
    ids, gap = ids[:1, :6], float("inf")
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            logits = model(input_ids=ids, use_cache=False).logits[0, -1]
            best = logits.topk(2).values
            gap = min(gap, float(best[0] - best[1]))
            ids = torch.cat([ids, logits.argmax().reshape(1, 1)], 1)
    return ids, gap


def three_steps(model, ids, labels):
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON,
                                  weight_decay=WEIGHT_DECAY, foreach=False)
    losses, norms = [], []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, CLIP))
        optimizer.step()
        losses.append(loss.detach())
    with torch.no_grad():
        losses.append(model(input_ids=ids, labels=labels, use_cache=False).loss)
    after = {"param." + n: p.detach().clone() for n, p in model.named_parameters()}
    return after | {"step_loss": torch.stack(losses), "step_grad_norm": torch.stack(norms)}


def make(folder, seed):
    """Writes one model and its reference; returns a line about it, its prompt and continuation."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True)
    description = describe(draw)
    (folder / "config.json").write_text(json.dumps(description, indent=2))
    config = AutoConfig.from_pretrained(folder)
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).float().train()
    randomize(model, generator)
    files = write_weights(model, folder, draw)
    ids, labels = batch(config, generator, draw)
    golden = forward_and_gradients(model, ids, labels)
    whole, gap = greedy(model, ids)
    golden |= three_steps(model, ids, labels)
    golden |= {"input_ids": ids, "labels": labels}
    save_file({n: t.contiguous() for n, t in golden.items()}, folder / "golden.safetensors")
    prompt = whole[0, :min(6, ids.shape[1])].tolist()
    line = (f"{description['num_hidden_layers']} x {config.hidden_size}, "
            f"{config.num_attention_heads}/{config.num_key_value_heads} heads of {config.head_dim}, "
            f"ffn {config.intermediate_size}, vocab {config.vocab_size}, "
            f"{'tied' if config.tie_word_embeddings else 'untied'}, "
            f"{tuple(ids.shape)}, {files}")
    return line, prompt, whole[0].tolist(), gap


def tessera(*words):
    return subprocess.run([os.environ["TESSERA"], *map(str, words)], capture_output=True, text=True)


def parity_problem(folder, keys):
    run = tessera("parity", folder, "--golden", folder / "golden.safetensors", "--quiet", *keys)
    if run.returncode == 0:
        return None
    return f"parity {' '.join(keys)} exits {run.returncode}:\n{run.stdout}{run.stderr}"


def generate_problem(folder, prompt, want, gap):
    run = tessera("generate", "--model", folder, "--ids", ",".join(map(str, prompt)),
                  "--max-new", NEW_TOKENS, "--no-stop", "--print-ids")
    got = run.stdout.strip()
    if run.returncode:
        return f"generate exits {run.returncode}: {run.stderr}"
    if got != ",".join(map(str, want)) and gap > 1e-4:   # closer ones are rounding's choice
        return f"generate gives {got}, expected {want} (best two at least {gap:.2g} apart)"
    return None


def main():
    root, seed, count = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(2)
    failed = 0
    for i in range(count):
        folder = root / f"model-{i}"
        line, prompt, want, gap = make(folder, 1000 * seed + i)
        draw = random.Random(i)
        other = (f"remat_policy={draw.choice(['none', 'full'])}",
                 f"scan_layers={draw.choice(['true', 'false'])}")
        problems = [parity_problem(folder, ()), parity_problem(folder, other),
                    generate_problem(folder, prompt, want, gap)]
        problems = [p for p in problems if p]
        failed += bool(problems)
        print("FAIL" if problems else "ok  ", f"{i}: {line}", flush=True)
        print(*(f"     {p}\n" for p in problems), end="", flush=True)
    print(f"{count - failed} of {count} models agree")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
