"""`memoir serve` among clients that misbehave, in little room, told to end while it answers, and killed.

What those who behave are answered is what each is answered alone; nothing hangs; what was stored is there afterwards.
"""

import http.client
import json
import os
import signal
import socket
import struct
import tempfile
import threading
import time
import unittest
import urllib.parse

import serving
import tiny_model

END_TOKEN = "521"  # tiny_model's
PROMPTS = [f"Number {i}: " + f"one, two and {i}. " * (4 + 9 * (i % 4)) for i in range(8)]


def connect(address):
    url = urllib.parse.urlparse(address)
    return socket.create_connection((url.hostname, url.port), timeout=60)


def ask(address, method, path, body=None):
    connection = http.client.HTTPConnection(urllib.parse.urlparse(address).netloc, timeout=60)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def completion(prompt, **more):
    return {"prompt": prompt, "temperature": 0, "max_tokens": 40, "logit_bias": {END_TOKEN: -100}, "logprobs": 1} | more


def answer(address, prompt):
    """The choice with its log probabilities, and how many tokens were not computed again."""
    status, text = ask(address, "POST", "/v1/completions", completion(prompt))
    assert status == 200, text
    made = json.loads(text)
    return made["choices"][0], made["usage"]["prompt_tokens_details"]["cached_tokens"]


def post(body, head=""):
    return f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def status_of(address, data):
    """Of the answer to these bytes. None: the connection was closed without one that could be read."""
    with connect(address) as client:
        try:
            client.sendall(data)
            return int(client.makefile("rb").readline().split()[1])
        except (ConnectionError, IndexError):
            return None


class Stream:
    """A stream that has begun."""

    def __init__(self, address, **more):
        self.socket = connect(address)
        body = json.dumps(completion(PROMPTS[0], stream=True, **more)).encode()
        self.socket.sendall(post(body))
        self.file = self.socket.makefile("rb")
        self.text = b""
        while b"data: " not in self.text:
            self.text += self.file.readline()

    def rest(self):
        try:
            self.text += self.file.read()
        except ConnectionError:
            pass
        self.close()
        return self.text

    def reset(self):
        """As when the client's process is killed: no goodbye."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self):
        self.file.close()
        self.socket.close()


class Faulty(unittest.TestCase):
    """The tiny model in a folder of its own."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = os.path.join(cls.folder.name, "tiny")
        os.mkdir(cls.model)
        tiny_model.write(cls.model)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def serve(self, *options):
        server = serving.Server(*options, models=("-m", self.model, "--alias", "tiny"))
        self.addCleanup(lambda: server.stop() if server.process.returncode is None else None)
        return server

    def metric(self, server, name):
        _, text = ask(server.address, "GET", "/metrics")
        return float(dict(line.rsplit(" ", 1) for line in text.splitlines())[name])

    def eventually(self, condition):
        for _ in range(600):
            if condition():
                return
            time.sleep(0.05)
        self.fail("it did not become so")


