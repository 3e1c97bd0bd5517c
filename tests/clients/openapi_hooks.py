"""What openapi_client_test.py has schemathesis do beside its own: loaded by it, see SCHEMATHESIS_HOOKS there."""

import json

import schemathesis


@schemathesis.deserializer("application/x-ndjson")
def lines(_, response):
    return [json.loads(line) for line in response.content.splitlines()]


@schemathesis.hook
def before_call(_, case, __):
    """Of a body that is meant to be right: what one field asks of another, which the file can't say."""
    body = case.body
    if not isinstance(body, dict) or not case.meta or not case.meta.generation.mode.is_positive:
        return
    if body.get("stream") is not True:
        body.pop("stream_options", None)
    if body.get("logprobs") is not True:
        body.pop("top_logprobs", None)
    if "best_of" in body:
        body["best_of"] = body.get("n")
    if not body.get("prompt") and not body.get("messages"):
        body.pop("keep_alive", None)  # 0 would unload the model, which a server that has one alone refuses
    choice = body.get("tool_choice")
    if not body.get("tools"):
        if choice not in (None, "auto", "none"):
            del body["tool_choice"]
        return
    for name in ("response_format", "format"):
        body.pop(name, None)
    if isinstance(choice, dict):
        choice["function"]["name"] = body["tools"][0]["function"]["name"]
