"""What the packages don't ask for, as curl would: health, metrics, ids, browsers' checks, and the end of the server."""

import http.client
import json
import threading
import unittest
import urllib.parse

import serving

CHAT = {
    "messages": [{"role": "user", "content": "Tell a long story."}],
    "temperature": 0,
    "max_tokens": 400,
    "ignore": "this",
}


def ask(address, method, path, body=None, headers=None):
    """Returns the status, the headers in lower case, and the body."""
    connection = http.client.HTTPConnection(urllib.parse.urlparse(address).netloc, timeout=60)
    connection.request(method, path, json.dumps(body) if body is not None else None, headers or {})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, text


class Plain(serving.ServedTest):
    options = ("--max-running", "1", "--max-queued", "1")

    def test_health_and_metrics_are_there(self):
        status, _, text = ask(self.address, "GET", "/health")
        self.assertEqual((status, json.loads(text)), (200, {"status": "ok"}))
        ask(self.address, "POST", "/v1/chat/completions", CHAT | {"max_tokens": 5})
        status, headers, text = ask(self.address, "GET", "/metrics")
        self.assertEqual(status, 200)
        self.assertTrue(headers["content-type"].startswith("text/plain; version=0.0.4"))
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        self.assertGreaterEqual(float(samples["memoir_completion_tokens_total"]), 5)
        self.assertGreaterEqual(float(samples['memoir_time_to_first_token_seconds_bucket{le="+Inf"}']), 1)

    def test_an_answer_has_the_id_of_its_request(self):
        _, headers, _ = ask(self.address, "GET", "/v1/models", headers={"X-Request-Id": "mine-1"})
        self.assertEqual(headers["x-request-id"], "mine-1")

    def test_a_page_of_a_stranger_is_refused(self):
        status, _, _ = ask(self.address, "GET", "/v1/models", headers={"Origin": "http://example.com"})
        self.assertEqual(status, 403)

    def test_a_full_queue_is_told_at_once(self):
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(ask(self.address, "POST", "/v1/chat/completions", CHAT)))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = sorted(status for status, _, _ in answers)
        self.assertEqual(statuses[:2], [200, 200])
        self.assertEqual(set(statuses[2:]) - {200}, {429})
        for status, headers, text in answers:
            if status == 429:
                self.assertIn("retry-after", headers)
                self.assertEqual(json.loads(text)["error"]["code"], "queue_full")


class Ending(unittest.TestCase):
    def test_an_answer_that_runs_when_the_server_is_told_to_end_is_whole(self):
        server = serving.Server()
        connection = http.client.HTTPConnection(urllib.parse.urlparse(server.address).netloc, timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps(CHAT | {"stream": True, "max_tokens": 60}))
        response = connection.getresponse()
        first = response.readline()
        self.assertTrue(first.startswith(b"data: "))
        self.assertEqual(server.stop(), 0)
        self.assertTrue(response.read().endswith(b"data: [DONE]\n\n"))
        response.close()
        connection.close()


if __name__ == "__main__":
    serving.run()
