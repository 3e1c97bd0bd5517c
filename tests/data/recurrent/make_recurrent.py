"""Writes recurrent.safetensors: small inputs of the recurrent operations and what transformers makes of them.

Run: python make_recurrent.py, with transformers (5.24.0 made the file), torch and safetensors, CPU, float32.

Tensors are named <case>.<input or output>, in the layouts of memoir/kernels/:
  delta      torch_recurrent_gated_delta_rule of qwen3_next, gates made as Qwen3NextGatedDeltaNet makes them
  conv       causal_conv1d_update of mamba2 (SiLU, bias), then conv_plain: lfm2's, without either
  scan2      mamba2_selective_state_update, token by token (the first tokens also by mamba2_chunk_scan, compared here)
  scan1      mamba_selective_state_update, token by token
"""

import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers.models.mamba.modeling_mamba import mamba_selective_state_update
from transformers.models.mamba2.modeling_mamba2 import (
    causal_conv1d_update,
    mamba2_chunk_scan,
    mamba2_selective_state_update,
)
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

torch.manual_seed(6)
tensors = {}


def put(case, **arrays):
    for name, array in arrays.items():
        tensors[f"{case}.{name}"] = array.detach().float().contiguous().clone()


def delta():
    B, T, Hk, Hv, Dk, Dv = 2, 11, 2, 4, 24, 20
    q, k = torch.randn(B, T, Hk, Dk), torch.randn(B, T, Hk, Dk)
    v = torch.randn(B, T, Hv, Dv)
    a, b = 2 * torch.randn(B, T, Hv), torch.randn(B, T, Hv)
    a_log, dt_bias = torch.log(torch.rand(Hv) * 4 + 0.1), torch.randn(Hv)
    state = 0.3 * torch.randn(B, Hv, Dk, Dv)
    g = -a_log.exp() * F.softplus(a + dt_bias)
    beta = b.sigmoid()
    y, after = torch_recurrent_gated_delta_rule(
        q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    put("delta", q=q, k=k, v=v, a=a, b=b, a_log=a_log, dt_bias=dt_bias, g=g, beta=beta, y=y)
    put("delta", state=state.transpose(2, 3), after=after.transpose(2, 3))
    first = torch_recurrent_gated_delta_rule(
        q[:, :5], k[:, :5], v[:, :5], g=g[:, :5], beta=beta[:, :5], initial_state=state, output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )[1]
    put("delta", after5=first.transpose(2, 3))


def conv():
    B, T, C, K = 2, 7, 21, 4
    x, tail = torch.randn(B, T, C), torch.randn(B, K - 1, C)
    weight, bias = torch.randn(C, K), torch.randn(C)
    for case, has_extras in (("conv", True), ("conv_plain", False)):
        state = tail.transpose(1, 2).contiguous()
        y = causal_conv1d_update(
            x.transpose(1, 2), state, weight, bias if has_extras else None, "silu" if has_extras else None
        )
        put(case, x=x, weight=weight.t(), bias=bias, tail=tail, y=y.transpose(1, 2), after=state.transpose(1, 2))


def scan2():
    B, T, H, P, G, N = 2, 13, 6, 10, 2, 18
    x, dt = torch.randn(B, T, H, P), torch.randn(B, T, H)
    b, c = torch.randn(B, T, G, N), torch.randn(B, T, G, N)
    a, d, dt_bias = -torch.rand(H) * 3 - 0.05, torch.randn(H), torch.randn(H)
    before = 0.3 * torch.randn(B, H, P, N)
    state = before.clone()
    y = torch.stack([step2(state, x[:, t], dt[:, t], a, b[:, t], c[:, t], d, dt_bias) for t in range(T)], 1)
    whole, after = mamba2_chunk_scan(
        x, dt, a, b, c, chunk_size=4, D=d, dt_bias=dt_bias, initial_states=before, dt_softplus=True,
        return_final_states=True,
    )
    assert (whole - y).abs().max() < 2e-5 and (after - state).abs().max() < 2e-5
    limited, limited_after = mamba2_chunk_scan(
        x, dt, a, b, c, chunk_size=4, D=d, dt_bias=dt_bias, initial_states=before, dt_softplus=True,
        dt_limit=(0.3, 1.2), return_final_states=True,
    )
    put("scan2", x=x, dt=dt, a=a, b=b, c=c, d=d, dt_bias=dt_bias, state=before, y=y, after=state)
    put("scan2", limited_y=limited, limited_after=limited_after)


def step2(state, x, dt, a, b, c, d, dt_bias):
    """As Mamba2Mixer calls it for a single token: dt, A and D spread over the head's channels."""
    B, H, P = x.shape
    N = state.shape[-1]
    return mamba2_selective_state_update(
        state, x, dt[:, :, None].expand(B, H, P), a[:, None, None].expand(H, P, N), b, c, d[:, None].expand(H, P),
        dt_bias[:, None].expand(H, P), True,
    )


def scan1():
    B, T, C, N = 2, 9, 19, 5
    x, dt = torch.randn(B, T, C), torch.randn(B, T, C)
    b, c = torch.randn(B, T, N), torch.randn(B, T, N)
    a, d, dt_bias = -torch.rand(C, N) * 3 - 0.05, torch.randn(C), torch.randn(C)
    before = 0.3 * torch.randn(B, C, N)
    state = before.clone()
    y = torch.stack(
        [mamba_selective_state_update(state, x[:, t], dt[:, t], a, b[:, t], c[:, t], d, dt_bias, True) for t in range(T)], 1
    )
    put("scan1", x=x, dt=dt, a=a, b=b, c=c, d=d, dt_bias=dt_bias, state=before, y=y, after=state)


delta()
conv()
scan2()
scan1()
save_file(tensors, pathlib.Path(__file__).with_name("recurrent.safetensors"))
