#!/usr/bin/env python3
"""Heads that predict further tokens for tests/data/qwen3_5 and qwen3_next, and what they propose.

    python make_heads.py          (torch 2.15, transformers 5.24; writes NAME.safetensors and NAME_expected.safetensors)

transformers has no such head, but all of its parts: the decoder layer and the norms are its own classes, and what
stands around them is the description of vLLM's qwen3_next_mtp:
  slot s   x = fc([norm_e(embedding of token s + 1), norm_h(hidden state of position s, behind the model's final norm)])
           h = norm(layer(x)), attending to the slots before it, at position s; logits = the model's own head of h
  drafts   the first from the last slot; then a slot for each draft, with h of the slot before as its hidden state
The heads are trained a little on the model's own text, a fifth of it left out.
"""
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_5 import modeling_qwen3_5 as q35
from transformers.models.qwen3_next import modeling_qwen3_next as qn

HERE = os.path.dirname(os.path.abspath(__file__))
DRAFTS = 4


class Head(nn.Module):
    def __init__(self, model, layer_class, norm_class):
        super().__init__()
        c = model.config
        full = c.layer_types.index("full_attention")
        self.fc = nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        self.pre_fc_norm_embedding = norm_class(c.hidden_size, eps=c.rms_norm_eps)
        self.pre_fc_norm_hidden = norm_class(c.hidden_size, eps=c.rms_norm_eps)
        self.norm = norm_class(c.hidden_size, eps=c.rms_norm_eps)
        self.layers = nn.ModuleList([layer_class(c, full)])

    def forward(self, model, tokens, hidden):
        """tokens: [T], those behind each position; hidden: [T, hidden]. Returns [T, hidden]."""
        e = model.get_input_embeddings()(tokens[None])
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(e), self.pre_fc_norm_hidden(hidden[None])], -1))
        n = x.shape[1]
        mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
        turns = model.model.rotary_emb(x, torch.arange(n)[None])
        return self.norm(self.layers[0](x, position_embeddings=turns, attention_mask=mask))[0]


def text_of(model, prompt, n):
    ids = prompt
    for _ in range(n):
        with torch.no_grad():
            row = model(input_ids=ids[None], use_cache=False).logits[0, -1]
        ids = torch.cat([ids, row.argmax()[None]])
    return ids


@torch.no_grad()
def hidden_of(model, ids):
    return model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]


def train(model, head, texts, steps):
    data = [(ids, hidden_of(model, ids)) for ids in texts]
    for p in model.parameters():
        p.requires_grad_(False)
    opt = torch.optim.Adam(head.parameters(), lr=4e-3)
    for step in range(steps):
        ids, hidden = data[step % len(data)]
        loss, h = 0.0, hidden
        for depth in range(3):
            # Slot s predicts token s + 2; behind the first depth its hidden state is the head's own.
            h = head(model, ids[1:-1], h[:len(ids) - 2])
            kept = torch.arange(len(ids) - 2) % 5 != 4
            loss = loss + nn.functional.cross_entropy(model.lm_head(h)[kept], ids[2:][kept]) / (depth + 1)
            h = torch.cat([hidden[:1], h])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        opt.step()
        for group in opt.param_groups:
            group["lr"] = 4e-3 * (1 - step / steps)
    return float(loss)


@torch.no_grad()
def propose(model, head, ids, token):
    hidden = hidden_of(model, ids)
    tokens = torch.cat([ids[1:], token[None]])
    drafts, logits = [], []
    for _ in range(DRAFTS):
        h = head(model, tokens, hidden)[-1:]
        row = model.lm_head(h)[0]
        drafts.append(row.argmax())
        logits.append(row)
        tokens = torch.cat([tokens, drafts[-1][None]])
        hidden = torch.cat([hidden, h])
    return torch.stack(drafts).to(torch.int32), torch.stack(logits)


def published(state):
    """Experts one by one, as published checkpoints have them."""
    out = {}
    for name, t in state.items():
        name = "mtp." + name
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(t):
                gate, up = both.chunk(2)
                out[name.replace("gate_up_proj", f"{e}.gate_proj.weight")] = gate
                out[name.replace("gate_up_proj", f"{e}.up_proj.weight")] = up
        elif name.endswith("experts.down_proj"):
            for e, down in enumerate(t):
                out[name.replace("down_proj", f"{e}.down_proj.weight")] = down
        else:
            out[name] = t
    return {k: v.detach().clone().contiguous() for k, v in out.items()}


def make(name, layer_class, norm_class):
    folder = os.path.join(HERE, "..", name)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    prompt = load_file(os.path.join(folder, "expected.safetensors"))["prompt"].long()
    torch.manual_seed(1)
    texts = [text_of(model, prompt, 210), text_of(model, torch.randint(3, model.config.vocab_size, (30,)), 120)]
    head = Head(model, layer_class, norm_class)
    with torch.no_grad():
        for n, p in head.named_parameters():
            if p.ndim > 1:
                p.normal_(0, p.shape[-1] ** -0.5)
            elif "norm" in n:
                p.normal_(0, 0.1)
    print(name, "loss", train(model, head, texts, int(sys.argv[1]) if len(sys.argv) > 1 else 500))
    save_file(published(head.state_dict()), os.path.join(HERE, name + ".safetensors"))
    expected, right = {}, 0
    for i, (text, n) in enumerate([(0, 1), (0, 2), (0, 40), (0, 71), (0, 150), (1, 31), (1, 90)]):
        ids, token = texts[text][:n], texts[text][n]
        drafts, logits = propose(model, head, ids, token)
        expected |= {f"{i}.context": ids.to(torch.int32), f"{i}.next": token[None].to(torch.int32),
                     f"{i}.tokens": drafts, f"{i}.logits": logits}
        after = texts[text][n + 1:n + 1 + DRAFTS].tolist()
        gap = logits.topk(2).values
        print(n, drafts.tolist(), after, float((gap[:, 0] - gap[:, 1]).min()))
    save_file({k: v.contiguous() for k, v in expected.items()}, os.path.join(HERE, name + "_expected.safetensors"))


make("qwen3_5", q35.Qwen3_5DecoderLayer, q35.Qwen3_5RMSNorm)
make("qwen3_next", qn.Qwen3NextDecoderLayer, qn.Qwen3NextRMSNorm)
