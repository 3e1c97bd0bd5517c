"""The package `ollama` against `memoir serve`: chats, texts, models and errors."""

import json

import ollama

import serving

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
GREEDY = {"temperature": 0, "num_predict": 24, "repeat_penalty": 1}


def current_weather(city: str, unit: str) -> str:
    """The weather of a city.

    Args:
      city: its name
      unit: celsius or fahrenheit
    """
    return f"21 degrees {unit} in {city}"


class Ollama(serving.ServedTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = ollama.Client(host=cls.address, timeout=60)

    def chat(self, messages=None, **more):
        options = GREEDY | more.pop("options", {})
        return self.client.chat(model="smollm2", messages=messages or QUESTION, options=options, **more)

    def test_a_chat_answers_with_counts_and_durations(self):
        answer = self.chat()
        self.assertTrue(answer.done)
        self.assertEqual(answer.done_reason, "stop")
        self.assertEqual(answer.message.role, "assistant")
        self.assertIn("Paris", answer.message.content)
        self.assertGreater(answer.prompt_eval_count, 10)
        self.assertGreater(answer.eval_count, 3)
        self.assertGreater(answer.total_duration, answer.eval_duration)
        self.assertGreater(answer.eval_duration, 0)

    def test_a_stream_is_the_whole_answer_in_parts(self):
        whole = self.chat()
        parts = list(self.chat(stream=True))
        self.assertEqual("".join(part.message.content or "" for part in parts), whole.message.content)
        self.assertEqual([part.done for part in parts], [False] * (len(parts) - 1) + [True])
        self.assertEqual(parts[-1].eval_count, whole.eval_count)

    def test_a_text_is_generated_with_and_without_the_template(self):
        answer = self.client.generate(model="smollm2", prompt=QUESTION[0]["content"], options=GREEDY)
        self.assertIn("Paris", answer.response)
        raw = self.client.generate(model="smollm2", prompt="One, two, three,", raw=True, options=GREEDY)
        self.assertIn("four", raw.response)
        self.assertLess(raw.prompt_eval_count, answer.prompt_eval_count)
        parts = self.client.generate(model="smollm2", prompt="One, two, three,", raw=True, options=GREEDY, stream=True)
        self.assertEqual("".join(part.response for part in parts), raw.response)

    def test_options_end_a_text(self):
        short = self.chat(options={"num_predict": 3})
        self.assertEqual((short.eval_count, short.done_reason), (3, "length"))
        stopped = self.chat(options={"stop": [" Paris"]})
        self.assertEqual(stopped.done_reason, "stop")
        self.assertTrue(self.chat().message.content.startswith(stopped.message.content + " Paris"))

    def test_a_seed_repeats_a_text(self):
        story = [{"role": "user", "content": "Tell a story."}]
        options = {"temperature": 1.5, "seed": 7, "num_predict": 12}
        first = self.chat(story, options=options).message.content
        self.assertEqual(self.chat(story, options=options).message.content, first)
        self.assertNotEqual(self.chat(story, options=options | {"seed": 8}).message.content, first)

    def test_json_keeps_to_its_schema(self):
        schema = {
            "type": "object",
            "properties": {"city": {"type": "string"}, "is_capital": {"type": "boolean"}},
            "required": ["city", "is_capital"],
            "additionalProperties": False,
        }
        answer = self.chat(format=schema, options={"num_predict": 100})
        self.assertEqual(answer.done_reason, "stop")
        city = json.loads(answer.message.content)
        self.assertEqual(set(city), {"city", "is_capital"})
        self.assertIsInstance(city["is_capital"], bool)
        anything = self.chat(format="json", options={"num_predict": 100})
        if anything.done_reason == "stop":
            self.assertIsInstance(json.loads(anything.message.content), dict)

    def test_tools_made_of_functions_are_taken(self):
        messages = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]
        answer = self.chat(messages, tools=[current_weather], options={"num_predict": 60})
        for call in answer.message.tool_calls or []:
            self.assertEqual(call.function.name, "current_weather")
            self.assertIsInstance(call.function.arguments, dict)
        # A call and its result, as the package writes them, go back.
        call = {"function": {"name": "current_weather", "arguments": {"city": "Paris", "unit": "celsius"}}}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_name": "current_weather", "content": current_weather("Paris", "celsius")},
        ]
        last = self.chat(messages, tools=[current_weather])
        self.assertTrue(last.message.content or last.message.tool_calls)

    def test_log_probabilities_are_of_the_text(self):
        answer = self.chat(logprobs=True, top_logprobs=3)
        self.assertTrue("".join(entry.token for entry in answer.logprobs).startswith(answer.message.content))
        for entry in answer.logprobs:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(entry.logprob, entry.top_logprobs[0].logprob)

    def test_the_model_is_listed_and_shown(self):
        self.assertEqual([model.model for model in self.client.list().models], ["smollm2:latest"])
        shown = self.client.show("smollm2")
        self.assertIn("completion", shown.capabilities)
        self.assertEqual(shown.details.format, "gguf")
        self.assertGreater(shown.modelinfo["llama.context_length"], 1000)
        self.assertEqual([model.model for model in self.client.ps().models], ["smollm2:latest"])

    def test_an_empty_chat_only_loads(self):
        answer = self.client.chat(model="smollm2", messages=[])
        self.assertEqual((answer.done, answer.done_reason), (True, "load"))

    def test_errors_are_the_packages_own(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.chat(model="nothing", messages=QUESTION)
        self.assertEqual(caught.exception.status_code, 404)
        with self.assertRaises(ollama.ResponseError) as caught:
            self.chat(options={"temperature": -1})
        self.assertEqual(caught.exception.status_code, 400)
        self.assertIn("temperature", caught.exception.error)
        with self.assertRaises(ollama.ResponseError) as caught:
            list(self.chat([{"role": "user", "content": "word " * 10_000}], stream=True))
        self.assertEqual(caught.exception.status_code, 400)


if __name__ == "__main__":
    serving.run()
