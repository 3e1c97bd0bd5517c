"""Several models in one server, with the packages `openai` and `ollama`: each loaded when it is asked for.

Both models of the folder are the same file, so that what they write is known: what the other one writes.
"""

import os
import tempfile
import threading
import time

import ollama
import openai

import serving

PROMPTS = ["The capital of France is", "One, two, three,", "Once upon a time", "Water boils at"]


def folder_of_two():
    folder = tempfile.TemporaryDirectory()
    for name in ("one.gguf", "two.gguf"):
        os.symlink(os.path.realpath(serving.MODEL), os.path.join(folder.name, name))
    with open(os.path.join(folder.name, "broken.gguf"), "wb") as file:
        file.write(b"no model")
    return folder


class SeveralModels(serving.ServedTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder_of_two()
        cls.models = ("--models-dir", cls.folder.name)
        super().setUpClass()
        cls.openai = openai.OpenAI(base_url=cls.address + "/v1", api_key="none", max_retries=0, timeout=120)
        cls.ollama = ollama.Client(host=cls.address, timeout=120)

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def text(self, model, prompt, max_tokens=12):
        answer = self.openai.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=max_tokens)
        self.assertEqual(answer.model, model)
        return answer.choices[0].text

    def running(self):
        return sorted(model.model for model in self.ollama.ps().models)

    def await_running(self, names):
        for _ in range(200):
            if self.running() == names:
                return
            time.sleep(0.05)
        self.assertEqual(self.running(), names)

    def test_models_are_listed_and_what_is_none_is_not(self):
        self.assertEqual([model.id for model in self.openai.models.list()], ["one", "two"])
        listed = self.ollama.list().models
        self.assertEqual([model.model for model in listed], ["one:latest", "two:latest"])
        self.assertEqual(listed[0].size, os.path.getsize(serving.MODEL))
        self.assertEqual(listed[0].details.family, "llama")
        self.assertTrue(any("broken.gguf" in line for line in self.server.log))
        self.assertGreater(self.ollama.show("two").modelinfo["llama.context_length"], 1000)
        with self.assertRaises(openai.NotFoundError):
            self.text("broken", PROMPTS[0])

    def test_both_at_once_write_what_each_writes_alone(self):
        alone = [self.text("one", prompt) for prompt in PROMPTS]
        self.assertIn("Paris", alone[0])
        wrong = []

        def ask(model, first):
            for i in range(2 * len(PROMPTS)):
                k = (first + i) % len(PROMPTS)
                text = self.text(model, PROMPTS[k])
                if text != alone[k]:
                    wrong.append((model, PROMPTS[k], text, alone[k]))

        clients = [threading.Thread(target=ask, args=(("one", "two")[i % 2], i)) for i in range(4)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        self.assertEqual(wrong, [])
        self.assertEqual(self.running(), ["one:latest", "two:latest"])

    def test_keep_alive_says_how_long_a_model_stays(self):
        greedy = {"temperature": 0, "num_predict": 4}
        self.ollama.generate(model="one", prompt="Hi", options=greedy, keep_alive=0)
        self.ollama.generate(model="two", prompt="Hi", options=greedy, keep_alive="1h")
        self.await_running(["two:latest"])
        expiry = self.ollama.ps().models[0].expires_at.timestamp()
        self.assertGreater(expiry, time.time() + 3000)
        self.assertLess(expiry, time.time() + 3700)
        self.assertEqual(self.ollama.generate(model="two", keep_alive=0).done_reason, "unload")
        self.await_running([])
        self.assertEqual(len(self.ollama.embed(model="one", input="Hi").embeddings[0]), 576)
        self.await_running(["one:latest"])


class RoomForOne(SeveralModels):
    options = ("--max-loaded-models", "1")

    test_models_are_listed_and_what_is_none_is_not = None
    test_keep_alive_says_how_long_a_model_stays = None

    def test_both_at_once_write_what_each_writes_alone(self):
        alone = self.text("one", PROMPTS[0])
        threads = os.listdir(f"/proc/{self.server.process.pid}/task") if os.path.isdir("/proc") else []
        for _ in range(3):
            self.assertEqual(self.text("two", PROMPTS[0]), alone)
            self.assertEqual(self.running(), ["two:latest"])
            self.assertEqual(self.text("one", PROMPTS[0]), alone)
        if threads:  # those of engines that are gone have gone with them
            self.assertLessEqual(len(os.listdir(f"/proc/{self.server.process.pid}/task")), len(threads) + 2)


if __name__ == "__main__":
    serving.run()
