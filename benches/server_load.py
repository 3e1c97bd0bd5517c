#!/usr/bin/env python3
"""Servers under load, side by side on the same weights: memoir's, llama.cpp's and mlx-lm's.

    benches/server_load.py [--clients 1,8,32] [--requests 3] [--system-tokens 1000] [--max-tokens 64] [--threads 2]
    benches/server_load.py --overload 60

Each client sends chats one after the other, all with one long system prompt and each with a question of its own, at
temperature 0, as streams. Measured of all together: requests and tokens a second, and the time from sending a request
to its first text, median and 99th percentile. Servers run one at a time, a fresh one for each number of clients.

- memoir: `memoir serve`, with a prefix cache, and with --draft with drafts.
- llama.cpp: llama-server, if --llama-server names one (with as many slots as clients); else llama-cpp-python's own
  server, which answers one request at a time.
- mlx-lm: mlx_lm.server on the GGUF's tensors in an MLX directory (compare_peers.py), with its tokenizer, a BPE one.
The python servers need .venv-peers (`make peers`); --peers-python names another python that has them. Servers that
can't be started are left out, and why is said.

--overload: memoir alone, with a prefix cache of 128 MiB, which is full soon, and four times as many clients as it takes
at once, for so many seconds. Prints how many were
answered and refused, how fast the refusals and /health came, and the server's memory at the beginning and the end;
fails where an accepted request did not end well, an answer was neither 200 nor 429, /health took longer than 100 ms, or
memory grew by more than a tenth.
"""

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers" / "bin" / "python"
READY_S = 300


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A process that serves OpenAI's chats on a port of this machine, from when it is ready until the block ends."""

    def __init__(self, name, command, args, env=None):
        self.name = name
        self.port = free_port()
        threads = {"OMP_NUM_THREADS": str(args.threads), "OPENBLAS_NUM_THREADS": str(args.threads)}
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [str(word).replace("{port}", str(self.port)) for word in command],
            stdout=self.log,
            stderr=self.log,
            env=os.environ | threads | (env or {}),
        )

    def __enter__(self):
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if get(self.port, "/v1/models")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.1)
        self.__exit__()
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        raise RuntimeError(lines[-1] if lines else "it did not start")

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def resident_bytes(self):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0