class BadClients(Faulty):
    def misbehave(self, address):
        """Each kind once. Returns the connections that are to stay open."""
        open_ones = []
        for _ in range(3):  # half a head, half a body, and a stream that nobody reads
            for data in (b"POST /v1/comp", post(b'{"prompt": "x"}')[:-5]):
                client = connect(address)
                client.sendall(data)
                open_ones.append(client)
            open_ones.append(Stream(address, n=8, max_tokens=300))
        Stream(address, max_tokens=2000).reset()
        Stream(address, max_tokens=2000).close()
        gone = connect(address)
        gone.sendall(post(json.dumps(completion(PROMPTS[1], max_tokens=2000)).encode()))
        gone.close()
        huge = b"GET /health HTTP/1.1\r\nX: " + b"x" * 10_000_000 + b"\r\n\r\n"
        self.assertIn(status_of(address, huge), (431, None))
        self.assertEqual(status_of(address, post(b'{"prompt": "\xff\xfe"}')), 400)
        self.assertEqual(status_of(address, post(b"[" * 1_000_000)), 400)
        self.assertEqual(status_of(address, post(b'{"prompt": ' + b"[" * 1_000_000)), 400)
        self.assertEqual(status_of(address, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), 400)
        return open_ones

    def test_others_are_answered_as_alone_in_next_to_no_room(self):
        alone = self.serve("--max-running", "1", "--prefix-cache-bytes", "0")
        expected = [answer(alone.address, prompt)[0] for prompt in PROMPTS]
        self.assertEqual(alone.stop(), 0)
        # Room for the longest prompt, and for hardly anything beside it.
        options = ("--max-cache-bytes", "1200000", "--prefix-cache-bytes", "400000", "--draft", "ngram")
        server = self.serve(*options, "--max-running", "8")
        got = {}

        def behave(first):
            for i in range(first, first + len(PROMPTS)):
                got[first, i % len(PROMPTS)] = answer(server.address, PROMPTS[i % len(PROMPTS)])[0]

        behaving = [threading.Thread(target=behave, args=(first,)) for first in range(6)]
        for thread in behaving:
            thread.start()
        open_ones = [one for _ in range(3) for one in self.misbehave(server.address)]
        for thread in behaving:
            thread.join()
        self.assertEqual(len(got), 6 * len(PROMPTS))
        for (_, i), choice in got.items():
            self.assertEqual(choice, expected[i])
        for one in open_ones:
            one.close()
        self.eventually(lambda: self.metric(server, "memoir_requests_running") == 0)
        self.assertEqual(self.metric(server, "memoir_cache_bytes"), 0)
        self.assertEqual(self.metric(server, "memoir_requests_failed_total"), 0)
        self.assertEqual(ask(server.address, "GET", "/health")[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_too_little_room_for_a_prompt_is_told(self):
        server = self.serve("--max-cache-bytes", "600000")
        status, text = ask(server.address, "POST", "/v1/completions", completion("one, two, three, four. " * 60))
        self.assertEqual(status, 400)
        self.assertIn("prompt", json.loads(text)["error"]["message"])
        self.assertEqual(answer(server.address, "one")[0]["finish_reason"], "length")

    def test_truncate_cuts_to_what_there_is_room_for(self):
        whole = self.serve()
        little = self.serve("--max-cache-bytes", "600000")
        texts = {"model": "tiny", "input": "one, two, three, four. " * 60}
        n_tokens = []
        for server in (whole, little):
            status, text = ask(server.address, "POST", "/api/embed", texts)
            self.assertEqual(status, 200, text)
            n_tokens.append(json.loads(text)["prompt_eval_count"])
        self.assertLess(n_tokens[1], n_tokens[0])
        info = json.loads(ask(little.address, "POST", "/api/show", {"model": "tiny"})[1])["model_info"]
        self.assertEqual(info[info["general.architecture"] + ".context_length"], n_tokens[1])
        status, text = ask(little.address, "POST", "/api/embed", dict(texts, truncate=False))
        self.assertEqual(status, 400)


class Ending(Faulty):
    def kept(self, name):
        return ("--prefix-cache-bytes", "100000000", "--prefix-cache-dir", os.path.join(self.folder.name, name))

    def expect_kept(self, name, answers):
        """A new server on that directory has computed what the one before was asked, and says the same."""
        server = self.serve(*self.kept(name))
        self.assertGreater(self.metric(server, 'memoir_prefix_cache_bytes{tier="directory"}'), 0)
        for prompt, (choice, _) in zip(PROMPTS, answers):
            again, n_cached = answer(server.address, prompt)
            self.assertEqual(again, choice)
            self.assertGreater(n_cached, 20)
        self.assertEqual(self.metric(server, "memoir_prefix_cache_hits_total"), len(PROMPTS))
        self.assertEqual(server.stop(), 0)

    def test_sigterm_under_load_lets_answers_end_and_keeps_what_was_computed(self):
        server = self.serve(*self.kept("ended"))
        answers = [answer(server.address, prompt) for prompt in PROMPTS]
        streams = [Stream(server.address, max_tokens=400) for _ in range(6)]
        ended = []
        stopping = threading.Thread(target=lambda: ended.append(server.stop()))
        stopping.start()
        texts = [stream.rest() for stream in streams]
        stopping.join()
        self.assertEqual(ended, [0])
        for text in texts:
            self.assertIn(b"data: [DONE]", text)
            self.assertEqual(text.count(b'"finish_reason":"length"'), 1)
        with self.assertRaises(OSError):
            ask(server.address, "GET", "/health")
        self.expect_kept("ended", answers)

    def test_an_answer_that_takes_longer_than_the_drain_is_told_so(self):
        server = self.serve("--drain-timeout", "0")
        stream = Stream(server.address, max_tokens=8000)
        self.assertEqual(server.stop(), 0)
        text = stream.rest()
        self.assertNotIn(b"[DONE]", text)
        self.assertIn(b'"error"', text)

    def test_a_second_sigterm_ends_it_at_once(self):
        server = self.serve("--max-context", "8000", "--drain-timeout", "600")
        streams = [Stream(server.address, n=16, max_tokens=7000) for _ in range(4)]
        server.process.send_signal(signal.SIGTERM)
        self.eventually(lambda: ask(server.address, "GET", "/health")[0] == 503)
        self.assertEqual(server.stop(), 128 + signal.SIGTERM)
        for stream in streams:
            self.assertNotIn(b"[DONE]", stream.rest())

    def test_what_was_stored_before_a_kill_is_there_afterwards(self):
        server = self.serve(*self.kept("killed"))
        answers = [answer(server.address, prompt) for prompt in PROMPTS]

        def all_is_written():
            cache = json.loads(ask(server.address, "GET", "/cache")[1])
            return cache["tier"]["bytes"] >= cache["bytes"]["rows"]

        self.eventually(all_is_written)
        streams = [Stream(server.address, max_tokens=4000) for _ in range(6)]
        server.process.kill()
        self.assertEqual(server.stop(), -signal.SIGKILL)
        for stream in streams:
            stream.rest()
        self.expect_kept("killed", answers)


if __name__ == "__main__":
    serving.run()
