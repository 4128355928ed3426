#!/usr/bin/env python3
"""A checkpoint of tessera in transformers: the same tensors by name, the same loss.

Usage: checkpoint.py FOLDER              ($TESSERA is the program)

Trains a small Llama for a few steps, with layers stacked and not, tied and untied. The checkpoint's
file is read as it is: every tensor but the moments is loaded by its name, none may be missing or
left over. On the same tokens tessera's loss must be transformers' to 1e-5, whether it reads the
checkpoint, the run's folder, or the tensors written as a published model.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

BYTES, BOS = 256, 256                    # the byte tokenizer: a byte is its id, then bos
LENGTH, STEPS = 48, 6
MODELS = {
    "untied": dict(vocab_size=320, hidden_size=48, intermediate_size=100, num_hidden_layers=3,
                   num_attention_heads=6, num_key_value_heads=2, head_dim=8,
                   tie_word_embeddings=False),
    "tied-unrolled": dict(vocab_size=320, hidden_size=40, intermediate_size=64, num_hidden_layers=2,
                          num_attention_heads=5, num_key_value_heads=1, head_dim=12,
                          tie_word_embeddings=True),
}


def words(sizes, scan):
    keys = {"base_emb_dim": "hidden_size", "base_mlp_dim": "intermediate_size",
            "vocab_size": "vocab_size", "base_num_decoder_layers": "num_hidden_layers",
            "base_num_query_heads": "num_attention_heads",
            "base_num_kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
    out = [f"{ours}={sizes[theirs]}" for ours, theirs in keys.items()]
    return out + [f"logits_via_embedding={str(sizes['tie_word_embeddings']).lower()}",
                  f"scan_layers={str(scan).lower()}", "rope_max_timescale=10000.0"]


def train(root, name, sizes, scan, text):
    command = [os.environ["TESSERA"], "train", "base.yml", *words(sizes, scan), "dataset_type=text",
               f"dataset_path={text}", "tokenizer_type=byte", "dtype=float32", f"steps={STEPS}",
               "per_device_batch_size=4", f"max_target_length={LENGTH}", "learning_rate=1e-2",
               "num_epoch=100",
               "log_config=false", f"run_name={name}", f"base_output_directory={root}", "threads=2",
               "enable_checkpointing=true"]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"tessera train exits {run.returncode}:\n{run.stdout[-3000:]}{run.stderr[-3000:]}")
    shard, = (root / name / "checkpoints").glob(f"{STEPS}/shard-*.safetensors")
    return shard


def load(shard, sizes):
    """The model with the shard's tensors, and the names of its moments."""
    config = LlamaConfig(**sizes, rms_norm_eps=1e-5, max_position_embeddings=LENGTH,
                         hidden_act="silu",
                         rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                         attn_implementation="eager")
    model = LlamaForCausalLM(config).float().eval()
    with safe_open(shard, "pt") as file:
        tensors = {n: file.get_tensor(n) for n in file.keys()}
    moments = {n for n in tensors if n.startswith("adam.")}
    weights = {n: t for n, t in tensors.items() if n not in moments}
    missing, strange = model.load_state_dict(weights, strict=False)
    missing = [n for n in missing if not (sizes["tie_word_embeddings"] and n == "lm_head.weight")]
    if missing or strange:
        sys.exit(f"{shard}: missing {missing}, left over {strange}")
    for kind in "mv":
        want = {f"adam.{kind}.{n}" for n in weights}
        if {n for n in moments if n.startswith(f"adam.{kind}.")} != want:
            sys.exit(f"{shard}: moments {kind} are not those of the weights")
    if any(tensors[f"adam.m.{n}"].shape != t.shape for n, t in weights.items()):
        sys.exit(f"{shard}: a moment has another shape than its weight")
    return model, weights


def loss_in_tessera(root, name, sizes, shard, weights, ids, model):
    """Writes the model as a published folder with a reference, and asks `tessera parity`."""
    folder = root / f"{name}-folder"
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": LENGTH,
              "torch_dtype": "float32", "bos_token_id": None, "eos_token_id": None} | sizes
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    kept = {}
    hooks = [m.register_forward_hook(lambda _m, _i, o, n=n: kept.__setitem__(
                 "hidden." + n, (o[0] if isinstance(o, tuple) else o).detach().clone()))
             for n, m in [("embed", model.model.embed_tokens), ("norm", model.model.norm)]
             + [(str(i), layer) for i, layer in enumerate(model.model.layers)]]
    output = model(input_ids=ids, labels=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    output.loss.backward()
    golden = kept | {"input_ids": ids, "labels": ids.clone(), "logits": output.logits.detach(),
                     "loss": output.loss.detach().reshape(1)}
    golden |= {"grad." + n: p.grad.clone() for n, p in model.named_parameters()}
    save_file({n: t.contiguous() for n, t in golden.items()}, folder / "golden.safetensors")
    for where in (folder, shard.parent, root / name):
        command = [os.environ["TESSERA"], "parity", where, "--golden",
                   folder / "golden.safetensors", "--json"]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"parity {where} exits {run.returncode}:\n{run.stdout[-3000:]}{run.stderr}")
        rows = {t["name"]: t for t in json.loads(run.stdout)["tensors"]}
        if not rows["loss"]["max_abs"] <= 1e-5:
            sys.exit(f"{where}: the losses differ by {rows['loss']['max_abs']}")
        yield rows["loss"]["max_abs"]


def logged_losses(root, name):
    lines = (root / name / "metrics.jsonl").read_text().splitlines()
    return [row["learning/loss"] for row in map(json.loads, lines) if "learning/loss" in row]


def main():
    root = pathlib.Path(sys.argv[1])
    torch.set_num_threads(2)
    source = pathlib.Path("README.md").read_bytes()
    text = root / "text.txt"
    text.write_bytes(re.sub(rb"[^\x00-\x7f]", b"?", source)[:4000])
    ids = torch.tensor([[BOS, *text.read_bytes()[i * 40:i * 40 + LENGTH - 1]] for i in range(3)])
    for name, sizes in MODELS.items():
        shard = train(root, name, sizes, scan=not name.endswith("unrolled"), text=text)
        losses = logged_losses(root, name)
        if len(losses) != STEPS or not losses[-1] < losses[0]:
            sys.exit(f"{name}: metrics.jsonl tells losses {losses}")
        model, weights = load(shard, sizes)
        gaps = list(loss_in_tessera(root, name, sizes, shard, weights, ids, model))
        print(f"ok {name}: {len(weights)} tensors; training loss {losses[0]:.4f} to "
              f"{losses[-1]:.4f}; transformers differs by {max(gaps):.1e}")


if __name__ == "__main__":
    main()