def get(port, path, timeout=30):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class Answer:
    """One streamed chat: its status, when its first text and its end came, and its tokens (parts with text)."""

    def __init__(self, port, messages, max_tokens):
        self.begin = time.perf_counter()
        self.first = None
        self.tokens = 0
        self.is_whole = False
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1800)
        try:
            connection.request(
                "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            self.status = response.status
            if self.status == 200:
                self._read(response)
            else:
                response.read()
        finally:
            connection.close()
        self.end = time.perf_counter()

    def _read(self, response):
        for line in response:
            data = line.strip().removeprefix(b"data:").strip()
            if not line.startswith(b"data:"):
                continue
            if data == b"[DONE]":
                self.is_whole = True
                return
            chunk = json.loads(data)
            if "error" in chunk:
                return
            for choice in chunk["choices"]:
                if choice["delta"].get("content"):
                    self.first = self.first or time.perf_counter()
                    self.tokens += 1


def system_prompt(args):
    """English of about so many tokens, as memoir counts them."""
    words = "The library keeps what it has computed of a text and takes it up again where another one begins alike. "
    text = words * (args.system_tokens // 15 + 1)
    command = [args.memoir, "tokenize", "-m", args.model]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return text[: int(len(text) * args.system_tokens / len(json.loads(done.stdout)))]


def question(system, client, number):
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Client {client} asks question {number}: what is {client} plus {number}?"},
    ]


def measure(server, n_clients, system, args):
    """Returns a row of figures. A first request, not counted, has everything read and warmed up."""
    Answer(server.port, question(system, 0, 0), 4)
    answers = []

    def run(client):
        for number in range(1, args.requests + 1):
            answers.append(Answer(server.port, question(system, client, number), args.max_tokens))

    begin = time.perf_counter()
    clients = [threading.Thread(target=run, args=(client,)) for client in range(1, n_clients + 1)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    elapsed = time.perf_counter() - begin
    good = [answer for answer in answers if answer.is_whole and answer.first]
    if len(good) != n_clients * args.requests:
        raise RuntimeError(f"{n_clients * args.requests - len(good)} of {n_clients * args.requests} chats failed")
    waits = sorted(answer.first - answer.begin for answer in good)
    return {
        "requests/s": len(good) / elapsed,
        "tokens/s": sum(answer.tokens for answer in good) / elapsed,
        "first text p50 s": statistics.median(waits),
        "first text p99 s": waits[min(len(waits) - 1, int(len(waits) * 0.99))],
    }


def commands(n_clients, mlx_folder, args):
    """Name, command and environment of each server. A command of None says why it is left out."""
    context = args.system_tokens + args.max_tokens + 256
    yield "memoir", [
        args.memoir, "serve", "-m", args.model, "--threads", args.threads, "--port", "{port}",
        "--max-running", max(n_clients, 1), "--max-queued", n_clients, "--prefix-cache-bytes", 2**30,
        "--draft", args.draft,
    ]  # fmt: skip
    if args.llama_server:
        yield "llama.cpp", [
            args.llama_server, "-m", args.model, "-t", args.threads, "-tb", args.threads, "--port", "{port}",
            "-np", n_clients, "-c", context * n_clients, "-fa", "on",
        ]  # fmt: skip
    else:
        yield "llama.cpp", [
            args.peers_python, "-m", "llama_cpp.server", "--model", args.model, "--n_threads", args.threads,
            "--n_threads_batch", args.threads, "--n_ctx", context, "--flash_attn", "true",
            "--interrupt_requests", "false", "--port", "{port}",
        ]  # fmt: skip
    yield "mlx-lm", [args.peers_python, "-m", "mlx_lm", "server", "--model", mlx_folder, "--port", "{port}"]


def write_mlx_model(folder, args):
    """The directory that mlx_lm.server reads: made by the peers' python, which has what it takes."""
    command = [args.peers_python, "-B", __file__, "--write-mlx", folder, "--model", args.model]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print("mlx-lm's model can't be written: " + done.stderr.strip().splitlines()[-1], file=sys.stderr)


def write_mlx_here(folder, model):
    """compare_peers.py's tensors, and the GGUF's BPE tokenizer as tokenizer.json."""
    import gguf
    from compare_peers import write_mlx_directory
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    write_mlx_directory(model, folder)
    fields = gguf.GGUFReader(model).fields
    value = lambda name: fields["tokenizer." + name].contents()
    tokens = value("ggml.tokens")
    bpe = models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(m.split(" ", 1)) for m in value("ggml.merges")])
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    types = value("ggml.token_type")
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t, kind in zip(tokens, types) if kind == control])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[value("ggml.bos_token_id")],
        "eos_token": tokens[value("ggml.eos_token_id")],
        "chat_template": value("chat_template"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def compare(args):
    system = system_prompt(args)
    with tempfile.TemporaryDirectory() as mlx_folder:
        if "mlx-lm" in args.servers:
            write_mlx_model(mlx_folder, args)
        for n_clients in args.clients:
            rows = {}
            for name, command in commands(n_clients, mlx_folder, args):
                if name not in args.servers:
                    continue
                try:
                    with Server(name, command, args) as server:
                        rows[name] = measure(server, n_clients, system, args)
                except (RuntimeError, OSError) as error:
                    print(f"{name} is left out: {error}", file=sys.stderr)
            print_table(n_clients, rows, args)


def print_table(n_clients, rows, args):
    print(f"\n{n_clients} clients, {args.requests} chats each, system prompt of {args.system_tokens} tokens, "
          f"{args.max_tokens} to write, {args.threads} threads; in brackets memoir's ratio, above 1 is memoir better")
    print(f"{'':18}" + "".join(f"{name:>22}" for name in rows))
    for label in next(iter(rows.values()), {}):
        line = f"{label:18}"
        for name, row in rows.items():
            line += f"{row[label]:13.3f}"
            if name == "memoir" or "memoir" not in rows:
                line += " " * 9
                continue
            ours = rows["memoir"][label]
            ratio = ours / row[label] if label.endswith("/s") else row[label] / ours
            line += f" ({ratio:5.2f})".ljust(9)
        print(line)


# ---- Overload


def overload(args):
    system = system_prompt(args)
    capacity = args.running + args.queued
    command = [
        args.memoir, "serve", "-m", args.model, "--threads", args.threads, "--port", "{port}",
        "--max-running", args.running, "--max-queued", args.queued, "--prefix-cache-bytes", 2**27,
    ]  # fmt: skip
    with Server("memoir", command, args) as server:
        Answer(server.port, question(system, 0, 0), 4)
        end = time.monotonic() + args.overload
        answers, health_s, memory = [], [], []

        def run(client):
            number = 0
            while time.monotonic() < end:
                number += 1
                answers.append(Answer(server.port, question(system, client, number), args.max_tokens))
                if answers[-1].status == 429:
                    time.sleep(0.2)

        def watch():
            while time.monotonic() < end:
                begin = time.perf_counter()
                assert get(server.port, "/health")[0] == 200
                health_s.append(time.perf_counter() - begin)
                memory.append(server.resident_bytes())
                time.sleep(0.1)

        threads = [threading.Thread(target=run, args=(client,)) for client in range(4 * capacity)]
        threads.append(threading.Thread(target=watch))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return judge(answers, health_s, memory, args)


def judge(answers, health_s, memory, args):
    accepted = [answer for answer in answers if answer.status == 200]
    refused_s = sorted(answer.end - answer.begin for answer in answers if answer.status == 429)
    n_broken = sum(not answer.is_whole for answer in accepted)
    # The first third fills caches and the heap.
    settled, last = max(memory[: len(memory) // 3 + 1]), max(memory[-(len(memory) // 3 + 1) :])
    print(f"{len(accepted)} accepted, {n_broken} of them broken; {len(refused_s)} refused, at the latest after "
          f"{max(refused_s, default=0) * 1000:.0f} ms; /health at the latest after {max(health_s) * 1000:.0f} ms; "
          f"resident {settled / 2**20:.0f} MiB, at the end {last / 2**20:.0f} MiB")
    problems = []
    if n_broken or len(accepted) + len(refused_s) != len(answers):
        problems.append("answers that are neither whole nor 429")
    if not refused_s or not accepted:
        problems.append("no overload")
    if max(health_s) > 0.1:
        problems.append("/health was slow")
    if last > 1.1 * settled:
        problems.append("memory grew")
    print("FAILED: " + ", ".join(problems) if problems else "passed")
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memoir", default=str(ROOT / "build" / "release" / "bin" / "memoir"))
    parser.add_argument("--model", default=str(ROOT / "models" / "smollm2.gguf"))
    parser.add_argument("--servers", default="memoir,llama.cpp,mlx-lm", type=lambda text: text.split(","))
    parser.add_argument("--llama-server", help="llama.cpp's llama-server")
    parser.add_argument("--draft", default="none", help="memoir's --draft")
    parser.add_argument("--peers-python", default=str(PEERS))
    parser.add_argument("--clients", default="1,8,32", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--requests", type=int, default=3, help="chats of each client")
    parser.add_argument("--system-tokens", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--overload", type=int, metavar="SECONDS")
    parser.add_argument("--running", type=int, default=8, help="with --overload: requests that run side by side")
    parser.add_argument("--queued", type=int, default=8, help="with --overload: requests that wait")
    parser.add_argument("--write-mlx", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write_mlx:
        return write_mlx_here(args.write_mlx, args.model)
    if args.overload:
        sys.exit(overload(args))
    compare(args)


if __name__ == "__main__":
    main()
