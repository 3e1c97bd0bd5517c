"""Embeddings of the packages `openai` and `ollama` against `memoir serve`.

What they must be like: length 1, the same for the same text by whichever way it is asked for, and near to each other
for texts that mean nearly the same. Values against a reference: hidden_states_test.cpp.
"""

import math

import ollama
import openai

import serving

TEXTS = ["The cat sits on the mat.", "A cat is sitting on a mat.", "Interest rates rose by half a percent."]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b))


class Embeddings(serving.ServedTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.openai = openai.OpenAI(base_url=cls.address + "/v1", api_key="none", max_retries=0, timeout=60)
        cls.ollama = ollama.Client(host=cls.address, timeout=60)

    def embed(self, texts, **options):
        return self.openai.embeddings.create(model="smollm2", input=texts, **options)

    def assert_same(self, a, b):
        self.assertEqual(len(a), len(b))
        self.assertLess(max(abs(x - y) for x, y in zip(a, b)), 1e-6)

    def test_vectors_have_length_1_and_near_texts_are_near(self):
        answer = self.embed(TEXTS)
        self.assertEqual([one.index for one in answer.data], [0, 1, 2])
        cat, same_cat, rates = (one.embedding for one in answer.data)
        for vector in (cat, same_cat, rates):
            self.assertEqual(len(vector), 576)  # the model's width
            self.assertAlmostEqual(math.sqrt(cosine(vector, vector)), 1, places=5)
        self.assertGreater(cosine(cat, same_cat), cosine(cat, rates))
        self.assertEqual(answer.usage.prompt_tokens, sum(self.embed(text).usage.prompt_tokens for text in TEXTS))

    def test_base64_which_the_package_asks_for_by_itself_and_float_are_the_same(self):
        self.assert_same(
            self.embed(TEXTS[0]).data[0].embedding, self.embed(TEXTS[0], encoding_format="float").data[0].embedding
        )

    def test_a_list_is_as_its_members_alone_and_lists_of_tokens_are_taken(self):
        several = self.embed(TEXTS, encoding_format="float")
        for text, one in zip(TEXTS, several.data):
            self.assert_same(one.embedding, self.embed(text).data[0].embedding)
        tokens = self.embed([[504, 2644], [504]])
        self.assertEqual(tokens.usage.prompt_tokens, 3)
        self.assert_same(tokens.data[1].embedding, self.embed([504]).data[0].embedding)

    def test_ollamas_are_the_same(self):
        answer = self.ollama.embed(model="smollm2", input=TEXTS)
        for vector, one in zip(answer.embeddings, self.embed(TEXTS).data):
            self.assert_same(vector, one.embedding)
        self.assertGreater(answer.prompt_eval_count, 10)
        self.assert_same(self.ollama.embeddings(model="smollm2", prompt=TEXTS[0]).embedding, answer.embeddings[0])

    def test_errors_are_the_packages_own(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.embed("")
        self.assertEqual(caught.exception.param, "input")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.embed(TEXTS[0], dimensions=100)
        self.assertEqual(caught.exception.param, "dimensions")
        with self.assertRaises(openai.NotFoundError):
            self.openai.embeddings.create(model="nothing", input="x")
        with self.assertRaises(ollama.ResponseError) as caught:
            self.ollama.embed(model="smollm2", input="word " * 10_000, truncate=False)
        self.assertEqual(caught.exception.status_code, 400)


class LastState(serving.ServedTest):
    options = ("--pooling", "last")

    def test_the_last_tokens_state_tells_texts_apart_by_their_ends(self):
        client = openai.OpenAI(base_url=self.address + "/v1", api_key="none", max_retries=0, timeout=60)
        a, b = (one.embedding for one in client.embeddings.create(model="smollm2", input=TEXTS[:2]).data)
        self.assertAlmostEqual(math.sqrt(cosine(a, a)), 1, places=5)
        self.assertLess(cosine(a, b), 1 - 1e-4)


if __name__ == "__main__":
    serving.run()
