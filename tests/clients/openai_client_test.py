"""The package `openai` against `memoir serve`: chats, completions, models and errors."""

import json
import math
from typing import Literal

import openai
import pydantic

import serving

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "current_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 2},
    },
    "required": ["name", "age", "pets"],
    "additionalProperties": False,
}


class City(pydantic.BaseModel):
    name: str
    is_capital: bool


class Country(pydantic.BaseModel):
    name: str
    capital: City
    continent: Literal["Africa", "America", "Asia", "Europe", "Oceania"]


class OpenAi(serving.ServedTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.address + "/v1", api_key="none", max_retries=0, timeout=60)

    def chat(self, messages=None, **options):
        options = {"model": "smollm2", "temperature": 0, "max_completion_tokens": 24} | options
        return self.client.chat.completions.create(messages=messages or QUESTION, **options)

    def test_a_chat_answers_with_its_usage(self):
        answer = self.chat()
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.model, "smollm2")
        choice = answer.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        self.assertIn("Paris", choice.message.content)
        self.assertEqual(choice.finish_reason, "stop")
        self.assertGreater(answer.usage.prompt_tokens, 10)
        self.assertGreater(answer.usage.completion_tokens, 3)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_a_stream_is_the_whole_answer_in_parts(self):
        whole = self.chat()
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], "stop")
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(len({chunk.id for chunk in chunks}), 1)

    def test_the_stream_helper_puts_an_answer_together(self):
        with self.client.chat.completions.stream(
            model="smollm2", messages=QUESTION, temperature=0, max_completion_tokens=24
        ) as stream:
            deltas = [event.delta for event in stream if event.type == "content.delta"]
            final = stream.get_final_completion()
        self.assertEqual("".join(deltas), final.choices[0].message.content)
        self.assertIn("Paris", final.choices[0].message.content)

    def test_a_stream_can_be_left_and_the_server_goes_on(self):
        stream = self.chat(stream=True, max_completion_tokens=2000)
        next(iter(stream))
        stream.close()
        self.assertIn("Paris", self.chat().choices[0].message.content)

    def test_a_conversation_is_read_with_all_its_turns(self):
        turns = [
            {"role": "system", "content": "You answer briefly."},
            {"role": "user", "content": "Which city is the capital of Italy?"},
            {"role": "assistant", "content": "Rome."},
            {"role": "user", "content": "And of France?"},
        ]
        whole = self.chat(turns)
        self.assertIn("Paris", whole.choices[0].message.content)
        in_parts = [turn | {"content": [{"type": "text", "text": turn["content"]}]} for turn in turns]
        again = self.chat(in_parts)
        self.assertEqual(again.choices[0].message.content, whole.choices[0].message.content)
        self.assertEqual(again.usage.prompt_tokens, whole.usage.prompt_tokens)
        self.assertLess(self.chat(turns[2:]).usage.prompt_tokens, whole.usage.prompt_tokens)

    def test_a_length_ends_an_answer(self):
        answer = self.chat(max_completion_tokens=3)
        self.assertEqual(answer.usage.completion_tokens, 3)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(self.chat(max_completion_tokens=None, max_tokens=2).usage.completion_tokens, 2)

    def test_a_stop_text_ends_an_answer_and_is_not_in_it(self):
        whole = self.chat().choices[0].message.content
        before, stop, _ = whole.partition(" Paris")
        for stops in (stop, ["nothing of it", stop]):
            choice = self.chat(stop=stops).choices[0]
            self.assertEqual(choice.message.content, before)
            self.assertEqual(choice.finish_reason, "stop")
        streamed = "".join(c.choices[0].delta.content or "" for c in self.chat(stop=stop, stream=True))
        self.assertEqual(streamed, before)

    def test_texts_of_n_differ_and_a_seed_repeats_them(self):
        options = {"n": 3, "seed": 42, "temperature": 1.5, "max_completion_tokens": 12}
        story = [{"role": "user", "content": "Tell a story."}]
        first = [choice.message.content for choice in self.chat(story, **options).choices]
        self.assertEqual(len(set(first)), 3)
        self.assertEqual(first, [choice.message.content for choice in self.chat(story, **options).choices])
        streamed = ["", "", ""]
        for chunk in self.chat(story, stream=True, **options):
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""
        self.assertEqual(streamed, first)
        other = self.chat(story, **(options | {"seed": 43, "n": 1})).choices[0].message.content
        self.assertNotEqual(other, first[0])

    def test_log_probabilities_are_of_the_tokens_of_the_text(self):
        choice = self.chat(logprobs=True, top_logprobs=5).choices[0]
        entries = choice.logprobs.content
        self.assertTrue("".join(entry.token for entry in entries).startswith(choice.message.content))
        self.assertTrue(b"".join(bytes(e.bytes) for e in entries).decode().startswith(choice.message.content))
        for entry in entries:
            self.assertEqual(len(entry.top_logprobs), 5)
            likeliest = [top.logprob for top in entry.top_logprobs]
            self.assertEqual(likeliest, sorted(likeliest, reverse=True))
            self.assertEqual(entry.logprob, likeliest[0])  # temperature 0
            self.assertLessEqual(sum(math.exp(one) for one in likeliest), 1 + 1e-5)
        streamed = [
            entry.logprob
            for chunk in self.chat(logprobs=True, top_logprobs=5, stream=True)
            for choice in chunk.choices
            if choice.logprobs
            for entry in choice.logprobs.content
        ]
        self.assertEqual(streamed, [entry.logprob for entry in entries])

    def test_a_bias_forces_and_forbids_a_token(self):
        def tokens(bias):
            choice = self.chat(logit_bias={"5345": bias}, max_completion_tokens=3, logprobs=True).choices[0]
            return [entry.token for entry in choice.logprobs.content]

        forced = tokens(100)
        self.assertEqual(len(forced), 3)
        self.assertEqual(len(set(forced)), 1)
        self.assertNotIn(forced[0], tokens(-100))

    def test_a_required_tool_is_called_with_arguments_that_fit(self):
        messages = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]
        for choice in ("required", {"type": "function", "function": {"name": "current_weather"}}):
            answer = self.chat(messages, tools=[WEATHER], tool_choice=choice, max_completion_tokens=60).choices[0]
            self.assertEqual(answer.finish_reason, "tool_calls")
            call = answer.message.tool_calls[0]
            self.assertEqual(call.function.name, "current_weather")
            arguments = json.loads(call.function.arguments)
            self.assertEqual(set(arguments), {"city", "unit"})
            self.assertIn(arguments["unit"], ["celsius", "fahrenheit"])
        # The result goes back, and a text comes.
        messages += [
            answer.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "sky": "clear"}'},
        ]
        last = self.chat(messages, tools=[WEATHER], tool_choice="none").choices[0]
        self.assertTrue(last.message.content)
        self.assertIsNone(last.message.tool_calls)

    def test_a_tool_call_comes_in_a_stream_too(self):
        with self.client.chat.completions.stream(
            model="smollm2",
            messages=[{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[WEATHER],
            tool_choice="required",
            temperature=0,
            max_completion_tokens=60,
        ) as stream:
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].finish_reason, "tool_calls")
        call = final.choices[0].message.tool_calls[0]
        self.assertEqual(call.function.name, "current_weather")
        self.assertEqual(set(json.loads(call.function.arguments)), {"city", "unit"})

    def test_json_keeps_to_its_schema(self):
        messages = [{"role": "user", "content": "Describe a person as JSON."}]
        schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
        for seed in range(3):
            answer = self.chat(
                messages, response_format=schema, temperature=1, seed=seed, max_completion_tokens=200
            ).choices[0]
            if answer.finish_reason == "length":
                continue
            person = json.loads(answer.message.content)
            self.assertEqual(set(person), {"name", "age", "pets"})
            self.assertIsInstance(person["name"], str)
            self.assertIsInstance(person["age"], int)
            self.assertLessEqual(len(person["pets"]), 2)
            self.assertLessEqual(set(person["pets"]), {"cat", "dog"})
        yes_or_no = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"enum": ["yes", "no"]}},
        }
        answer = self.chat(messages, response_format=yes_or_no).choices[0]
        self.assertEqual(answer.finish_reason, "stop")
        self.assertIn(json.loads(answer.message.content), ["yes", "no"])

    def test_an_answer_is_parsed_into_a_class(self):
        answer = self.client.chat.completions.parse(
            model="smollm2",
            messages=[{"role": "user", "content": "Describe France as JSON."}],
            response_format=Country,
            temperature=0,
            max_completion_tokens=200,
        ).choices[0]
        self.assertEqual(answer.finish_reason, "stop")
        self.assertIsInstance(answer.message.parsed, Country)

    def test_completions_go_on_from_their_prompts(self):
        answer = self.client.completions.create(
            model="smollm2",
            prompt=["The capital of France is", "One, two, three,"],
            max_tokens=4,
            temperature=0,
            logprobs=2,
        )
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        self.assertIn("Paris", answer.choices[0].text)
        self.assertIn("four", answer.choices[1].text)
        for choice in answer.choices:
            self.assertEqual("".join(choice.logprobs.tokens), choice.text)
            self.assertEqual(len(choice.logprobs.token_logprobs), 4)
            self.assertEqual(choice.finish_reason, "length")
        streamed = ["", ""]
        for chunk in self.client.completions.create(
            model="smollm2",
            prompt=["The capital of France is", "One, two, three,"],
            max_tokens=4,
            temperature=0,
            stream=True,
        ):
            for choice in chunk.choices:
                streamed[choice.index] += choice.text
        self.assertEqual(streamed, [choice.text for choice in answer.choices])

    def test_the_model_is_listed(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["smollm2"])
        self.assertEqual(self.client.models.retrieve("smollm2").object, "model")

    def test_errors_are_the_packages_own(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.chat(model="nothing")
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("nothing")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat([{"role": "user", "content": "word " * 10_000}])
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError):
            self.chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}])


class OpenAiWithKey(serving.ServedTest):
    options = ("--api-key", "secret")

    def test_a_wrong_key_is_an_authentication_error(self):
        for key in ("secret", "wrong"):
            client = openai.OpenAI(base_url=self.address + "/v1", api_key=key, max_retries=0, timeout=60)
            if key == "secret":
                self.assertEqual(len(list(client.models.list())), 1)
            else:
                with self.assertRaises(openai.AuthenticationError):
                    client.models.list()


if __name__ == "__main__":
    serving.run()
