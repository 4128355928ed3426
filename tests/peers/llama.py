"""llama.py OUT SEED - a small random Llama of random sizes from transformers, with its right answers.

Writes OUT/config.json, OUT/model.safetensors and OUT/golden.safetensors: logits, loss, residual stream,
every gradient, and the losses of three AdamW steps. Sizes, tying and rope scaling depend on SEED, so that
parity is tried on shapes nobody chose.
"""
import json
import pathlib
import random
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM


def configuration(r):
    kv, group, dim = r.choice([1, 2, 3]), r.choice([1, 2, 3]), r.choice([8, 12, 16, 20])
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32}
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "vocab_size": r.randrange(64, 700), "hidden_size": kv * group * r.choice([8, 12, 20]),
        "intermediate_size": r.randrange(30, 200), "num_hidden_layers": r.choice([1, 2, 3]),
        "num_attention_heads": kv * group, "num_key_value_heads": kv, "head_dim": dim, "hidden_act": "silu",
        "max_position_embeddings": 128, "rms_norm_eps": r.choice([1e-5, 1e-6]),
        "rope_theta": r.choice([10000.0, 500000.0]), "rope_scaling": scaling if r.random() < 0.5 else None,
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": r.random() < 0.5,
        "bos_token_id": 1, "eos_token_id": 2,
    }


def loss_of(model, ids, labels):
    """Labels are not shifted in the file: position t is asked for label t + 1."""
    logits = model(ids).logits
    flat = logits[:, :-1].flatten(0, 1)
    return logits, torch.nn.functional.cross_entropy(flat, labels[:, 1:].flatten(), ignore_index=-100)


def main():
    out, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    config = configuration(random.Random(seed))
    (out / "config.json").write_text(json.dumps(config, indent=1))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(out), attn_implementation="eager").float()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(1 + 0.1 * torch.randn_like(p) if "norm" in name else torch.randn_like(p) / p.shape[-1] ** 0.5)
    parameters = dict(model.named_parameters())  # tied ones appear once
    save_file({n: p.detach().clone() for n, p in parameters.items()}, out / "model.safetensors")

    ids = torch.randint(3, config["vocab_size"], (2, 37))
    labels = torch.randint(3, config["vocab_size"], (2, 37))
    labels[0, :5] = -100
    hidden = []
    hooks = [m.register_forward_hook(lambda _m, _i, o: hidden.append((o[0] if isinstance(o, tuple) else o).detach().clone()))
             for m in [model.model.embed_tokens, *model.model.layers, model.model.norm]]
    logits, loss = loss_of(model, ids, labels)
    for h in hooks:
        h.remove()
    loss.backward()
    names = ["embed", *map(str, range(len(model.model.layers))), "norm"]
    golden = {"input_ids": ids, "labels": labels, "logits": logits.detach(), "loss": loss.detach()}
    golden |= {f"hidden.{n}": h for n, h in zip(names, hidden)}
    golden |= {f"grad.{n}": p.grad.clone() for n, p in parameters.items()}

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
    losses, norms = [], []
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, ids, labels)[1]
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        losses.append(loss.detach())
    losses.append(loss_of(model, ids, labels)[1].detach())
    golden |= {"step_loss": torch.stack(losses), "step_grad_norm": torch.stack(norms)}
    golden |= {f"param.{n}": p.detach().clone() for n, p in parameters.items()}
    save_file({n: t.contiguous() for n, t in golden.items()}, out / "golden.safetensors")


if __name__ == "__main__":
    main()
