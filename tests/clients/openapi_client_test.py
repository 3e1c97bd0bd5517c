"""docs/openapi.json against `memoir serve`, by schemathesis: requests made of the file, right ones and wrong ones.

No request is answered by a 5xx. Each answer has a status, a type and a form that the file names, the parts of streams
too. What the file calls right is taken, and what it calls wrong is refused.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request

import serving
import tiny_model

FOLDER = os.path.dirname(os.path.abspath(__file__))
DOCUMENT = os.path.join(FOLDER, "..", "..", "docs", "openapi.json")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
SEED = "12"
MAX_EXAMPLES = "15"  # of a path and method


def for_the_model():
    """The file for this one model, its name and its numbers: else most requests got no further than a 404."""
    with open(DOCUMENT, encoding="utf-8") as file:
        document = json.load(file)
    schemas = document["components"]["schemas"]
    schemas["ModelName"] = {"enum": ["tiny", "tiny:latest", None]}
    schemas["OllamaModelName"] = {"enum": ["tiny", "tiny:latest"]}
    schemas["TokenId"]["maximum"] = tiny_model.N_VOCAB - 1
    schemas["Dimensions"] = {"enum": [tiny_model.N_EMBEDDING, None]}
    schemas["Think"] = {"enum": [False, None]}
    return document


def with_what_is_taken():
    """The same without what the file alone can't tell right from wrong."""
    document = for_the_model()
    schemas = document["components"]["schemas"]
    schemas["LogitBias"]["propertyNames"] = {"enum": ["0", "17", str(tiny_model.N_VOCAB - 1)]}
    pair = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    schemas["AnswerSchema"] = {"enum": [{"type": "object"}, pair, {"enum": ["x", 1, None]}]}
    call = schemas["CallOfMessage"]["properties"]["function"]["properties"]
    call["arguments"] = {"enum": [None, {}, {"a": 1}, "{}", '{"a": [1]}']}
    # More don't fit the context, and answers need not fill it.
    for name in ("ChatRequest", "OllamaChatRequest"):
        for field in ("messages", "tools"):
            schemas[name]["properties"][field]["maxItems"] = 3
    few = {"type": "integer", "minimum": 0, "maximum": 30}
    for name, fields in (
        ("ChatRequest", ("max_tokens", "max_completion_tokens")),
        ("CompletionRequest", ("max_tokens",)),
        ("OllamaOptions", ("num_predict",)),
        ("OllamaChatRequest", ("options",)),
        ("OllamaGenerateRequest", ("options",)),
    ):
        schemas[name]["required"] = [*schemas[name].get("required", []), *fields]
        for field in fields:
            if field != "options":
                schemas[name]["properties"][field] = few
    schemas["OllamaOptions"]["type"] = "object"
    return document


class OpenApi(serving.ServedTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        tiny_model.write(cls.folder.name)
        cls.models = ("-m", cls.folder.name, "--alias", "tiny")
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def run_schemathesis(self, document, mode, check):
        path = os.path.join(self.folder.name, "openapi.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)
        command = [sys.executable, "-B", "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
        command += ["run", path, "--url", self.address, "--mode", mode, "--checks", ",".join((*CHECKS, check))]
        command += ["--phases", "coverage,fuzzing", "--max-examples", MAX_EXAMPLES, "--seed", SEED]
        command += ["--generation-database", "none", "--request-timeout", "60", "--suppress-health-check", "all"]
        command += ["--warnings", "off", "--no-color"]
        environment = os.environ | {"SCHEMATHESIS_HOOKS": "openapi_hooks", "PYTHONPATH": FOLDER}
        done = subprocess.run(
            command, cwd=self.folder.name, env=environment, capture_output=True, text=True, timeout=280, check=False
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_what_the_file_calls_right_is_answered_as_it_says(self):
        document = with_what_is_taken()
        self.run_schemathesis(document, "positive", "positive_data_acceptance")
        metrics = urllib.request.urlopen(self.address + "/metrics", timeout=60).read().decode()
        for path in document["paths"]:
            route = path.replace("{name}", "")
            self.assertIn(f'memoir_http_requests_total{{route="{route}",status="200"}}', metrics)

    def test_what_the_file_calls_wrong_is_refused_as_it_says(self):
        self.run_schemathesis(for_the_model(), "negative", "negative_data_rejection")


if __name__ == "__main__":
    serving.run()
